#include "zero/sharded_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "zero/gradient_reducer.h"

namespace zero::sharding {

using Access = storage::StateStore::Access;

ShardedOptimizer::ShardedOptimizer(ShardedModel& model, ParameterStore& store, storage::Ledger& ledger,
                                   OptimizerOptions options)
    : model_(model),
      store_(store),
      options_(std::move(options)),
      masters_(choose_masters()),
      states_(storage::make_memory_states(model.home, ledger, columns())),
      steps_(model.parameters.size(), 0) {
  std::vector<int> trainable;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    if (model.units[u].trainable) trainable.push_back(static_cast<int>(u));
  }
  add_states(trainable);
}

std::vector<storage::StateColumn> ShardedOptimizer::columns() const {
  std::vector<storage::StateColumn> columns;
  if (masters_ == Masters::kFloat) columns.push_back({"master", DType::kFloat32, MemoryKind::kMaster});
  if (masters_ == Masters::kRemainders) columns.push_back({"remainder", DType::kBFloat16, MemoryKind::kMaster});
  for (const optim::StateColumn& state : rule().states)
    columns.push_back({std::string(state.name), state.dtype, MemoryKind::kOptimizer});
  return columns;
}

void ShardedOptimizer::add_states(std::span<const int> units) {
  std::vector<storage::StatePart> parts;
  for (const int u : units) parts.push_back({u, update_range(u)});
  states_->add_units(parts);
  for (std::size_t state = 0; state < rule().states.size(); ++state) {
    if (!rule().states[state].initial) continue;
    for (const int u : units) {
      for (const int p : model_.units[u].parameters) {
        const double initial = initial_of(state, p);
        const Range mine = layout::intersect(model_.parameters[p].range, update_range(u));
        if (initial != 0 && !mine.empty()) set_state(state, u, mine, at::full({mine.numel()}, initial, at::kFloat));
      }
    }
  }
}

double ShardedOptimizer::initial_of(std::size_t state, int parameter) const {
  const int group = group_of(parameter);
  return group < 0 ? 0 : rule().states[state].initial_of(options_.groups[group].hyper);
}

void ShardedOptimizer::set_hyper(std::size_t group, const optim::Hyper& hyper) {
  const auto missing = rule().missing_state ? rule().missing_state(hyper) : std::string_view();
  ZERO_CHECK(missing.empty(), "{} keeps no {}, which parameter group {} needs", rule().name, missing, group);
  options_.groups[group].hyper = hyper;
}

void ShardedOptimizer::add_units(std::span<const int> units) {
  add_states(units);
  at::NoGradGuard no_grad;
  store_.pin(units);  // on every rank, though each chooses how it keeps masters
  for (const int u : units) {
    if (masters_ != Masters::kFloat) break;  // fresh remainders of zero are the parameters themselves
    const at::Tensor low = store_.pinned_view(u);
    for_each_piece(u, update_range(u), Access::kUpdate, [&](Range piece, void*, std::span<void* const> columns) {
      view(columns[kMaster], DType::kFloat32, piece.numel()).copy_(low.narrow(0, piece.begin, piece.numel()));
    });
  }
  store_.unpin(units);
}

ShardedOptimizer::Masters ShardedOptimizer::choose_masters() const {
  if (options_.float_masters) return Masters::kFloat;
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    // Frozen units too: they may be unfrozen.
    const Range updated = update_range(static_cast<int>(u)),
                written = store_.writable_range(static_cast<int>(u));
    // Elements that another rank writes for all cannot be the master of this rank.
    if (layout::intersect(updated, written) != updated) return Masters::kFloat;
    // fp32 parameters of which it writes more than it updates are updated by others.
    if (model_.param_dtype == DType::kFloat32 && updated != written) return Masters::kFloat;
  }
  if (model_.param_dtype == DType::kFloat32) return Masters::kParameters;
  const bool can_split = model_.param_dtype == DType::kBFloat16 && model_.passes->splits_masters();
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

template <class Visit>
void ShardedOptimizer::for_each_piece(int unit, Range range, Access access, Visit visit) const {
  const Range written = store_.writable_range(unit);
  const auto visit_piece = [&](Range piece, std::span<void* const> memory) {
    std::array<void*, optim::kMostStates + 1> columns{};
    const auto part = [&](Range of, void* low) {
      for (std::size_t c = 0; c < memory.size(); ++c) {
        const auto nbytes = static_cast<std::int64_t>(element_nbytes(states_->columns()[c].dtype));
        columns[c] = static_cast<char*>(memory[c]) + (of.begin - piece.begin) * nbytes;
      }
      visit(of, low, std::span<void* const>(columns.data(), memory.size()));
    };
    // Ranges this rank updates for itself only have no low-precision values here.
    const Range before = layout::intersect(piece, {piece.begin, written.begin});
    const Range after = layout::intersect(piece, {written.end, piece.end});
    if (!before.empty()) part(before, nullptr);
    store_.update(unit, layout::intersect(piece, written), part);
    if (!after.empty()) part(after, nullptr);
  };
  if (!range.empty()) states_->for_each(unit, range, options_.sub_group_numel, access, visit_piece);
}

void ShardedOptimizer::load(int unit, const at::Tensor& whole) {
  load_range(unit, model_.units[unit].whole(), whole);
}

void ShardedOptimizer::load_range(int unit, Range range, const at::Tensor& values) {
  at::NoGradGuard no_grad;
  const at::Tensor source = values.to(model_.device, at::kFloat).contiguous();
  const auto from = [&](Range part) { return source.const_data_ptr<float>() + (part.begin - range.begin); };
  store_.update(unit, layout::intersect(store_.writable_range(unit), range), [&](Range part, void* low) {
    model_.passes->round(from(part), low, model_.param_dtype, part.numel());
  });
  if (!model_.units[unit].trainable || masters_ == Masters::kParameters) return;
  const Range updated = layout::intersect(update_range(unit), range);
  for_each_piece(unit, updated, Access::kUpdate, [&](Range part, void* low, std::span<void* const> columns) {
    if (masters_ == Masters::kFloat) {
      model_.passes->copy(columns[kMaster], from(part), static_cast<std::size_t>(part.numel()) * sizeof(float));
    } else {
      model_.passes->split(from(part), static_cast<std::uint16_t*>(low), static_cast<std::uint16_t*>(columns[kMaster]),
                           part.numel());
    }
  });
}

void ShardedOptimizer::update(const GradientReducer& reducer, const std::vector<double>& lr,
                              double gradient_scale) {
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    const int unit = static_cast<int>(u);
    if (!model_.units[u].trainable || update_range(unit).empty()) continue;
    update_range_of(unit, update_range(unit), reducer.accumulator(unit), lr, gradient_scale);
  }
  end_step();
}

void ShardedOptimizer::update_part(int unit, Range range, const at::Tensor& gradient,
                                   const std::vector<double>& lr, double gradient_scale) {
  update_range_of(unit, range, gradient.const_data_ptr<float>(), lr, gradient_scale);
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

void ShardedOptimizer::update_range_of(int unit, Range range, const float* gradient, const std::vector<double>& lr,
                                       double gradient_scale) {
  for_each_run(unit, range, [&](Range run, int group, std::int64_t steps) {
    optim::Hyper hyper = options_.groups[group].hyper;
    hyper.lr = lr[group];
    hyper.step = steps + 1;
    hyper.gradient_scale = gradient_scale;
    for_each_piece(unit, run, Access::kUpdate, [&](Range piece, void* low, std::span<void* const> columns) {
      update_piece(piece.numel(), low, columns, gradient + (piece.begin - range.begin), hyper);
    });
  });
}

void ShardedOptimizer::update_piece(std::int64_t numel, void* low, std::span<void* const> columns,
                                    const float* gradient, const optim::Hyper& hyper) const {
  optim::UpdateArgs args{.gradient = gradient, .low = low, .low_dtype = model_.param_dtype, .numel = numel};
  switch (masters_) {
    case Masters::kParameters:
      args.master = static_cast<float*>(std::exchange(args.low, nullptr));
      break;
    case Masters::kRemainders: args.remainder = static_cast<std::uint16_t*>(columns[kMaster]); break;
    case Masters::kFloat: args.master = static_cast<float*>(columns[kMaster]); break;
  }
  std::copy(columns.begin() + static_cast<std::ptrdiff_t>(column_of(0)), columns.end(), args.states.begin());
  model_.passes->update(rule(), args, hyper);
}

at::Tensor ShardedOptimizer::low_values(int unit, Range range) const {
  const Range part = layout::intersect(update_range(unit), range);
  if (!model_.units[unit].trainable || masters_ == Masters::kParameters || part.empty()) return at::Tensor();
  return store_.pinned_view(unit).narrow(0, part.begin, part.numel()).clone();
}

void ShardedOptimizer::refresh(int unit, Range range, const at::Tensor& before) {
  if (!before.defined()) return;
  at::NoGradGuard no_grad;
  const Range whole = layout::intersect(update_range(unit), range);
  const at::Tensor low = store_.pinned_view(unit).narrow(0, whole.begin, whole.numel());
  const at::Tensor same = low.eq(before);
  for_each_piece(unit, whole, Access::kUpdate, [&](Range part, void*, std::span<void* const> columns) {
    const std::int64_t begin = part.begin - whole.begin;
    if (masters_ == Masters::kFloat) {
      const at::Tensor master = view(columns[kMaster], DType::kFloat32, part.numel());
      master.copy_(at::where(same.narrow(0, begin, part.numel()), master,
                             low.narrow(0, begin, part.numel()).to(at::kFloat)));
      return;
    }
    auto* const remainder = static_cast<std::uint16_t*>(columns[kMaster]);
    const bool* const kept = same.const_data_ptr<bool>() + begin;
    for (std::int64_t i = 0; i < part.numel(); ++i) remainder[i] = kept[i] ? remainder[i] : 0;
  });
}

void ShardedOptimizer::low_from_master(int unit) {
  if (!model_.units[unit].trainable || masters_ != Masters::kFloat) return;
  const Range part = layout::intersect(update_range(unit), store_.writable_range(unit));
  for_each_piece(unit, part, Access::kRead, [&](Range piece, void* low, std::span<void* const> columns) {
    model_.passes->round(static_cast<const float*>(columns[kMaster]), low, model_.param_dtype, piece.numel());
  });
}

at::Tensor ShardedOptimizer::view(const void* data, DType dtype, std::int64_t numel) const {
  return at::from_blob(const_cast<void*>(data), {numel},
                       at::TensorOptions().dtype(storage::to_scalar_type(dtype)).device(model_.device));
}

std::optional<std::size_t> ShardedOptimizer::find_state(std::string_view name) const {
  const auto found = std::ranges::find(rule().states, name, &optim::StateColumn::name);
  if (found == rule().states.end()) return std::nullopt;
  return static_cast<std::size_t>(found - rule().states.begin());
}

at::Tensor ShardedOptimizer::state_in_memory(std::size_t state, int unit, Range range) const {
  const Range part = layout::intersect(range, update_range(unit));
  if (part.empty() || rule().states[state].dtype != DType::kFloat32) return at::Tensor();
  const void* const data = states_->in_memory(column_of(state), unit, part);
  return data ? view(data, DType::kFloat32, part.numel()) : at::Tensor();
}

at::Tensor ShardedOptimizer::state_values(std::size_t state, int unit, Range range) const {
  const DType dtype = rule().states[state].dtype;
  const at::Tensor values = at::empty(
      {range.numel()}, at::TensorOptions().dtype(storage::to_scalar_type(dtype)).device(model_.device));
  states_->read(column_of(state), unit, range, values.mutable_data_ptr());
  return values.to(at::kFloat);
}

void ShardedOptimizer::set_state(std::size_t state, int unit, Range range, const at::Tensor& values) {
  const auto type = storage::to_scalar_type(rule().states[state].dtype);
  const at::Tensor source = values.to(model_.device, type).contiguous();
  states_->write(column_of(state), unit, range, source.const_data_ptr());
}

at::Tensor ShardedOptimizer::master_in_memory(int unit, Range range) const {
  const Range part = layout::intersect(range, update_range(unit));
  if (part.empty() || masters_ == Masters::kRemainders) return at::Tensor();
  const void* const data = masters_ == Masters::kFloat ? states_->in_memory(kMaster, unit, part)
                                                       : store_.in_memory(unit, part);
  return data ? view(data, DType::kFloat32, part.numel()) : at::Tensor();
}

at::Tensor ShardedOptimizer::master_values(int unit, Range range) const {
  if (range.empty()) return at::Tensor();
  if (const at::Tensor there = master_in_memory(unit, range); there.defined()) return there;
  at::Tensor values = at::empty({range.numel()}, at::TensorOptions().dtype(at::kFloat).device(model_.device));
  copy_master(unit, range, values.mutable_data_ptr<float>());
  return values;
}

void ShardedOptimizer::copy_master(int unit, Range range, float* out) const {
  for_each_piece(unit, range, Access::kRead, [&](Range piece, void* low, std::span<void* const> columns) {
    float* const to = out + (piece.begin - range.begin);
    const auto nbytes = static_cast<std::size_t>(piece.numel()) * sizeof(float);
    switch (masters_) {
      case Masters::kParameters: model_.passes->copy(to, low, nbytes); break;
      case Masters::kFloat: model_.passes->copy(to, columns[kMaster], nbytes); break;
      case Masters::kRemainders:
        model_.passes->join(static_cast<const std::uint16_t*>(low), static_cast<const std::uint16_t*>(columns[kMaster]),
                            to, piece.numel());
        break;
    }
  });
}

}  // namespace zero::sharding
