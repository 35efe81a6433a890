#include "zero/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "intercept/gradient_hook.h"
#include "optim/device_passes.h"
#include "optim/kernels.h"
#include "zero/errors.h"

namespace zero::sharding {

using layout::kBlockNumel;
using storage::FlatBuffer;

GradientReducer::GradientReducer(ShardedModel& model, storage::Ledger& ledger, StepBreakdown& times,
                                 ReducerOptions options)
    : model_(model),
      times_(times),
      options_(std::move(options)),
      slots_(model.parameters.size()),
      process_(::getpid()) {
  make_buckets();
  const auto make = [this, &ledger](std::int64_t numel) {
    return model_.device.is_cpu() ? FlatBuffer::make_readable(ledger, MemoryKind::kBuckets, model_.low_dtype,
                                                              numel, model_.group)
                                  : FlatBuffer::make_private(ledger, MemoryKind::kBuckets, model_.low_dtype,
                                                             numel, model_.device);
  };
  if (model.sharding.gradients) {
    std::int64_t largest = 0;
    for (const auto& bucket : buckets_) largest = std::max(largest, bucket.range.numel());
    // One being filled, one being read by others, one in between.
    pool_limit_numel_ = (options_.overlap ? 3 : 1) * largest;
    pool_ = std::make_unique<BufferPool>(ledger, MemoryKind::kBuckets, make);
  } else {
    for (auto& bucket : buckets_) own_buffers_.push_back(make(bucket.range.numel()));
  }
  if (!model.sharding.optimizer_states) {
    for (const Unit& unit : model.units)
      unit_counts_.push_back(layout::shard_counts(unit.cuts, unit.whole()));
  }
  if (options_.consume) {
    piece_ = FlatBuffer::make_private(ledger, MemoryKind::kGradients, DType::kFloat32, largest_piece(),
                                      model.device);
  } else {
    sums_.emplace(model_, ledger, sums_numel());
  }
}

GradientReducer::~GradientReducer() {
  // Its finish steps may run in another thread, and would find nothing to add to.
  for (const int index : sent_) finish_or_fail(buckets_[index].work, *buckets_[index].buffer, process_);
}

std::vector<std::int64_t> GradientReducer::sums_numel() const {
  std::vector<std::int64_t> numel(model_.units.size(), 0);
  for (std::size_t u = 0; u < numel.size(); ++u) {
    if (model_.units[u].trainable) numel[u] = gradient_range(static_cast<int>(u)).numel();
  }
  return numel;
}

/// Most elements of this rank in one bucket.
std::int64_t GradientReducer::largest_piece() const {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets_) largest = std::max(largest, bucket.counts[model_.rank()]);
  return largest;
}

void GradientReducer::make_buckets() {
  std::int64_t block_offset = 0;
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    const Unit& unit = model_.units[u];
    if (!unit.trainable) continue;
    for (const Range range : layout::bucket_ranges(unit.numel, options_.bucket_numel)) {
      Bucket bucket;
      bucket.unit = static_cast<int>(u);
      bucket.range = range;
      bucket.counts = layout::shard_counts(unit.cuts, range);
      bucket.block_offset = block_offset;
      block_offset += bucket.counts[model_.rank()] / kBlockNumel;
      std::int64_t filled = range.begin;
      for (int p : unit.parameters) {
        const Range part = layout::intersect(model_.parameters[p].range, range);
        if (part.empty()) continue;
        if (part.begin > filled) bucket.gaps.push_back({filled, part.begin});
        filled = part.end;
        slots_[p].places.push_back(
            {static_cast<int>(buckets_.size()), static_cast<int>(bucket.parameters.size())});
        bucket.parameters.push_back(p);
      }
      if (filled < range.end) bucket.gaps.push_back({filled, range.end});
      bucket.has.assign(bucket.parameters.size(), false);
      buckets_.push_back(std::move(bucket));
    }
  }
  block_sumsq_.assign(block_offset, 0.0);
  fresh_.assign(buckets_.size(), true);
}

Range GradientReducer::gradient_range(int unit) const {
  const Unit& the_unit = model_.units[unit];
  return model_.sharding.optimizer_states ? the_unit.shard(model_.rank()) : the_unit.whole();
}

std::int64_t GradientReducer::shard_blocks(int unit, int rank) const {
  return model_.units[unit].shard(rank).numel() / kBlockNumel;
}

void GradientReducer::add(int parameter, const at::Tensor& gradient) {
  slots_[parameter].used = any_used_ = true;
  for (const auto place : slots_[parameter].places) {
    Bucket& bucket = buckets_[place.bucket];
    if (!bucket.buffer || bucket.work.valid()) open(bucket);
    // A second gradient before the bucket was sent (several backwards in one micro-batch) adds to the first.
    const bool again = bucket.has[place.position];
    copy_in(bucket, parameter, gradient, again);
    if (again) continue;
    bucket.has[place.position] = true;
    if (++bucket.arrived == static_cast<int>(bucket.parameters.size())) send(bucket);
  }
}

void GradientReducer::open(Bucket& bucket) {
  if (bucket.work.valid()) {  // sent before in this micro-batch (a second backward): one round at a time
    Stopwatch watch(times_.wait);
    bucket.work.wait();
    std::erase(sent_, index_of(bucket));
    close(bucket);
  }
  if (!pool_) {
    bucket.buffer = &own_buffers_[index_of(bucket)];
  } else {
    while (!(bucket.buffer = pool_->try_take(bucket.range.numel()))) {
      if (pool_->total_numel() + bucket.range.numel() <= pool_limit_numel_ || sent_.empty()) {
        bucket.buffer = pool_->take(bucket.range.numel());
        break;
      }
      Stopwatch watch(times_.wait);
      Bucket& oldest = buckets_[sent_.front()];
      oldest.work.wait();
      sent_.erase(sent_.begin());
      close(oldest);
    }
  }
  for (const Range gap : bucket.gaps) {
    bucket.buffer->view(gap.begin - bucket.range.begin, gap.numel()).zero_();
  }
}

void GradientReducer::copy_in(Bucket& bucket, int parameter, const at::Tensor& gradient, bool add_to) {
  Stopwatch watch(times_.gradient_copy);
  at::NoGradGuard no_grad;
  const auto& target = model_.parameters[parameter];
  const Range part = layout::intersect(target.range, bucket.range);
  // The flat buffer holds the parameter's elements in the order of its own memory, whatever its strides.
  at::Tensor source = gradient;
  if (source.strides() != target.tensor.strides() || !source.is_non_overlapping_and_dense() ||
      source.scalar_type() != target.tensor.scalar_type() || source.device() != model_.device) {
    source = at::empty_strided(target.tensor.sizes(), target.tensor.strides(),
                               gradient.options().dtype(target.tensor.scalar_type()).device(model_.device));
    source.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
    copied_nbytes_ += static_cast<std::int64_t>(source.nbytes());
  }
  const std::int64_t nbytes = static_cast<std::int64_t>(element_nbytes(model_.low_dtype));
  copied_nbytes_ += part.numel() * nbytes;
  const std::int64_t to = part.begin - bucket.range.begin;
  const std::int64_t from = part.begin - target.range.begin;
  if (model_.device.is_cpu() && !add_to) {
    optim::kernels().copy(bucket.buffer->data_at(to),
                          static_cast<const char*>(source.const_data_ptr()) + from * nbytes,
                          static_cast<std::size_t>(part.numel() * nbytes));
    return;
  }
  const at::Tensor flat = source.as_strided({part.numel()}, {1}, source.storage_offset() + from);
  const at::Tensor slot = bucket.buffer->view(to, part.numel());
  add_to ? slot.add_(flat) : slot.copy_(flat);
}

void GradientReducer::send(Bucket& bucket) {
  const int index = index_of(bucket);
  if (options_.consume) {
    if (bucket.rounds > 0) {
      throw ModelError(
          fmt::format("a second backward before step(): zerotorch.step_in_backward has already updated '{}'",
                      model_.units[bucket.unit].name));
    }
    // From here on its owner may change it: autograd refuses a graph that still needs the old values.
    for (const int p : bucket.parameters) intercept::bump_version(model_.parameters[p].tensor);
  }
  window_is_empty_ = false;
  bucket.arrived = 0;
  bucket.has.assign(bucket.parameters.size(), false);
  ++bucket.rounds;
  ++reductions_;
  if (model_.world_size() == 1) {
    const void* mine = bucket.buffer->data();
    reduce(bucket, {&mine, 1});
    close(bucket);
    return;
  }
  reduced_numel_ += (model_.world_size() - 1) * bucket.counts[model_.rank()];
  bucket.work = model_.group.exchange(
      bucket.buffer->data(), bucket.counts, model_.low_dtype,
      [this, index](std::span<const void* const> slices) { reduce(buckets_[index], slices); },
      {.label = model_.units[bucket.unit].name});
  sent_.push_back(index);
  drain(/*wait_for_all=*/!options_.overlap);
}

void GradientReducer::reduce(Bucket& bucket, std::span<const void* const> slices) {
  const int index = index_of(bucket);
  const Unit& unit = model_.units[bucket.unit];
  const Range mine = layout::intersect(bucket.range, unit.shard(model_.rank()));
  if (sums_ && !mine.empty()) sums_->take(bucket.unit);
  const bool first = fresh_[index];
  fresh_[index] = false;
  if (mine.empty()) return;
  if (options_.consume) {
    add_slices(bucket, mine, piece_.data_as<float>(), slices, first);
    options_.consume(bucket.unit, mine, piece_.view(0, mine.numel()));
    return;
  }
  float* const sums = sums_->data(bucket.unit) + (mine.begin - gradient_range(bucket.unit).begin);
  add_slices(bucket, mine, sums, slices, first);
}

void GradientReducer::add_slices(Bucket& bucket, Range mine, float* sums, std::span<const void* const> slices,
                                 bool first) {
  Stopwatch watch(times_.reduce);
  // The norm is that of the whole sum.
  const bool last = finished_micro_batches_ + 1 >= options_.micro_batches;
  double* squares = last ? block_sumsq_.data() + bucket.block_offset : nullptr;
  if (model_.device.is_cpu()) {
    optim::kernels().reduce({.accumulator = sums,
                             .slices = slices,
                             .dtype = model_.low_dtype,
                             .numel = mine.numel(),
                             .first = first,
                             .block_sumsq = squares});
    return;
  }
  const at::Tensor slice = bucket.buffer->view(mine.begin - bucket.range.begin, mine.numel());
  const at::Tensor accumulator =
      at::from_blob(sums, {mine.numel()}, at::TensorOptions().dtype(at::kFloat).device(model_.device));
  optim::reduce_on_device(accumulator, {&slice, 1}, first);
  if (squares) optim::block_sumsq_on_device(accumulator, squares);
}

void GradientReducer::close(Bucket& bucket) {
  bucket.work = {};
  if (pool_) pool_->give_back(bucket.buffer);
  bucket.buffer = nullptr;
}

void GradientReducer::drain(bool wait_for_all) {
  while (!sent_.empty()) {
    Bucket& oldest = buckets_[sent_.front()];
    if (wait_for_all) {
      Stopwatch watch(times_.wait);
      oldest.work.wait();
    } else if (!oldest.work.test()) {
      return;
    }
    sent_.erase(sent_.begin());
    close(oldest);
  }
}

void GradientReducer::zero_missing(Bucket& bucket) {
  if (!bucket.buffer) {
    open(bucket);
    bucket.buffer->view(0, bucket.range.numel()).zero_();
    return;
  }
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    if (bucket.has[i]) continue;
    const Range part = layout::intersect(model_.parameters[bucket.parameters[i]].range, bucket.range);
    bucket.buffer->view(part.begin - bucket.range.begin, part.numel()).zero_();
  }
}

void GradientReducer::flush() {
  for (auto& bucket : buckets_) {
    const bool is_open = bucket.buffer && !bucket.work.valid();
    if (bucket.rounds > 0 && !is_open) continue;
    zero_missing(bucket);
    send(bucket);
  }
  drain(/*wait_for_all=*/true);
}

void GradientReducer::finish_micro_batch() {
  flush();
  for (auto& bucket : buckets_) bucket.rounds = 0;
  unused_.clear();
  for (std::size_t p = 0; p < slots_.size(); ++p) {
    if (!slots_[p].used && !slots_[p].places.empty()) unused_.push_back(static_cast<int>(p));
    slots_[p].used = false;
  }
  any_used_ = false;
  ++finished_micro_batches_;
}

void GradientReducer::replicate() {
  if (model_.sharding.optimizer_states || model_.world_size() == 1) return;
  Stopwatch watch(times_.publish);
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    const Unit& unit = model_.units[u];
    if (!unit.trainable) continue;
    const Range mine = unit.shard(model_.rank());
    float* whole = accumulator(static_cast<int>(u));
    model_.group
        .all_gather(whole + mine.begin, whole, unit_counts_[u], DType::kFloat32,
                    {.label = unit.name, .input_stable_until_barrier = true})
        .wait();
    published_numel_ += unit.numel - mine.numel();
  }
}

void GradientReducer::start_window() {
  if (sums_) sums_->release();
  fresh_.assign(buckets_.size(), true);
  finished_micro_batches_ = 0;
  window_is_empty_ = true;
}

void GradientReducer::resume_window(std::int64_t micro_batches) {
  for (std::size_t u = 0; sums_ && u < model_.units.size(); ++u) {
    sums_->take(static_cast<int>(u));
    sums_->view(static_cast<int>(u)).zero_();
  }
  fresh_.assign(buckets_.size(), false);
  finished_micro_batches_ = micro_batches;
  window_is_empty_ = false;
}

}  // namespace zero::sharding
