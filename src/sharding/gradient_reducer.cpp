#include "sharding/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/small_floats.h"
#include "intercept/gradient_hook.h"
#include "sharding/unit_board.h"
#include "storage/cpu_allocator.h"
#include "zero/errors.h"

namespace zero::sharding {

using layout::kBlockNumel;
using storage::FlatBuffer;

namespace {

template <class Low>
void add_values(const void* values, std::int64_t from, std::int64_t numel, float* sums) {
  const auto* low = static_cast<const Low*>(values) + from;
  for (std::int64_t i = 0; i < numel; ++i) sums[i] += base::widen(low[i]);
}

/// sums[i] += values[from + i]
void add_low_values(DType dtype, const void* values, std::int64_t from, std::int64_t numel, float* sums) {
  switch (dtype) {
    case DType::kFloat16:
      return add_values<base::Float16>(values, from, numel, sums);
    case DType::kBFloat16:
      return add_values<base::BFloat16>(values, from, numel, sums);
    default:
      return add_values<float>(values, from, numel, sums);
  }
}

GradientListener& nobody() {
  static GradientListener the_listener;
  return the_listener;
}

}  // namespace

GradientReducer::GradientReducer(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                                 ReducerOptions options)
    : model_(model),
      timeline_(timeline),
      options_(std::move(options)),
      ledger_(ledger),
      listener_(&nobody()),
      wire_(make_gradient_wire(model, ledger, options_.wire, options_.sum_block, options_.overlap)),
      schedule_({}, 0),
      agreement_(model.parameters.size()),
      used_(model.parameters.size(), 0),
      window_used_(model.parameters.size(), 0),
      process_(::getpid()) {
  used_in_backward_.reserve(model.parameters.size());
  if (model.module_is_elsewhere()) from_device_.emplace(model.module_device);
  make_buckets();
  if (model.sharding.gradients) {
    pool_ = std::make_unique<BufferPool>(ledger, MemoryKind::kBuckets,
                                         [this](std::int64_t numel) { return make_buffer(numel); });
  }
  make_memory();
  if (options_.keeps_sums) {
    sums_ = make_sums();
    if (options_.sets_of_sums > 1) other_sums_ = make_sums();
    if (wire_->sends_rows()) rows_.emplace(model_);
  }
}

std::unique_ptr<GradientSums> GradientReducer::make_sums() {
  // A device's gradients come into memory that it can copy to beside the host.
  return sharding::make_sums(
      model_, ledger_, held_ranges(),
      {.dtype = options_.sums_are_gradients ? model_.gradient_dtype : model_.sum_dtype,
       .copied_by_device = options_.copied_by_device || (from_device_ && options_.sums_are_gradients),
       .disk = options_.disk,
       .bucket_numel = options_.bucket_numel});
}

storage::FlatBuffer GradientReducer::make_buffer(std::int64_t numel) {
  return model_.home.make_readable(ledger_, MemoryKind::kBuckets, model_.gradient_dtype, numel);
}

/// What depends on the buckets. *Collective.*
void GradientReducer::make_memory() {
  std::int64_t largest = 0;
  for (const auto& bucket : buckets_) largest = std::max(largest, bucket.range.numel());
  wire_->set_largest(largest);
  if (pool_) {
    pool_limit_numel_ = layout::bucket_pool_limit(largest, options_.overlap);
  } else if (!options_.keeps_sums || !options_.sums_are_gradients) {
    for (auto& bucket : buckets_) {
      if (bucket.own.empty()) bucket.own = make_buffer(bucket.range.numel());
    }
  }
  unit_counts_.clear();
  for (const Unit& unit : model_.units) {
    if (model_.sharding.optimizer_states) break;
    unit_counts_.push_back(layout::shard_counts(unit.cuts, unit.whole()));
  }
  if (!options_.keeps_sums && !options_.sums_are_gradients && piece_.numel() < largest_piece()) {
    piece_ = model_.home.make_private(ledger_, MemoryKind::kGradients, model_.sum_dtype, largest_piece());
  }
  if (model_.world_size() == 1) return;
  std::vector<comm::Parcel> parcels;
  std::vector<int> units;
  for (const Bucket& bucket : buckets_) {
    units.push_back(bucket.unit);
    std::vector<std::int64_t> counts;
    for (const std::int64_t numel : bucket.counts) counts.push_back(wire_->sent_numel(numel));
    parcels.push_back(
        {fmt::format("gradients of {} [{}, {})", model_.units[bucket.unit].name, bucket.range.begin, bucket.range.end),
         std::move(counts)});
  }
  board_.reset();
  board_ = make_unit_board(
      model_, "gradients", std::move(parcels), units, wire_->dtype(),
      [this](int parcel, std::span<const void* const> slices) { reduce(buckets_[parcel], slices); },
      wire_->host_sums());
  wire_->expect_host_sums(board_->sums_on_hosts());
}

GradientReducer::~GradientReducer() {
  // Of a window that is not stepped the ranks may have sent different parts. What a rank that goes has not sent is
  // given up; where ranks cannot tell each other that they go, they complete each other's parts if they know of them.
  if (board_ && ::getpid() == process_ && std::uncaught_exceptions() == 0 && !model_.data_ranks.failed()) {
    try {
      post_arrived(/*all=*/true);
      if (!board_->abandon() && agreed_routed_) flush("gradients of an engine that goes");
    } catch (const std::exception&) {  // others learn why
    }
  }
  if (from_device_ && ::getpid() == process_) {
    try {
      from_device_->finish();          // copies under way write into buckets
    } catch (const std::exception&) {  // a device that has failed
    }
  }
  // Its finish steps may run in another thread, and would find nothing to add to.
  for (const int index : sent_) wait_or_fail(buckets_[index].work, *buckets_[index].sent_buffer, process_);
  board_.reset();  // a device may still read buckets, and write sums
}

std::vector<Range> GradientReducer::held_ranges() const {
  std::vector<Range> held(model_.units.size());
  for (std::size_t u = 0; u < held.size(); ++u) {
    if (model_.units[u].trainable) held[u] = gradient_range(static_cast<int>(u));
  }
  return held;
}

/// Most elements of this rank in one bucket.
std::int64_t GradientReducer::largest_piece() const {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets_) largest = std::max(largest, mine_of(bucket).numel());
  return largest;
}

void GradientReducer::make_buckets() {
  std::vector<Bucket> old = std::move(buckets_);
  buckets_.clear();
  places_.assign(model_.parameters.size(), {});
  std::vector<std::vector<int>> parameters;
  std::int64_t block_offset = 0;
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    const Unit& unit = model_.units[u];
    if (!unit.trainable) continue;
    std::vector<layout::Slot> slots;
    for (const int p : unit.parameters)
      slots.push_back({p, model_.parameters[p].range.begin, model_.parameters[p].range.numel()});
    for (layout::Bucket& cut : layout::cut_into_buckets(slots, unit.numel, options_.bucket_numel)) {
      Bucket bucket;
      for (Bucket& before : old) {
        if (before.unit == static_cast<int>(u) && before.range == cut.range) bucket = std::move(before);
      }
      bucket.unit = static_cast<int>(u);
      bucket.range = cut.range;
      bucket.gaps = std::move(cut.gaps);
      bucket.counts = layout::shard_counts(unit.cuts, cut.range);
      bucket.block_offset = block_offset;
      block_offset += mine_of(bucket).numel() / kBlockNumel;
      for (std::size_t i = 0; i < cut.parameters.size(); ++i)
        places_[cut.parameters[i]].push_back({static_cast<int>(buckets_.size()), static_cast<int>(i)});
      parameters.push_back(std::move(cut.parameters));
      buckets_.push_back(std::move(bucket));
    }
  }
  make_sumsq(block_offset);
  layout::BucketSchedule schedule(std::move(parameters), static_cast<int>(model_.parameters.size()));
  for (int p = 0; p < schedule_.parameter_count(); ++p) schedule.expect(p, schedule_.expected(p));
  schedule_ = std::move(schedule);
  sent_.reserve(buckets_.size());
}

void GradientReducer::make_sumsq(std::int64_t blocks) {
  block_sumsq_ = device::host_tensor_for(model_.device, blocks, at::kDouble).zero_();
  if (model_.passes->in_host_memory()) return;
  follow_streams();  // a program may train in another stream than it makes its engine in
  device_sumsq_ = at::zeros({blocks}, at::TensorOptions(at::kDouble).device(model_.device));
}

void GradientReducer::add_units(std::span<const int> units) {
  quiesce();
  for (const int u : units) model_.units[u].trainable = true;
  make_buckets();
  make_memory();
  if (!sums_) return;
  for (const int u : units) {
    sums_->add_unit(u, gradient_range(u));
    if (other_sums_) other_sums_->add_unit(u, gradient_range(u));
  }
  refresh_sumsq();  // other places now, and what has come as rows is not sent again
}

Range GradientReducer::gradient_range(int unit) const {
  const Unit& the_unit = model_.units[unit];
  return model_.sharding.optimizer_states ? model_.shard_of(unit) : the_unit.whole();
}

std::int64_t GradientReducer::shard_blocks(int unit, int rank) const {
  return model_.units[unit].shard(rank).numel() / kBlockNumel;
}

/// Called before anything is under way, as passes may run in another thread.
void GradientReducer::begin_micro_batch() {
  if (micro_batch_has_gradients()) return;
  gradients_began_ = base::seconds_now();
  makes_sumsq_ = expects_last_;
  sumsq_complete_ = false;
}

void GradientReducer::follow_streams() {
  if (model_.passes->in_host_memory()) return;
  const c10::Stream here = device::current_stream(model_.device);
  if (last_stream_ && *last_stream_ != here) {
    c10::Event end(model_.device.type());
    end.record(*last_stream_);
    end.block(here);
    if (device_sumsq_.defined()) device::note_use(device_sumsq_);
  }
  last_stream_ = here;
}

void GradientReducer::add(int parameter, const at::Tensor& gradient) {
  begin_micro_batch();
  follow_streams();
  post_arrived(/*all=*/false);
  if (!used_[parameter]) {
    used_[parameter] = 1;
    used_in_backward_.push_back(parameter);
  }
  const bool sparse_elsewhere = gradient.layout() != at::kStrided && gradient.device() != model_.device;
  const at::Tensor here = sparse_elsewhere ? gradient.to(model_.device) : gradient;
  if (!rows_ || is_in_buckets(parameter) || !rows_->keep(parameter, here)) add_dense(parameter, here);
}

bool GradientReducer::is_in_buckets(int parameter) const {
  return std::any_of(places_[parameter].begin(), places_[parameter].end(), [this](const Place& place) {
    return schedule_.open(place.bucket) || schedule_.rounds(place.bucket) > 0;
  });
}

void GradientReducer::add_dense(int parameter, const at::Tensor& gradient) {
  for (const auto place : places_[parameter]) {
    Bucket& bucket = buckets_[place.bucket];
    const bool is_second = schedule_.open(place.bucket) && schedule_.has(place.bucket, place.position);
    if (is_second && may_send(bucket) && options_.keeps_sums) {
      // Added in the sums' dtype, whatever else the bucket waits for.
      zero_missing(bucket);
      send(bucket);
    }
    const auto arrival = schedule_.arrive(place.bucket, place.position);
    if (arrival.opens) open(bucket);
    copy_in(bucket, parameter, gradient, arrival.adds);
    if (arrival.completes && may_send(bucket)) {
      zero_missing(bucket);  // of parameters that are frozen for now
      send(bucket);
    }
  }
}

/// A micro-batch sends what a bucket's first gradients are at once, and at its end the sum of those of later backwards:
/// which of them are added before they are rounded and sent must not depend on how far other ranks are. One rank alone
/// adds each of them to the sums.
bool GradientReducer::may_send(const Bucket& bucket) const {
  return !board_ || schedule_.rounds(index_of(bucket)) == 0;
}

void GradientReducer::retire_if_complete(Bucket& bucket) {
  if (bucket.work.valid() && bucket.work.test()) retire(bucket);
}

void GradientReducer::begin_backward() {
  schedule_.begin_backward();
  if (rows_) rows_->begin_backward();
  used_in_backward_.clear();
}

bool GradientReducer::undo_backward() {
  if (!schedule_.undo_backward()) return false;
  if (rows_) rows_->undo_backward();
  for (const int b : schedule_.undone()) {
    Bucket& bucket = buckets_[b];
    wait_for_copies(bucket);
    FlatBuffer* const buffer = std::exchange(bucket.buffer, nullptr);  // none where open() has thrown
    if (pool_ && buffer && buffer != &bucket.in_sums) pool_->give_back(buffer);
  }
  for (const int p : used_in_backward_) used_[p] = 0;
  used_in_backward_.clear();
  return true;
}

void GradientReducer::open(Bucket& bucket) {
  const int index = index_of(bucket);
  if (!options_.keeps_sums && schedule_.rounds(index) > 0) {
    throw ModelError(
        fmt::format("a second backward before step(): the first one has already updated '{}', as zerotorch.update "
                    "says; add the losses for one backward, or choose another one",
                    model_.units[bucket.unit].name));
  }
  if (std::ranges::find(on_their_way_, index) != on_their_way_.end()) post_arrived(/*all=*/true);
  retire_if_complete(bucket);
  if (void* const place = place_in_sums(bucket)) {
    bucket.in_sums = FlatBuffer::borrow(place, model_.gradient_dtype, bucket.range.numel(), model_.device);
    bucket.buffer = &bucket.in_sums;
  } else if (pool_) {
    take_from_pool(bucket);
  } else {
    // The other one is for a second backward, and ranks that are not as far.
    FlatBuffer& free = bucket.sent_buffer == &bucket.own ? bucket.spare : bucket.own;
    if (free.empty()) free = make_buffer(bucket.range.numel());
    bucket.buffer = &free;
  }
  for (const Range gap : bucket.gaps) {
    bucket.buffer->view(gap.begin - bucket.range.begin, gap.numel()).zero_();
  }
}

void* GradientReducer::place_in_sums(const Bucket& bucket) {
  if (board_ || !wire_->sends_as_is() || !sums_ || !bucket.fresh || sums_->dtype() != model_.gradient_dtype)
    return nullptr;
  if (from_device_ && !options_.sums_are_gradients) return nullptr;  // it could not copy there beside the host
  sums_->take(bucket.unit);
  void* const all = sums_->in_memory(bucket.unit);
  if (!all) return nullptr;
  return Sums{all, sums_->dtype()}.from(bucket.range.begin - gradient_range(bucket.unit).begin).data;
}

void GradientReducer::widen_sums() {
  if (!sums_ || sums_->dtype() == model_.sum_dtype) return;
  for (std::size_t u = 0; u < model_.units.size(); ++u) listener_->gradients_change(static_cast<int>(u));
  for (Bucket& bucket : buckets_) {
    if (bucket.buffer != &bucket.in_sums) continue;
    wait_for_copies(bucket);
    if (!pool_ && bucket.own.empty()) bucket.own = make_buffer(bucket.range.numel());
    bucket.buffer = pool_ ? pool_->take(bucket.range.numel()) : &bucket.own;
    model_.passes->copy(bucket.buffer->data(), bucket.in_sums.data(), bucket.in_sums.nbytes());
  }
  sums_->widen();
  storage::give_back_freed_memory();  // which is of sizes that nobody asks for again
  if (std::exchange(widened_, true)) return;
  base::log_info(
      "sums of gradients are kept in {} from here on and not in {}: more than one gradient came to them in a step, or "
      "the program changes them",
      dtype_name(model_.sum_dtype), dtype_name(model_.gradient_dtype));
}

/// How long to wait for buckets sent before, instead of taking more memory. A rank that does not use what
/// they hold sends them at the end of its micro-batch only, and may itself wait for this rank: where ranks
/// were seen to use different parameters there is no waiting. Where they only finish them in different orders, waiting
/// in vain makes the next wait shorter. Ranks that use the same in the same order never wait in vain, however slow one
/// of them is: where they see each other wait, only something else that holds a rank up ends the wait early. Where they
/// do not, waiting at most doubles the time in which gradients have come so far.
double GradientReducer::patience_seconds() const {
  constexpr double kSeeing = 30, kBlind = 1;
  if (routed_ || impatient_) return 0;
  const double most = board_->sees_waits() ? kSeeing : std::max(kBlind, base::seconds_now() - gradients_began_);
  return std::min(most, most_patience_seconds_);
}

void GradientReducer::adjust_patience() {
  constexpr double kLeastSeconds = 0.005;
  if (!impatient_) most_patience_seconds_ = 2 * std::max(most_patience_seconds_, kLeastSeconds);
  impatient_ = false;
}

bool GradientReducer::wait_a_while(Bucket& bucket) {
  const double begin = base::seconds_now(), limit = patience_seconds();
  const std::chrono::milliseconds whole_limit(std::llround(1e3 * limit));
  if (limit > 0 && board_->wait_while_others_run(index_of(bucket), bucket.work, whole_limit)) return true;
  if (!std::exchange(impatient_, true)) most_patience_seconds_ = (base::seconds_now() - begin) / 4;
  return false;
}

template <class IsFull>
void GradientReducer::make_room(const Bucket& bucket, IsFull is_full) {
  while (!sent_.empty() && is_full()) {
    const Stopwatch watch(timeline_, &StepBreakdown::wait, model_.units[bucket.unit].name);
    const auto done =
        std::find_if(sent_.begin(), sent_.end(), [this](int index) { return buckets_[index].work.test(); });
    Bucket& oldest = buckets_[done == sent_.end() ? sent_.front() : *done];
    if (done == sent_.end() && !wait_a_while(oldest)) break;
    retire(oldest);
  }
}

void GradientReducer::take_from_pool(Bucket& bucket) {
  const auto is_full = [&] { return pool_->would_exceed(pool_limit_numel_, bucket.range.numel()); };
  if (!on_their_way_.empty() && is_full()) post_arrived(/*all=*/true);
  make_room(bucket, is_full);
  bucket.buffer = pool_->take(bucket.range.numel());
}

void GradientReducer::pack(Bucket& bucket) {
  make_room(bucket, [this] { return wire_->is_full(); });
  Stopwatch watch(timeline_, &StepBreakdown::gradient_copy, model_.units[bucket.unit].name);
  bucket.sent_buffer = wire_->pack(bucket.buffer, bucket.range.numel(), bucket.errors, micro_batch_);
  FlatBuffer* const gradients = std::exchange(bucket.buffer, nullptr);
  if (pool_ && bucket.sent_buffer != gradients) pool_->give_back(gradients);
}

void GradientReducer::copy_in(Bucket& bucket, int parameter, const at::Tensor& gradient, bool add_to) {
  const auto& target = model_.parameters[parameter];
  Stopwatch watch(timeline_, &StepBreakdown::gradient_copy, target.name);
  at::NoGradGuard no_grad;
  const Range part = layout::intersect(target.range, bucket.range);
  // The flat buffer holds the parameter's elements in the order of its own memory, whatever its strides.
  at::Tensor source = gradient;
  const at::ScalarType travels_in = device::to_scalar_type(model_.gradient_dtype);
  const bool lazy = source.layout() != at::kStrided || source.is_neg() || source._is_zerotensor();
  if (lazy || source.strides() != target.tensor.strides() || !source.is_non_overlapping_and_dense() ||
      (source.scalar_type() != target.tensor.scalar_type() && source.scalar_type() != travels_in) ||
      (source.device() != model_.device && source.device() != model_.module_device)) {
    source = at::empty_strided(target.tensor.sizes(), target.tensor.strides(),
                               at::TensorOptions().dtype(target.tensor.scalar_type()).device(model_.module_device));
    source.copy_(gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
    copied_nbytes_ += static_cast<std::int64_t>(source.nbytes());
  }
  const auto nbytes = static_cast<std::int64_t>(source.element_size());
  copied_nbytes_ += part.numel() * static_cast<std::int64_t>(element_nbytes(model_.gradient_dtype));
  const std::int64_t to = part.begin - bucket.range.begin;
  const std::int64_t from = part.begin - target.range.begin;
  const bool converts = source.scalar_type() != travels_in;
  const bool is_elsewhere = source.device() != model_.device;
  if (!add_to && !converts && !is_elsewhere) {
    model_.passes->copy(bucket.buffer->data_at(to), static_cast<const char*>(source.const_data_ptr()) + from * nbytes,
                        static_cast<std::size_t>(part.numel() * nbytes));
    return;
  }
  const at::Tensor flat = source.as_strided({part.numel()}, {1}, source.storage_offset() + from);
  const at::Tensor place = bucket.buffer->view(to, part.numel());
  if (is_elsewhere) {
    copy_from_device(bucket, flat, place, add_to);
  } else if (add_to) {
    place.add_(flat.to(place.scalar_type()));
  } else {
    place.copy_(flat);
  }
}

void GradientReducer::copy_from_device(Bucket& bucket, const at::Tensor& part, const at::Tensor& place, bool add_to) {
  const at::Tensor values = part.to(place.scalar_type());
  if (add_to) {
    wait_for_copies(bucket);
    place.add_(values.to(place.device()));
    return;
  }
  from_device_->wait_for_caller();
  from_device_->copy(place, values);
  if (!bucket.arrived) bucket.arrived.emplace(from_device_->make_event());
  from_device_->mark(*bucket.arrived);
  bucket.coming.push_back(values);  // its memory is not used again until it has been read
}

void GradientReducer::wait_for_copies(Bucket& bucket) {
  if (bucket.coming.empty()) return;
  Stopwatch watch(timeline_, &StepBreakdown::gradient_copy, model_.units[bucket.unit].name);
  bucket.arrived->synchronize();
  bucket.coming.clear();
}

void GradientReducer::post_arrived(bool all) {
  while (!on_their_way_.empty()) {
    Bucket& bucket = buckets_[on_their_way_.front()];
    if (!all && !bucket.arrived->query()) return;  // nor are those after it
    wait_for_copies(bucket);
    on_their_way_.erase(on_their_way_.begin());
    post(bucket);
  }
}

void GradientReducer::send(Bucket& bucket) {
  const int index = index_of(bucket);
  if (!options_.keeps_sums) {
    // From here on its owner may change it: autograd refuses a graph that still needs the old values. What is frozen
    // for now stays as it is, and graphs need it on.
    for (const int p : schedule_.parameters(index)) {
      const at::Tensor& parameter = model_.parameters[p].tensor;
      if (parameter.requires_grad()) intercept::bump_version(parameter);
    }
  }
  window_is_empty_ = false;
  schedule_.send(index);
  ++reductions_;
  if (bucket.coming.empty()) return post(bucket);
  on_their_way_.push_back(index);
  if (!options_.overlap) post_arrived(/*all=*/true);
}

void GradientReducer::post(Bucket& bucket) {
  const int index = index_of(bucket);
  if (!board_) {
    pack(bucket);
    const void* mine = bucket.sent_buffer->data();
    reduce(bucket, {&mine, 1});
    retire(bucket);
    return;
  }
  if (bucket.work.valid()) {  // at the end of a micro-batch, where all ranks send all rounds
    Stopwatch watch(timeline_, &StepBreakdown::wait, model_.units[bucket.unit].name);
    bucket.work.wait();
    retire(bucket);
  }
  pack(bucket);
  count_received(bucket);
  bucket.work = board_->post(index, bucket.sent_buffer->data());
  sent_.push_back(index);
  // Without overlap backward waits for each, as long as the others send theirs.
  while (!options_.overlap && !sent_.empty() && wait_a_while(buckets_[sent_.front()])) {
    retire(buckets_[sent_.front()]);
  }
  retire_complete();
}

void GradientReducer::count_received(const Bucket& bucket) {
  const int ranks = model_.group_of(bucket.unit).ranks.size();
  std::int64_t numel = (ranks - 1) * mine_of(bucket).numel();
  if (board_->sums_on_hosts()) {
    const int per_host = wire_->host_sums().ranks;
    const std::int64_t sums = (ranks / per_host - 1) * mine_of(bucket).numel();
    host_sums_numel_ += sums;
    numel = 0;
    for (int owner = model_.rank() % per_host; owner < ranks; owner += per_host)
      numel += (per_host - 1) * bucket.counts[static_cast<std::size_t>(owner)];
  }
  reduced_numel_ += numel;
}

void GradientReducer::reduce(Bucket& bucket, std::span<const void* const> slices) {
  const Range mine = mine_of(bucket);
  const bool first = std::exchange(bucket.fresh, false);
  if (!first) widen_sums();
  if (sums_ && !mine.empty()) sums_->take(bucket.unit);
  if (mine.empty()) return;
  if (!options_.keeps_sums && options_.sums_are_gradients) {
    add_slices(bucket, mine, {bucket.sent_buffer->data(), model_.gradient_dtype}, {}, /*first=*/false);
    listener_->gradients_ready(bucket.unit, mine, bucket.sent_buffer->view(0, mine.numel()));
    return;
  }
  if (!options_.keeps_sums) {
    add_slices(bucket, mine, {piece_.data(), piece_.dtype()}, slices, first);
    listener_->gradients_ready(bucket.unit, mine, piece_.view(0, mine.numel()));
    return;
  }
  listener_->gradients_change(bucket.unit);
  const bool is_there = bucket.sent_buffer == &bucket.in_sums;
  sums_->visit(bucket.unit, mine, GradientSums::Access::kUpdate, [&](Range piece, Sums sums) {
    is_there ? add_slices(bucket, piece, sums, {}, /*first=*/false) : add_slices(bucket, piece, sums, slices, first);
  });
  if (makes_sumsq_) listener_->gradients_ready(bucket.unit, mine, {});
}

Range GradientReducer::mine_of(const Bucket& bucket) const {
  return layout::intersect(bucket.range, model_.shard_of(bucket.unit));
}

double* GradientReducer::block_sumsq_at(const Bucket& bucket, std::int64_t begin) {
  const at::Tensor& all = device_sumsq_.defined() ? device_sumsq_ : block_sumsq_;
  return all.mutable_data_ptr<double>() + bucket.block_offset + (begin - mine_of(bucket).begin) / kBlockNumel;
}

void GradientReducer::add_slices(const Bucket& bucket, Range piece, Sums sums, std::span<const void* const> slices,
                                 bool first) {
  Stopwatch watch(timeline_, &StepBreakdown::reduce, model_.units[bucket.unit].name);
  const optim::ReduceArgs args{.accumulator = sums.data,
                               .slices = slices,
                               .dtype = model_.gradient_dtype,
                               .numel = piece.numel(),
                               .first = first,
                               // The norm is that of the whole sum.
                               .block_sumsq = makes_sumsq_ ? block_sumsq_at(bucket, piece.begin) : nullptr,
                               .accumulator_dtype = sums.dtype};
  wire_->reduce(args, piece.begin - mine_of(bucket).begin);
}

void GradientReducer::add_rows(int parameter, std::span<const RowGradients::RankRows> in_order) {
  const auto& target = model_.parameters[parameter];
  Stopwatch watch(timeline_, &StepBreakdown::reduce, target.name);
  window_is_empty_ = false;
  const std::int64_t columns = target.tensor.size(1);
  for (const auto place : places_[parameter]) {
    Bucket& bucket = buckets_[place.bucket];
    const bool first = std::exchange(bucket.fresh, false);
    const Range mine = mine_of(bucket);
    if (mine.empty()) continue;
    if (!first || in_order.size() > 1) widen_sums();  // else every element gets one value
    sums_->take(bucket.unit);
    listener_->gradients_change(bucket.unit);
    sums_->visit(bucket.unit, mine, GradientSums::Access::kUpdate, [&](Range piece, Sums all) {
      const at::Tensor kept = model_.view(all.data, all.dtype, piece.numel());
      if (first) kept.zero_();
      const at::Tensor wide = kept.to(at::kFloat);  // itself where it is fp32
      float* const sums = wide.mutable_data_ptr<float>();
      for (const auto& [rows, values] : in_order) {
        for (std::size_t i = 0; i < rows.size(); ++i) {
          const std::int64_t begin = target.range.begin + rows[i] * columns;
          const Range part = layout::intersect({begin, begin + columns}, piece);
          if (part.empty()) continue;
          const std::int64_t from = static_cast<std::int64_t>(i) * columns + (part.begin - begin);
          add_low_values(model_.gradient_dtype, values, from, part.numel(), sums + (part.begin - piece.begin));
        }
        if (wide.is_same(kept)) continue;
        kept.copy_(wide);  // rounded after every rank, as dense ones are
        wide.copy_(kept);
      }
      if (makes_sumsq_)
        model_.passes->block_sumsq(all.data, all.dtype, piece.numel(), block_sumsq_at(bucket, piece.begin));
    });
  }
}

void GradientReducer::retire(Bucket& bucket) {
  bucket.work = {};
  std::erase(sent_, index_of(bucket));
  if (!wire_->release(bucket.sent_buffer) && pool_ && bucket.sent_buffer != &bucket.in_sums)
    pool_->give_back(bucket.sent_buffer);
  bucket.sent_buffer = nullptr;
}

void GradientReducer::quiesce() {
  post_arrived(/*all=*/true);
  while (!sent_.empty()) {
    Bucket& bucket = buckets_[sent_.front()];
    {
      Stopwatch watch(timeline_, &StepBreakdown::wait, model_.units[bucket.unit].name);
      bucket.work.wait();
    }
    retire(bucket);
  }
}

void GradientReducer::retire_complete() {
  for (std::size_t i = 0; i < sent_.size();) {
    Bucket& bucket = buckets_[sent_[i]];
    if (bucket.work.test()) {
      retire(bucket);
    } else {
      ++i;
    }
  }
}

void GradientReducer::zero_missing(Bucket& bucket) {
  const int index = index_of(bucket);
  if (!schedule_.open(index)) {
    open(bucket);
    bucket.buffer->view(0, bucket.range.numel()).zero_();
    return;
  }
  const auto& parameters = schedule_.parameters(index);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (schedule_.has(index, static_cast<int>(i))) continue;
    const Range part = layout::intersect(model_.parameters[parameters[i]].range, bucket.range);
    bucket.buffer->view(part.begin - bucket.range.begin, part.numel()).zero_();
  }
}

const MicroBatchAgreement& GradientReducer::flush(std::string_view label, MicroBatchAgreement::Facts facts) {
  follow_streams();
  begin_micro_batch();
  facts.rounds = micro_batch_has_gradients() ? schedule_.most_rounds_wanted() : 0;
  if (routed_) facts.flags |= MicroBatchAgreement::kRouted;
  if (!window_is_empty_) facts.flags |= MicroBatchAgreement::kWindowStarted;
  if (rows_ && rows_->active()) facts.flags |= MicroBatchAgreement::kRows;
  agreement_.reach(model_.data_ranks, label, facts, used_);
  agreed_routed_ = agreed_routed_ || (agreement_.facts().flags & MicroBatchAgreement::kRouted);
  if (agreed_routed_) routed_ = true;
  for (std::size_t p = 0; p < used_.size(); ++p) {
    window_used_[p] |= agreement_.used(p);
    if (agreement_.used(p) != (used_[p] != 0)) routed_ = true;  // the others hear of it next time
  }
  const bool has_rows = agreement_.facts().flags & MicroBatchAgreement::kRows;
  std::int64_t rounds = agreement_.facts().rounds;
  if (has_rows) {
    const auto agreed = rows_->agree([this](int p) { return is_in_buckets(p); }, schedule_.most_rounds_wanted(),
                                     [this](int p, const at::Tensor& gradient) { add_dense(p, gradient); });
    // Ranks that sent a table's buckets wait for those that send them only now.
    routed_ |= agreed.mixed;
    rounds = std::max(rounds, agreed.rounds);
  }
  if (rounds > 0) even_out(rounds);
  if (has_rows) {
    rows_->exchange([this](int p, std::span<const RowGradients::RankRows> in_order) { add_rows(p, in_order); });
  }
  return agreement_;
}

void GradientReducer::even_out(std::int64_t most_rounds) {
  std::vector<std::int64_t> wanted;  // by bucket, where ranks had several backwards
  if (most_rounds > 1) {
    for (int b = 0; b < schedule_.size(); ++b) wanted.push_back(schedule_.rounds_wanted(b));
    if (model_.world_size() > 1) {
      model_.data_ranks
          .all_reduce(wanted.data(), static_cast<std::int64_t>(wanted.size()), DType::kInt64, ReduceOp::kMax,
                      {.label = "rounds of buckets"})
          .wait();
    }
  }
  // Round by round: a transport may want all parcels of one before the next (device/nccl_transport.h).
  for (std::int64_t round = 1; round <= most_rounds; ++round) {
    for (auto& bucket : buckets_) {
      const int index = index_of(bucket);
      const auto& parameters = schedule_.parameters(index);
      if (rows_ && !parameters.empty() && rows_->goes_as_rows(parameters.front())) continue;
      const std::int64_t rounds = wanted.empty() ? 1 : wanted[index];
      if (round > rounds || schedule_.rounds(index) >= round) continue;
      zero_missing(bucket);
      send(bucket);
    }
  }
  quiesce();
}

const MicroBatchAgreement& GradientReducer::finish_micro_batch(MicroBatchAgreement::Facts facts, bool may_be_none) {
  flush("end of micro-batch", facts);
  unused_.clear();
  if (agreement_.facts().rounds == 0) {
    if (may_be_none) return agreement_;
    even_out(1);
  }
  schedule_.end_micro_batch();
  ++micro_batch_;
  if (rows_) rows_->end_micro_batch();
  adjust_patience();
  for (std::size_t p = 0; p < used_.size(); ++p) {
    const int parameter = static_cast<int>(p);
    if (!agreement_.used(p) && !places_[p].empty() && expected(parameter)) unused_.push_back(parameter);
    used_[p] = 0;
  }
  used_in_backward_.clear();
  sumsq_complete_ = makes_sumsq_;
  return agreement_;
}

void GradientReducer::drop_window() {
  flush("zero_grad (where a module's or an optimizer's is seen on some ranks only, call the engine's)");
  schedule_.end_micro_batch();
  if (rows_) rows_->end_micro_batch();
  std::fill(used_.begin(), used_.end(), 0);
  used_in_backward_.clear();
  start_window();
}

}  // namespace zero::sharding
