// zero::Group: argument checks, counters, and the collectives composed of a backend's transports.
#include "zero/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "comm/backend.h"
#include "comm/reduce_kernels.h"
#include "zero/errors.h"

namespace zero {
namespace {

using comm::Call;
using comm::CollectiveKind;
using comm::count_moved;
using comm::Transport;

/// Up to here each rank reads everybody's input and sums all of it: one step instead of two.
constexpr std::int64_t kSmallAllReduceNbytes = 64 << 10;
/// Boundaries of the slices of a large all_reduce: whole cache lines.
constexpr std::int64_t kSliceMultiple = 64;

[[noreturn]] void refuse(const comm::Backend& backend, std::string_view function, const CollectiveOptions& options,
                         const std::string& problem) {
  throw ConfigError(
      fmt::format("{}(\"{}\") on rank {} of {}: {}", function, options.label, backend.rank(), backend.size(), problem));
}

/// One number of elements for each rank.
void check_per_rank(const comm::Backend& backend, std::string_view function, std::string_view name,
                    std::span<const std::int64_t> values, const CollectiveOptions& options) {
  if (values.size() != static_cast<std::size_t>(backend.size())) {
    refuse(backend, function, options,
           fmt::format("{} has {} entries, wanted one per rank, {}.", name, values.size(), backend.size()));
  }
  for (std::size_t r = 0; r < values.size(); ++r) {
    if (values[r] < 0) {
      refuse(backend, function, options, fmt::format("{}[{}] is {}, wanted 0 or more elements.", name, r, values[r]));
    }
  }
}

std::int64_t checked_total(const comm::Backend& backend, std::string_view function,
                           std::span<const std::int64_t> counts, const CollectiveOptions& options) {
  check_per_rank(backend, function, "counts", counts, options);
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Elements of `out` up to the end of the last part, of checked `counts`.
std::int64_t checked_end(const comm::Backend& backend, std::string_view function, std::span<const std::int64_t> counts,
                         std::span<const std::int64_t> offsets, const CollectiveOptions& options) {
  check_per_rank(backend, function, "offsets", offsets, options);
  std::int64_t end = 0;
  for (std::size_t r = 0; r < offsets.size(); ++r) end = std::max(end, offsets[r] + counts[r]);
  return end;
}

void check_pointer(const comm::Backend& backend, std::string_view function, std::string_view name, const void* pointer,
                   std::int64_t numel, const CollectiveOptions& options) {
  if (numel < 0) refuse(backend, function, options, fmt::format("numel is {}, wanted 0 or more.", numel));
  if (numel > 0 && !pointer) {
    refuse(backend, function, options, fmt::format("`{}` is null but {} elements are wanted of it.", name, numel));
  }
}

Call make_call(CollectiveKind kind, Transport transport, DType dtype, const CollectiveOptions& options) {
  Call call;
  call.kind = kind;
  call.transport = transport;
  call.dtype = dtype;
  call.label = options.label;
  call.timeout = options.timeout;
  call.input_stable = options.input_stable_until_barrier;
  return call;
}

/// Slices of a large all_reduce: as even as whole multiples allow, the last ones may be shorter or empty.
void divide(std::int64_t numel, std::span<std::int64_t> counts) {
  const auto ranks = static_cast<std::int64_t>(counts.size());
  const std::int64_t share = (numel + ranks * kSliceMultiple - 1) / (ranks * kSliceMultiple) * kSliceMultiple;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const std::int64_t begin = std::min(r * share, numel);
    counts[static_cast<std::size_t>(r)] = std::min(begin + share, numel) - begin;
  }
}

/// Per-rank counts without an allocation for groups of ordinary width.
class Counts {
 public:
  explicit Counts(int ranks) {
    if (static_cast<std::size_t>(ranks) > inline_.size()) heap_.resize(static_cast<std::size_t>(ranks));
    span_ = heap_.empty() ? std::span(inline_).first(static_cast<std::size_t>(ranks)) : std::span(heap_);
  }
  std::span<std::int64_t> span() { return span_; }

 private:
  std::array<std::int64_t, 64> inline_{};
  std::vector<std::int64_t> heap_;
  std::span<std::int64_t> span_;
};

/// Posts calls that belong together.
class Post {
 public:
  explicit Post(comm::Backend& backend) : backend_(backend), guard_(backend) {}
  std::shared_ptr<comm::WorkState> operator()(const Call& call) {
    return backend_.call_log() ? logged(call) : backend_.post(call);
  }

 private:
  std::shared_ptr<comm::WorkState> logged(const Call& call) {
    if (call.deferred && call.phase == 0) return backend_.post(call);  // the second half says all of it
    const std::shared_ptr<comm::CallLog> log = backend_.call_log();
    const std::int64_t nbytes = call.numel * static_cast<std::int64_t>(element_nbytes(call.dtype));
    const auto ticket = log->begin(call.kind, nbytes, call.label, false, base::monotonic_ns());
    std::shared_ptr<comm::WorkState> work = backend_.post(call);
    if (work) {
      work->tell(log, ticket);
    } else {
      log->end(ticket, 0);  // a group of one
    }
    return work;
  }

  comm::Backend& backend_;
  comm::PostingGuard guard_;
};

void* advance(void* pointer, std::int64_t numel, DType dtype) {
  return static_cast<char*>(pointer) + numel * static_cast<std::int64_t>(element_nbytes(dtype));
}

}  // namespace

bool Work::test() {
  if (!state_ || state_->complete()) return true;
  const comm::BackendGuard guard(state_->lock(), std::try_to_lock);
  return guard && state_->test();  // the progress thread holds the lock: something is moving
}

void Work::wait() {
  if (!state_ || state_->complete()) return;
  const comm::BackendGuard guard(state_->lock());
  state_->wait();
}

bool Work::wait_for(std::chrono::milliseconds limit) {
  if (!state_ || state_->complete()) return true;
  const comm::BackendGuard guard(state_->lock());
  return state_->wait_for(limit);
}

double Work::moving_seconds() const { return state_ && state_->complete() ? state_->moving_seconds() : 0; }

void* SharedMemory::data() const { return region_ ? region_->data() : nullptr; }
std::size_t SharedMemory::nbytes() const { return region_ ? region_->nbytes() : 0; }

Group::Group() : backend_(comm::make_self_backend()) {}
Group::Group(std::shared_ptr<comm::Backend> backend) : backend_(std::move(backend)) {}

int Group::rank() const { return backend_->rank(); }
int Group::size() const { return backend_->size(); }
int Group::local_rank() const { return backend_->local_rank(); }
int Group::local_size() const { return backend_->local_size(); }
std::string_view Group::backend() const { return backend_->name(); }
bool Group::single_node() const { return backend_->local_size() == backend_->size(); }

Group Group::split(int color) const {
  Group parent(*this);
  const std::int64_t mine = color;
  std::vector<std::int64_t> colors(static_cast<std::size_t>(size()));
  const std::vector<std::int64_t> counts(colors.size(), 1);
  parent.all_gather(&mine, colors.data(), counts, DType::kInt64, {.label = "split"}).wait();
  std::vector<int> members;
  for (int r = 0; r < size(); ++r) {
    if (colors[static_cast<std::size_t>(r)] == mine) members.push_back(r);
  }
  const comm::BackendGuard guard(*backend_->lock());
  Group part(backend_->subgroup(members));
  part.set_timeout(timeout());
  return part;
}

Group Group::split_by_host() const { return split(backend_->host_ranks()[0]); }

Work Group::all_gather(const void* in, void* out, std::span<const std::int64_t> counts, DType dtype,
                       const CollectiveOptions& options) {
  return all_gather_at(in, out, counts, {}, dtype, options);
}

Work Group::all_gather_at(const void* in, void* out, std::span<const std::int64_t> counts,
                          std::span<const std::int64_t> offsets, DType dtype, const CollectiveOptions& options) {
  constexpr std::string_view kFunction = "all_gather";
  const std::int64_t total = checked_total(*backend_, kFunction, counts, options);
  const std::int64_t end = offsets.empty() ? total : checked_end(*backend_, kFunction, counts, offsets, options);
  const auto me = static_cast<std::size_t>(rank());
  const std::int64_t before =
      offsets.empty() ? std::accumulate(counts.begin(), counts.begin() + rank(), std::int64_t{0}) : offsets[me];
  check_pointer(*backend_, kFunction, "in", in, counts[me], options);
  check_pointer(*backend_, kFunction, "out", out, total, options);
  const char* const my_slice = static_cast<const char*>(advance(out, before, dtype));
  const char* const in_begin = static_cast<const char*>(in);
  const char* const in_end = in_begin + counts[me] * static_cast<std::int64_t>(element_nbytes(dtype));
  for (std::size_t r = 0; r < counts.size() && counts[me] > 0 && in != my_slice; ++r) {
    const bool one_range = offsets.empty();  // parts one after the other
    const std::int64_t begin = one_range ? 0 : offsets[r], stop = one_range ? end : begin + counts[r];
    if (begin == stop || in_begin >= advance(out, stop, dtype) || in_end <= advance(out, begin, dtype)) continue;
    refuse(*backend_, kFunction, options,
           fmt::format("`in` overlaps `out` at byte {}; in place it must be this rank's slice, at byte {}.",
                       in_begin - static_cast<char*>(out), my_slice - static_cast<char*>(out)));
  }
  Call call = make_call(CollectiveKind::kAllGather, Transport::kGather, dtype, options);
  call.numel = total;
  call.counts = counts;
  call.offsets = offsets;
  call.in = in;
  call.out = out;
  Work work(Post(*backend_)(call));
  count_moved(backend_->counters().all_gather, counts[me] * (size() - 1), total - counts[me], dtype);
  return work;
}

Work Group::reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, DType dtype,
                           DType out_dtype, bool accumulate, const CollectiveOptions& options) {
  constexpr std::string_view kFunction = "reduce_scatter";
  const std::int64_t total = checked_total(*backend_, kFunction, counts, options);
  const std::int64_t mine = counts[static_cast<std::size_t>(rank())];
  check_pointer(*backend_, kFunction, "in", in, total, options);
  check_pointer(*backend_, kFunction, "out", out, mine, options);
  const bool narrows = dtype == out_dtype && (dtype == DType::kBFloat16 || dtype == DType::kFloat16);
  if (!comm::reduce_supported(dtype, out_dtype) || narrows) {
    refuse(*backend_, kFunction, options,
           fmt::format("{} to {} is not supported; wanted fp32, bf16 or fp16 to fp32, fp64 to fp64, or int64 to int64.",
                       dtype_name(dtype), dtype_name(out_dtype)));
  }
  Call call = make_call(CollectiveKind::kReduceScatter, Transport::kScatter, dtype, options);
  call.numel = total;
  call.counts = counts;
  call.in = in;
  call.reduction = {out, out_dtype, ReduceOp::kSum, accumulate ? comm::ReduceBase::kOut : comm::ReduceBase::kZero};
  Work work(Post(*backend_)(call));
  count_moved(backend_->counters().reduce_scatter, total - mine, mine * (size() - 1), dtype);
  return work;
}

Work Group::exchange(const void* in, std::span<const std::int64_t> counts, DType dtype, ConsumeSlices consume,
                     const CollectiveOptions& options) {
  constexpr std::string_view kFunction = "exchange";
  const std::int64_t total = checked_total(*backend_, kFunction, counts, options);
  const std::int64_t mine = counts[static_cast<std::size_t>(rank())];
  check_pointer(*backend_, kFunction, "in", in, total, options);
  if (!consume) refuse(*backend_, kFunction, options, "`consume` is empty; wanted a function.");
  Call call = make_call(CollectiveKind::kReduceScatter, Transport::kScatter, dtype, options);
  call.numel = total;
  call.counts = counts;
  call.in = in;
  call.consume = std::move(consume);
  Work work(Post(*backend_)(call));
  count_moved(backend_->counters().reduce_scatter, total - mine, mine * (size() - 1), dtype);
  return work;
}

Work Group::all_reduce(void* inout, std::int64_t numel, DType dtype, ReduceOp op, const CollectiveOptions& options) {
  constexpr std::string_view kFunction = "all_reduce";
  check_pointer(*backend_, kFunction, "inout", inout, numel, options);
  if (!comm::reduce_supported(dtype, dtype)) {
    refuse(*backend_, kFunction, options, fmt::format("{} cannot be summed.", dtype_name(dtype)));
  }
  CollectiveCounter& counter = backend_->counters().all_reduce;
  Call call = make_call(CollectiveKind::kAllReduce, Transport::kView, dtype, options);
  call.op = op;
  call.numel = numel;
  call.in = inout;
  call.input_stable = false;
  call.reduction = {inout, dtype, op, comm::ReduceBase::kFirst};
  if (numel * static_cast<std::int64_t>(element_nbytes(dtype)) <= kSmallAllReduceNbytes) {
    call.stage_input = true;
    Work work(Post(*backend_)(call));
    count_moved(counter, numel * (size() - 1), numel * (size() - 1), dtype);
    return work;
  }
  // Large: each rank reduces one slice and everybody gathers the slices. Both calls take their place in
  // the order now; the second becomes ready when the first one's sum is done.
  Counts counts(size());
  divide(numel, counts.span());
  const std::int64_t mine = counts.span()[static_cast<std::size_t>(rank())];
  const std::int64_t before = std::accumulate(counts.span().begin(), counts.span().begin() + rank(), std::int64_t{0});
  void* const my_slice = advance(inout, before, dtype);
  call.transport = Transport::kScatter;
  call.counts = counts.span();
  call.reduction.out = my_slice;
  call.deferred = true;
  Post post(*backend_);
  const std::shared_ptr<comm::WorkState> reduced = post(call);
  call.transport = Transport::kGather;
  call.phase = 1;
  call.in = my_slice;
  call.out = inout;
  std::shared_ptr<comm::WorkState> gathered = post(call);
  reduced->chain(gathered);
  reduced->start();
  count_moved(counter, numel - mine + mine * (size() - 1), mine * (size() - 1) + numel - mine, dtype);
  return Work(std::move(gathered));
}

Work Group::broadcast(void* inout, std::int64_t numel, DType dtype, int root, const CollectiveOptions& options) {
  constexpr std::string_view kFunction = "broadcast";
  check_pointer(*backend_, kFunction, "inout", inout, numel, options);
  if (root < 0 || root >= size()) {
    refuse(*backend_, kFunction, options, fmt::format("root is {}, wanted 0 to {}.", root, size() - 1));
  }
  Call call = make_call(CollectiveKind::kBroadcast, Transport::kBroadcast, dtype, options);
  call.root = root;
  call.numel = numel;
  call.in = inout;
  call.out = inout;
  Work work(Post(*backend_)(call));
  const bool is_root = rank() == root;
  count_moved(backend_->counters().broadcast, is_root ? numel * (size() - 1) : 0, is_root ? 0 : numel, dtype);
  return work;
}

Work Group::barrier(const CollectiveOptions& options) {
  Work work(Post(*backend_)(make_call(CollectiveKind::kBarrier, Transport::kBarrier, DType::kByte, options)));
  count_moved(backend_->counters().barrier, 0, 0, DType::kByte);
  return work;
}

SharedMemory Group::allocate(std::size_t nbytes) { return backend_->allocate(nbytes); }

SharedMemory Group::allocate_node_shared(std::size_t nbytes, std::string_view label, std::size_t expected_nbytes) {
  const comm::BackendGuard guard(*backend_->lock());
  return backend_->allocate_node_shared(nbytes, label, expected_nbytes);
}

void Group::abort(std::string_view reason) noexcept {
  const comm::BackendGuard guard(*backend_->lock());
  backend_->abort(reason);
}

bool Group::failed() const {
  const comm::BackendGuard guard(*backend_->lock());
  return backend_->failed();
}

void Group::set_progress_thread(bool on) { backend_->set_progress_thread(on); }
bool Group::has_progress_thread() const { return backend_->progress_thread() != nullptr; }
std::string Group::progress_thread_problem() const { return backend_->progress_thread_problem(); }

CommunicationCounters Group::counters() const { return backend_->counters(); }
void Group::reset_counters() { backend_->counters() = {}; }

void Group::set_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) {
    throw ConfigError(fmt::format("set_timeout: got {} ms, wanted more than 0.", timeout.count()));
  }
  backend_->set_default_timeout(timeout);
}

std::chrono::milliseconds Group::timeout() const { return backend_->default_timeout(); }

std::string Group::flight_recorder() const {
  const comm::BackendGuard guard(*backend_->lock());
  return backend_->flight_recorder();
}

}  // namespace zero
