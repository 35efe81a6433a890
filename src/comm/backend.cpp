#include "comm/backend.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>

#include "base/check.h"
#include "base/environment.h"
#include "comm/reduce_kernels.h"

namespace zero::comm {
namespace {

constexpr std::chrono::minutes kDefaultTimeout{30};

std::chrono::milliseconds timeout_from_environment() {
  const double fallback = std::chrono::duration<double>(kDefaultTimeout).count();
  const double seconds = base::seconds_from("ZERO_TIMEOUT_S", fallback, 1e-3, 1e9,
                                            "a number of seconds, at least 0.001 (timeout of collectives).");
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

int ranks_per_node(int size) {
  const char* text = std::getenv("ZERO_RANKS_PER_NODE");
  if (!text || *text == '\0') return size;
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (*end != '\0' || number < 1) {
    throw ConfigError(
        fmt::format("environment variable ZERO_RANKS_PER_NODE: got \"{}\", wanted a whole number above 0 (so many "
                    "ranks count as one host).",
                    text));
  }
  return static_cast<int>(std::min<long>(number, size));
}

}  // namespace

std::vector<int> ranks_beside(int rank, int size) {
  const int block = ranks_per_node(size);
  std::vector<int> ranks(static_cast<std::size_t>(std::min(block, size - rank / block * block)));
  std::iota(ranks.begin(), ranks.end(), rank / block * block);
  return ranks;
}

Backend::Backend(int rank, int size, std::shared_ptr<BackendLock> lock)
    : rank_(rank), size_(size), default_timeout_(timeout_from_environment()), lock_(std::move(lock)) {}

int Backend::local_rank() const {
  return static_cast<int>(std::find(host_ranks_.begin(), host_ranks_.end(), rank_) - host_ranks_.begin());
}

void Backend::set_progress_thread(bool on) {
  if (!on) {
    if (progress_thread_ && progress_thread_->is_this_thread())
      throw ConfigError("set_progress_thread(false) inside a finish step would wait for itself; call it after");
    progress_thread_.reset();
    return;
  }
  if (progress_thread_ || size_ == 1) return;
  if (const std::string problem = progress_thread_problem(); !problem.empty()) {
    throw ConfigError("set_progress_thread: " + problem);
  }
  progress_thread_ = std::make_unique<ProgressThread>(*this, lock_);
}

CollectiveCounter* Backend::counter_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return &counters_.all_gather;
    case CollectiveKind::kReduceScatter:
      return &counters_.reduce_scatter;
    case CollectiveKind::kAllReduce:
      return &counters_.all_reduce;
    case CollectiveKind::kBroadcast:
      return &counters_.broadcast;
    case CollectiveKind::kBarrier:
      return &counters_.barrier;
    case CollectiveKind::kAllocateNodeShared:
      return nullptr;
  }
  return nullptr;
}

void Backend::tell_all(const void* mine, std::size_t nbytes, void* all, std::string_view label) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size_), static_cast<std::int64_t>(nbytes));
  Call call;
  call.kind = CollectiveKind::kAllGather;
  call.transport = Transport::kGather;
  call.numel = static_cast<std::int64_t>(nbytes) * size_;
  call.counts = counts;
  call.in = mine;
  call.out = all;
  call.label = label;
  Work(post(call)).wait();
}

void Backend::move_with(const std::shared_ptr<Backend>& other) {
  const BackendGuard guard(*lock_);
  std::erase_if(others_, [](const std::weak_ptr<Backend>& one) { return one.expired(); });
  const auto same = [&](const std::weak_ptr<Backend>& one) { return one.lock() == other; };
  if (other.get() != this && std::none_of(others_.begin(), others_.end(), same)) others_.push_back(other);
}

void Backend::move_others() {
  for (const auto& one : others_) {
    const auto other = one.lock();
    if (!other) continue;
    const BackendGuard guard(*other->lock(), std::try_to_lock);  // its progress thread has it: then that moves it
    if (guard && !other->in_finish_step()) other->progress(std::numeric_limits<int>::max());
  }
}

int Backend::move_transfers(int most) {
  int steps = 0;
  for (std::size_t i = 0; i < transfers_.size() && steps < most; ++i) steps += transfers_[i]->progress(most - steps);
  return steps;
}

bool Backend::let_go_of_transfers() const noexcept {
  bool clean = true;
  for (Transfers* const transfers : transfers_) clean = transfers->let_go() && clean;
  return clean;
}

bool Backend::transfers_under_way() const {
  return std::any_of(transfers_.begin(), transfers_.end(),
                     [](const Transfers* transfers) { return transfers->under_way(); });
}

std::string Backend::transfers_text() const {
  std::string text;
  for (const Transfers* transfers : transfers_) text += transfers->under_way_text();
  return text.empty() ? text : fmt::format("rank {}, under way beside the calls:\n{}", rank_, text);
}

std::string Backend::last_transfers_text() const {
  std::string text;
  for (const Transfers* transfers : transfers_) {
    const std::string last = transfers->last_text();
    if (!last.empty()) text += (text.empty() ? " Beside its calls it last made: " : "; ") + last;
  }
  return text.empty() ? text : text + ".";
}

void count_moved(CollectiveCounter& counter, std::int64_t sent, std::int64_t received, DType dtype) {
  const auto nbytes = static_cast<std::int64_t>(element_nbytes(dtype));
  counter.calls += 1;
  counter.numel_sent += sent;
  counter.numel_received += received;
  counter.nbytes_sent += sent * nbytes;
  counter.nbytes_received += received * nbytes;
}

CallRecord make_record(const Call& call, std::uint64_t sequence) {
  CallRecord record;
  record.sequence = sequence;
  record.numel = call.recorded_numel >= 0 ? call.recorded_numel : call.numel;
  record.counts_hash = call.counts.empty() ? 0 : hash_counts(call.counts);
  record.root = call.root;
  record.kind = call.kind;
  record.phase = call.phase;
  record.dtype = call.dtype;
  record.op = static_cast<std::uint8_t>(call.op);
  set_label(record, call.label);
  return record;
}

void run_finish_step(const Reduction& reduction, const ConsumeSlices& consume, DType dtype,
                     std::span<const void* const> slices, std::int64_t numel) {
  if (consume) {
    consume(slices);
  } else {
    reduce_ordered(slices, numel, dtype, reduction);
  }
}

}  // namespace zero::comm
