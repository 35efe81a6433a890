#include "zero/sharded_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "optim/device_passes.h"
#include "zero/gradient_reducer.h"

namespace zero::sharding {

using storage::FlatBuffer;

ShardedOptimizer::ShardedOptimizer(ShardedModel& model, ParameterStore& store, storage::Ledger& ledger,
                                   OptimizerOptions options)
    : model_(model),
      store_(store),
      options_(std::move(options)),
      ledger_(ledger),
      places_(model.units.size()),
      masters_(choose_masters()),
      steps_(model.parameters.size(), 0) {
  std::vector<int> trainable;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    if (model.units[u].trainable) trainable.push_back(static_cast<int>(u));
  }
  make_chunk(trainable);
}

void ShardedOptimizer::make_chunk(std::span<const int> units) {
  Chunk& chunk = *chunks_.emplace_back(std::make_unique<Chunk>());
  std::int64_t total = 0;
  for (const int u : units) {
    places_[u] = {&chunk, total};
    total += update_range(u).numel();
  }
  const auto make = [&](MemoryKind kind, DType dtype) {
    return FlatBuffer::make_private(ledger_, kind, dtype, total, model_.device);
  };
  if (masters_ == Masters::kFloat) chunk.master = make(MemoryKind::kMaster, DType::kFloat32);
  if (masters_ == Masters::kRemainders) chunk.master = make(MemoryKind::kMaster, DType::kBFloat16);
  chunk.exp_avg = make(MemoryKind::kOptimizer, DType::kFloat32);
  chunk.exp_avg_sq = make(MemoryKind::kOptimizer, DType::kFloat32);
}

void ShardedOptimizer::add_units(std::span<const int> units) {
  make_chunk(units);
  at::NoGradGuard no_grad;
  store_.pin(units);  // on every rank, though each chooses how it keeps masters
  for (const int u : units) {
    if (masters_ != Masters::kFloat) break;  // fresh remainders of zero are the parameters themselves
    const Range updated = update_range(u);
    if (!updated.empty()) {
      state_view(&Chunk::master, u, updated)
          .copy_(store_.pinned_view(u).narrow(0, updated.begin, updated.numel()));
    }
  }
  store_.unpin(units);
}

ShardedOptimizer::Masters ShardedOptimizer::choose_masters() const {
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    // Frozen units too: they may be unfrozen.
    const Range updated = update_range(static_cast<int>(u)),
                written = store_.writable_range(static_cast<int>(u));
    // Elements that another rank writes for all cannot be the master of this rank.
    if (layout::intersect(updated, written) != updated) return Masters::kFloat;
    // fp32 parameters of which it writes more than it updates are updated by others.
    if (model_.low_dtype == DType::kFloat32 && updated != written) return Masters::kFloat;
  }
  if (model_.low_dtype == DType::kFloat32) return Masters::kParameters;
  const bool can_split = model_.low_dtype == DType::kBFloat16 && model_.device.is_cpu();
  return can_split ? Masters::kRemainders : Masters::kFloat;
}

Range ShardedOptimizer::update_range(int unit) const {
  const Unit& the_unit = model_.units[unit];
  return model_.sharding.optimizer_states ? the_unit.shard(model_.rank()) : the_unit.whole();
}

template <class Run>
void ShardedOptimizer::for_each_run(int unit, Range range, Run run) const {
  const Unit& the_unit = model_.units[unit];
  Range whole{range.begin, range.begin};  // of the run so far
  int group = -1;
  std::int64_t steps = 0;
  const auto finish = [&] {
    if (!whole.empty() && group >= 0) run(whole, group, steps);
  };
  for (std::size_t i = 0; i < the_unit.parameters.size(); ++i) {
    const int p = the_unit.parameters[i];
    // Padding goes with the parameter before it: its gradient is zero and stays so.
    const bool last = i + 1 == the_unit.parameters.size();
    const std::int64_t end =
        last ? the_unit.numel : model_.parameters[the_unit.parameters[i + 1]].range.begin;
    const Range part = layout::intersect({model_.parameters[p].range.begin, end}, range);
    if (part.empty()) continue;
    const int its_group = !is_active_ || is_active_(p) ? options_.group_of_parameter[p] : -1;
    if (its_group == group && steps_[p] == steps && whole.end == part.begin) {
      whole.end = part.end;
      continue;
    }
    finish();
    whole = part;
    group = its_group;
    steps = steps_[p];
  }
  finish();
}

void ShardedOptimizer::load(int unit, const at::Tensor& whole) {
  load_range(unit, model_.units[unit].whole(), whole);
}

void ShardedOptimizer::load_range(int unit, Range range, const at::Tensor& values) {
  at::NoGradGuard no_grad;
  const auto part_of = [&](Range part) { return values.narrow(0, part.begin - range.begin, part.numel()); };
  const Range written = store_.writable_range(unit);
  if (const Range part = layout::intersect(written, range); !part.empty()) {
    round_to_low(part_of(part),
                 store_.writable_view(unit).narrow(0, part.begin - written.begin, part.numel()));
  }
  if (!model_.units[unit].trainable || masters_ == Masters::kParameters) return;
  const Range updated = layout::intersect(update_range(unit), range);
  if (updated.empty()) return;
  if (masters_ == Masters::kFloat) {
    state_view(&Chunk::master, unit, updated).copy_(part_of(updated));
    return;
  }
  const at::Tensor masters = part_of(updated).to(at::kFloat).contiguous();
  optim::kernels().split_master(masters.const_data_ptr<float>(), low_bits(unit, updated),
                                remainder_bits(unit, updated), updated.numel());
}

void ShardedOptimizer::round_to_low(const at::Tensor& values, at::Tensor low) const {
  if (model_.low_dtype != DType::kBFloat16 || !model_.device.is_cpu()) {
    low.copy_(values);
    return;
  }
  const at::Tensor masters = values.to(at::kFloat).contiguous();
  optim::kernels().round_master(masters.const_data_ptr<float>(),
                                static_cast<std::uint16_t*>(low.mutable_data_ptr()), low.numel());
}

void ShardedOptimizer::update(const GradientReducer& reducer, const std::vector<double>& lr,
                              double gradient_scale) {
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    if (!model_.units[u].trainable || update_range(static_cast<int>(u)).empty()) continue;
    const int unit = static_cast<int>(u);
    if (model_.device.is_cpu()) {
      update_on_host(unit, update_range(unit), reducer.accumulator(unit), lr, gradient_scale);
    } else {
      update_on_device(unit, update_range(unit), reducer.accumulated(unit), lr, gradient_scale);
    }
  }
  end_step();
}

void ShardedOptimizer::update_part(int unit, Range range, const at::Tensor& gradient,
                                   const std::vector<double>& lr, double gradient_scale) {
  if (model_.device.is_cpu()) {
    update_on_host(unit, range, gradient.const_data_ptr<float>(), lr, gradient_scale);
  } else {
    update_on_device(unit, range, gradient, lr, gradient_scale);
  }
}

void ShardedOptimizer::end_step() {
  for (std::size_t p = 0; p < steps_.size(); ++p) {
    const bool trainable = model_.units[model_.parameters[p].unit].trainable;
    if (trainable && (!is_active_ || is_active_(static_cast<int>(p)))) ++steps_[p];
  }
}

std::int64_t ShardedOptimizer::steps() const {
  return steps_.empty() ? 0 : *std::max_element(steps_.begin(), steps_.end());
}

template <class Update>
void ShardedOptimizer::for_each_piece(int unit, Range range, const std::vector<double>& lr,
                                      double gradient_scale, Update update) const {
  const Range updated = update_range(unit), written = store_.writable_range(unit);
  for_each_run(unit, range, [&](Range part, int group, std::int64_t steps) {
    optim::AdamHyper hyper = options_.groups[group].hyper;
    hyper.lr = lr[group];
    hyper.step = steps + 1;
    hyper.gradient_scale = gradient_scale;
    for (std::int64_t begin = part.begin; begin < part.end; begin += options_.sub_group_numel) {
      const Range piece{begin, std::min(part.end, begin + options_.sub_group_numel)};
      // Ranges this rank updates for itself only are run without the low-precision output.
      const Range before = layout::intersect(piece, {updated.begin, written.begin});
      const Range inside = layout::intersect(piece, written);
      const Range after = layout::intersect(piece, {written.end, updated.end});
      if (!before.empty()) update(before, false, hyper);
      if (!inside.empty()) update(inside, true, hyper);
      if (!after.empty()) update(after, false, hyper);
    }
  });
}

void ShardedOptimizer::update_on_host(int unit, Range range, const float* gradient,
                                      const std::vector<double>& lr, double gradient_scale) {
  const std::int64_t written_begin = store_.writable_range(unit).begin;
  const std::int64_t low_nbytes = static_cast<std::int64_t>(element_nbytes(model_.low_dtype));
  const auto state = [&](Buffer buffer, Range piece) { return state_data<float>(buffer, unit, piece); };
  for_each_piece(
      unit, range, lr, gradient_scale, [&](Range piece, bool writes, const optim::AdamHyper& hyper) {
        char* const low =
            writes ? static_cast<char*>(store_.writable(unit)) + (piece.begin - written_begin) * low_nbytes
                   : nullptr;
        const bool split = masters_ == Masters::kRemainders;
        float* const master = split                              ? nullptr
                              : masters_ == Masters::kParameters ? reinterpret_cast<float*>(low)
                                                                 : state(&Chunk::master, piece);
        const bool writes_low = writes && masters_ != Masters::kParameters;
        const bool low_is_bf16 = model_.low_dtype == DType::kBFloat16;
        optim::kernels().adam({.master = master,
                               .remainder = split ? remainder_bits(unit, piece) : nullptr,
                               .exp_avg = state(&Chunk::exp_avg, piece),
                               .exp_avg_sq = state(&Chunk::exp_avg_sq, piece),
                               .gradient = gradient + (piece.begin - range.begin),
                               .low = writes_low && low_is_bf16 ? low : nullptr,
                               .numel = piece.numel()},
                              hyper);
        if (writes_low && !low_is_bf16) std::memcpy(low, master, static_cast<std::size_t>(piece.numel()) * 4);
      });
}

void ShardedOptimizer::update_on_device(int unit, Range range, const at::Tensor& gradient,
                                        const std::vector<double>& lr, double gradient_scale) {
  const Range written = store_.writable_range(unit);
  for_each_piece(
      unit, range, lr, gradient_scale, [&](Range piece, bool writes, const optim::AdamHyper& hyper) {
        const at::Tensor low =
            writes ? store_.writable_view(unit).narrow(0, piece.begin - written.begin, piece.numel())
                   : at::Tensor();
        const at::Tensor master =
            masters_ == Masters::kParameters ? low : state_view(&Chunk::master, unit, piece);
        optim::adam_on_device(master, state_view(&Chunk::exp_avg, unit, piece),
                              state_view(&Chunk::exp_avg_sq, unit, piece),
                              gradient.narrow(0, piece.begin - range.begin, piece.numel()),
                              masters_ == Masters::kParameters ? at::Tensor() : low, hyper);
      });
}

at::Tensor ShardedOptimizer::low_values(int unit, Range range) const {
  const Range part = layout::intersect(update_range(unit), range);
  if (!model_.units[unit].trainable || masters_ == Masters::kParameters || part.empty()) return at::Tensor();
  return store_.pinned_view(unit).narrow(0, part.begin, part.numel()).clone();
}

void ShardedOptimizer::refresh(int unit, Range range, const at::Tensor& before) {
  if (!before.defined()) return;
  at::NoGradGuard no_grad;
  const Range part = layout::intersect(update_range(unit), range);
  const at::Tensor low = store_.pinned_view(unit).narrow(0, part.begin, part.numel());
  const at::Tensor same = low.eq(before);
  if (masters_ == Masters::kFloat) {
    const at::Tensor master = state_view(&Chunk::master, unit, part);
    master.copy_(at::where(same, master, low.to(at::kFloat)));
    return;
  }
  std::uint16_t* remainder = remainder_bits(unit, part);
  const bool* kept = same.const_data_ptr<bool>();
  for (std::int64_t i = 0; i < part.numel(); ++i) remainder[i] = kept[i] ? remainder[i] : 0;
}

void ShardedOptimizer::low_from_master(int unit) {
  if (!model_.units[unit].trainable || masters_ != Masters::kFloat) return;
  at::NoGradGuard no_grad;
  const Range written = store_.writable_range(unit);
  const Range part = layout::intersect(update_range(unit), written);
  if (part.empty()) return;
  round_to_low(state_view(&Chunk::master, unit, part),
               store_.writable_view(unit).narrow(0, part.begin - written.begin, part.numel()));
}

std::uint16_t* ShardedOptimizer::low_bits(int unit, Range range) const {
  return static_cast<std::uint16_t*>(store_.writable(unit)) +
         (range.begin - store_.writable_range(unit).begin);
}

std::uint16_t* ShardedOptimizer::remainder_bits(int unit, Range range) const {
  return state_data<std::uint16_t>(&Chunk::master, unit, range);
}

template <class T>
T* ShardedOptimizer::state_data(Buffer buffer, int unit, Range range) const {
  const Place& place = places_[unit];
  return static_cast<T*>(
      (place.chunk->*buffer).data_at(place.offset + range.begin - update_range(unit).begin));
}

at::Tensor ShardedOptimizer::state_view(Buffer buffer, int unit, Range range) const {
  const Range updated = update_range(unit);
  ZERO_CHECK(range.begin >= updated.begin && range.end <= updated.end);
  const Place& place = places_[unit];
  return (place.chunk->*buffer).view(place.offset + range.begin - updated.begin, range.numel());
}

at::Tensor ShardedOptimizer::master_view(int unit, Range range) const {
  const Range part = layout::intersect(range, update_range(unit));
  if (part.empty() || masters_ == Masters::kRemainders) return at::Tensor();
  if (masters_ == Masters::kFloat) return state_view(&Chunk::master, unit, part);
  return store_.writable_view(unit).narrow(0, part.begin - store_.writable_range(unit).begin, part.numel());
}

at::Tensor ShardedOptimizer::master_values(int unit, Range range) const {
  if (range.empty() || masters_ != Masters::kRemainders) return master_view(unit, range);
  at::Tensor values = at::empty({range.numel()}, at::TensorOptions().dtype(at::kFloat));
  copy_master(unit, range, values.mutable_data_ptr<float>());
  return values;
}

void ShardedOptimizer::copy_master(int unit, Range range, float* out) const {
  ZERO_CHECK(masters_ == Masters::kRemainders);
  optim::kernels().join_master(low_bits(unit, range), remainder_bits(unit, range), out, range.numel());
}

at::Tensor ShardedOptimizer::exp_avg_view(int unit, Range range) const {
  const Range part = layout::intersect(range, update_range(unit));
  return part.empty() ? at::Tensor() : state_view(&Chunk::exp_avg, unit, part);
}

at::Tensor ShardedOptimizer::exp_avg_sq_view(int unit, Range range) const {
  const Range part = layout::intersect(range, update_range(unit));
  return part.empty() ? at::Tensor() : state_view(&Chunk::exp_avg_sq, unit, part);
}

}  // namespace zero::sharding
