#include "sharding/sharded_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "layout/state_slots.h"
#include "optim/kernels.h"
#include "sharding/gradient_reducer.h"
#include "zero/errors.h"

namespace zero::sharding {

using Access = offload::ShardStore::Access;
using optim::format_of;
using optim::StateFormat;

namespace {

std::int64_t nbytes_of(DType dtype) { return static_cast<std::int64_t>(element_nbytes(dtype)); }

std::vector<optim::StateColumn> states_of(std::span<const OptimizerGroup> groups) {
  std::vector<const optim::Rule*> rules;
  for (const OptimizerGroup& group : groups) rules.push_back(group.rule);
  return optim::columns_of(rules);
}

/// `range` and what its last block has besides.
Range whole_blocks(Range range, StateFormat format) {
  return {range.begin, range.begin + layout::round_up(range.numel(), optim::block_numel(format))};
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(ShardedModel& model, ParameterStore& store, storage::Ledger& ledger,
                                   OptimizerOptions options)
    : model_(model),
      store_(store),
      options_(std::move(options)),
      masters_(choose_masters()),
      kept_(states_of(options_.groups)),
      ledger_(ledger),
      steps_(model.parameters.size(), 0),
      noted_{.hyper = {},
             .group = std::vector<int>(model.parameters.size(), -1),
             .steps = std::vector<std::int64_t>(model.parameters.size(), 0)},
      next_low_(options_.updates_late ? model.units.size() : 0) {
  options_.sub_group_numel = layout::round_up(options_.sub_group_numel, layout::kBlockNumel);
  make_states();
  std::vector<int> trainable;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    if (model.units[u].trainable) trainable.push_back(static_cast<int>(u));
  }
  if (has_two_passes()) make_whole_tensors();
  add_states(trainable);
}

void ShardedOptimizer::make_states() {
  std::vector<offload::StoreColumn> columns = this->columns();
  if (std::ranges::find(options_.place.on_device, true) != options_.place.on_device.end()) {
    ZERO_CHECK(!options_.disk && !options_.updates_late && options_.bucket_numel == 0 && !has_two_passes(),
               "states on a device beside what goes without");
    auto twins = offload::make_split_store(model_.home, model_.module_device, ledger_, std::move(columns),
                                           options_.place.on_device);
    twins_ = twins.get();
    states_ = std::move(twins);
    on_device_ = std::make_unique<DeviceUpdates>(model_, ledger_, options_.device_update_numel);
    return;
  }
  // What nobody keeps needs no file.
  if (!options_.disk || columns.empty()) {
    states_ = offload::make_memory_store(model_.home, ledger_, std::move(columns));
    return;
  }
  std::vector<layout::ColumnShape> shapes;
  for (const auto& column : columns) shapes.push_back({column.block_nbytes, column.block_numel});
  offload::DiskOptions options = *options_.disk;
  std::int64_t largest = 0;  // of frozen units too: they may be unfrozen
  for (std::size_t u = 0; u < model_.units.size(); ++u)
    largest = std::max(largest, update_range(static_cast<int>(u)).numel());
  options.cuts = layout::slot_cuts(shapes, options_.sub_group_numel, largest);
  auto states = offload::make_disk_store(options, ledger_, std::move(columns));
  disk_ = states.get();
  states_ = std::move(states);
}

template <class Do>
void ShardedOptimizer::with_names(int unit, Range range, Do act) const {
  try {
    act();
  } catch (const IoError& error) {
    const auto& parameters = model_.units[unit].parameters;
    const auto is_in = [&](int p) { return !layout::intersect(model_.parameters[p].range, range).empty(); };
    const auto first = std::ranges::find_if(parameters, is_in);
    if (first == parameters.end()) throw;
    const auto count = std::ranges::count_if(parameters, is_in);
    throw IoError(fmt::format("optimizer states of '{}'{}: {}", model_.parameters[*first].name,
                              count > 1 ? fmt::format(" and {} more parameters", count - 1) : "", error.what()));
  }
}

void ShardedOptimizer::read_state(std::size_t column, int unit, Range range, void* out) const {
  with_names(unit, range, [&] { states_->read(column, unit, range, out); });
}
void ShardedOptimizer::write_state(std::size_t column, int unit, Range range, const void* in) {
  with_names(unit, range, [&] { states_->write(column, unit, range, in); });
}

void ShardedOptimizer::make_whole_tensors() {
  std::vector<int> whole;
  for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
    const optim::Rule* const rule = rule_of(static_cast<int>(p));
    if (rule && optim::brings_together(*rule)) whole.push_back(static_cast<int>(p));
  }
  whole_ = std::make_unique<WholeTensors>(model_, ledger_, std::move(whole));
  tensor_states_.resize(model_.parameters.size());
}

std::vector<optim::TensorState> ShardedOptimizer::tensor_states(int parameter) const {
  const Parameter& of = model_.parameters[parameter];
  const optim::Rule* const rule = rule_of(parameter);
  if (!rule || !model_.units[of.unit].trainable) return {};
  const auto sizes = of.tensor.sizes();
  return optim::tensor_states(*rule, {sizes.data(), sizes.size()});
}

void ShardedOptimizer::add_tensor_states(std::span<const int> units) {
  if (!whole_) return;
  for (const int u : units) {
    for (const int p : model_.units[u].parameters) {
      for (const optim::TensorState& state : tensor_states(p)) {
        if (tensor_states_owner(p) != model_.rank()) continue;
        tensor_states_[p].push_back(model_.home.make_private(ledger_, MemoryKind::kOptimizer, DType::kFloat32,
                                                             c10::multiply_integers(state.shape)));
      }
    }
  }
}

std::vector<at::Tensor> ShardedOptimizer::held_tensor_states(int parameter) const {
  std::vector<at::Tensor> states;
  const auto all = tensor_states(parameter);
  for (std::size_t i = 0; i < tensor_states_[parameter].size(); ++i) {
    const auto& kept = tensor_states_[parameter][i];
    // A buffer of nothing has no dtype.
    states.push_back(kept.numel() == 0 ? at::empty(all[i].shape, at::TensorOptions(at::kFloat).device(model_.device))
                                       : kept.view(0, kept.numel()).view(all[i].shape));
  }
  return states;
}

at::Tensor ShardedOptimizer::tensor_state(int parameter, std::string_view name) const {
  const auto held = held_tensor_states(parameter);
  const auto all = tensor_states(parameter);
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (all[i].name == name) return held[i];
  }
  return at::Tensor();
}

const optim::Rule* ShardedOptimizer::rule_of(int parameter) const {
  const int group = group_of(parameter);
  return group < 0 ? nullptr : options_.groups[group].rule;
}

bool ShardedOptimizer::has_two_passes() const {
  return std::ranges::any_of(options_.groups, [](const OptimizerGroup& group) { return group.rule->whole != nullptr; });
}

bool ShardedOptimizer::has_state(std::size_t state, int parameter) const {
  const optim::Rule* const rule = rule_of(parameter);
  return rule && std::ranges::find(rule->states, kept_[state].name, &optim::StateColumn::name) != rule->states.end();
}

std::vector<offload::StoreColumn> ShardedOptimizer::columns() const {
  std::vector<offload::StoreColumn> columns;
  if (masters_ != Masters::kParameters) {
    columns.push_back({masters_ == Masters::kOwn ? "master" : "remainder",
                       optim::master_nbytes(masters_, options_.master_dtype), 1, MemoryKind::kMaster});
  }
  for (const optim::StateColumn& state : kept_) {
    columns.push_back({std::string(state.name), optim::block_nbytes(state.format), optim::block_numel(state.format),
                       MemoryKind::kOptimizer});
  }
  return columns;
}

void ShardedOptimizer::add_states(std::span<const int> units) {
  const std::uint32_t master = masters_ == Masters::kParameters ? 0 : 1;
  const auto columns_of = [&](int parameter) {
    const optim::Rule* const rule = rule_of(parameter);
    return master | (rule ? optim::which_of(kept_, *rule) << column_of(0) : 0);
  };
  std::vector<offload::StorePart> parts;
  for (const int u : units) {
    std::vector<layout::ParameterColumns> parameters;
    for (const int p : model_.units[u].parameters)
      parameters.push_back({model_.parameters[p].range.begin, columns_of(p)});
    const std::int64_t piece =
        options_.bucket_numel > 0 ? layout::bucket_step(model_.units[u].numel, options_.bucket_numel) : 0;
    for (const auto& part : layout::columns_parts(parameters, update_range(u), master, piece))
      parts.push_back({u, part.range, part.columns, part.piece_numel});
  }
  states_->add_units(parts);
  for (const int u : units) {
    if (!options_.updates_late) break;
    ZERO_CHECK(update_range(u) == store_.writable_range(u), "unit {} is updated by others, too", u);
    next_low_[u] =
        model_.home.make_private(ledger_, MemoryKind::kParameters, model_.param_dtype, update_range(u).numel());
  }
  add_tensor_states(units);
  for (std::size_t state = 0; state < kept_.size(); ++state) {
    if (!kept_[state].initial) continue;
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
  return has_state(state, parameter) ? kept_[state].initial_of(options_.groups[group_of(parameter)].hyper) : 0;
}

void ShardedOptimizer::set_hyper(std::size_t group, const optim::Hyper& hyper) {
  const optim::Rule& rule = *options_.groups[group].rule;
  const auto missing = rule.missing_state ? rule.missing_state(hyper) : std::string_view();
  ZERO_CHECK(missing.empty(), "{} keeps no {}, which parameter group {} needs", rule.name, missing, group);
  options_.groups[group].hyper = hyper;
}

void ShardedOptimizer::add_units(std::span<const int> units) {
  add_states(units);
  at::NoGradGuard no_grad;
  store_.pin(units);  // on every rank, though each chooses how it keeps masters
  for (const int u : units) {
    if (masters_ != Masters::kOwn) break;  // fresh remainders of zero are the parameters themselves
    const at::Tensor low = store_.pinned_view(u);
    for_each_piece(u, update_range(u), Access::kUpdate, master_column(),
                   [&](Range piece, void*, std::span<void* const> columns) {
                     model_.view(columns[kMaster], options_.master_dtype, piece.numel())
                         .copy_(low.narrow(0, piece.begin, piece.numel()));
                   });
  }
  store_.unpin(units);
}

ShardedOptimizer::Masters ShardedOptimizer::choose_masters() const {
  bool writes = !options_.float_masters;
  for (std::size_t u = 0; u < model_.units.size(); ++u) {  // frozen ones too: they may be unfrozen
    const Range updated = update_range(static_cast<int>(u)), written = store_.writable_range(static_cast<int>(u));
    // Elements that another rank writes for all cannot be the master of this rank. Parameters of which it writes more
    // than it updates are updated by others.
    writes = writes && layout::intersect(updated, written) == updated;
    writes = writes && (model_.param_dtype != options_.master_dtype || updated == written);
  }
  return optim::choose_masters(model_.param_dtype, options_.master_dtype, writes, model_.passes->splits_masters());
}

Range ShardedOptimizer::update_range(int unit) const {
  const Unit& the_unit = model_.units[unit];
  return model_.sharding.optimizer_states ? model_.shard_of(unit) : the_unit.whole();
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
    const std::int64_t end = last ? the_unit.numel : model_.parameters[the_unit.parameters[i + 1]].range.begin;
    const Range part = layout::intersect({model_.parameters[p].range.begin, end}, range);
    if (part.empty()) continue;
    const int its_group = noted_.group[p];
    if (its_group == group && noted_.steps[p] == steps && whole.end == part.begin) {
      whole.end = part.end;
      continue;
    }
    finish();
    whole = part;
    group = its_group;
    steps = noted_.steps[p];
  }
  finish();
}

template <class Visit>
void ShardedOptimizer::for_each_piece(int unit, Range range, Access access, std::uint32_t wanted, Visit visit) const {
  for_each_piece(unit, range, access, access, wanted, visit);
}

template <class Visit>
void ShardedOptimizer::for_each_piece(int unit, Range range, Access access, Access low_access, std::uint32_t wanted,
                                      Visit visit) const {
  const Range written = store_.writable_range(unit);
  const auto visit_piece = [&](Range piece, std::span<void* const> memory) {
    std::array<void*, offload::kMostColumns> columns{};
    const auto part = [&](Range of, void* low) {
      for (std::size_t c = 0; c < memory.size(); ++c)
        columns[c] =
            memory[c] ? static_cast<char*>(memory[c]) + states_->columns()[c].nbytes(of.begin - piece.begin) : nullptr;
      visit(of, low, std::span<void* const>(columns.data(), memory.size()));
    };
    // Ranges this rank updates for itself only have no low-precision values here.
    const Range before = layout::intersect(piece, {piece.begin, written.begin});
    const Range after = layout::intersect(piece, {written.end, piece.end});
    if (!before.empty()) part(before, nullptr);
    visit_low(unit, layout::intersect(piece, written), low_access, part);
    if (!after.empty()) part(after, nullptr);
  };
  if (range.empty()) return;
  with_names(unit, range,
             [&] { states_->for_each(unit, range, options_.sub_group_numel, access, wanted, visit_piece); });
}

void ShardedOptimizer::load(int unit, const at::Tensor& whole) { load_range(unit, model_.units[unit].whole(), whole); }

void ShardedOptimizer::load_range(int unit, Range range, const at::Tensor& values) {
  at::NoGradGuard no_grad;
  const at::Tensor source = values.to(model_.device, at::kFloat).contiguous();
  const auto from = [&](Range part) { return source.const_data_ptr<float>() + (part.begin - range.begin); };
  const Range written = layout::intersect(store_.writable_range(unit), range);
  store_.visit(unit, written, Access::kUpdate,
               [&](Range part, void* low) { model_.passes->round(from(part), low, model_.param_dtype, part.numel()); });
  if (!model_.units[unit].trainable || masters_ == Masters::kParameters) return;
  const Range updated = layout::intersect(update_range(unit), range);
  for_each_piece(unit, updated, Access::kUpdate, master_column(),
                 [&](Range part, void* low, std::span<void* const> columns) {
                   if (masters_ == Masters::kOwn) {
                     model_.passes->round(from(part), columns[kMaster], options_.master_dtype, part.numel());
                   } else {
                     model_.passes->split(from(part), static_cast<std::uint16_t*>(low),
                                          static_cast<std::uint16_t*>(columns[kMaster]), part.numel());
                   }
                 });
}

void ShardedOptimizer::update(GradientReducer& reducer, const std::vector<double>& lr, double gradient_scale) {
  note_rates(lr, gradient_scale);
  // Replicated sums are overwritten in the first pass: nobody may still be reading this rank's part.
  if (whole_ && !model_.sharding.optimizer_states)
    Group(model_.data_ranks).barrier({.label = "replicated sums"}).wait();
  note_all_units();
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    const int unit = static_cast<int>(u);
    const Range mine = update_range(unit);
    if (!model_.units[u].trainable || mine.empty() || !is_on_device(unit)) continue;
    reducer.visit_sums(unit, mine, Access::kRead,
                       [&](Range piece, Sums gradient) { begin_on_device(unit, piece, gradient); });
  }
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    const int unit = static_cast<int>(u);
    if (!model_.units[u].trainable || is_on_device(unit)) continue;
    // Directions take the place of gradients.
    reducer.visit_sums(unit, update_range(unit), whole_ ? Access::kUpdate : Access::kRead,
                       [&](Range piece, Sums gradient) { update_range_of(unit, piece, gradient); });
    if (!whole_) store_.updated(unit);
  }
  if (whole_) finish_directions(reducer, lr);
  if (on_device_) on_device_->finish();
  end_step();
}

void ShardedOptimizer::update_part(int unit, Range range, const at::Tensor& gradient, const std::vector<double>& lr,
                                   double gradient_scale) {
  note_rates(lr, gradient_scale);
  note_unit(unit);
  update_range_of(unit, range, {gradient.mutable_data_ptr(), device::to_dtype(gradient.scalar_type())});
}

void ShardedOptimizer::begin_update(const std::vector<double>& lr, double gradient_scale) {
  ZERO_CHECK(options_.updates_late && !is_late_ && !whole_, "an update that cannot be late");
  note_rates(lr, gradient_scale);
  note_all_units();
  end_step();
  is_late_ = true;
}

void ShardedOptimizer::run_update(GradientSums& sums) {
  for (std::size_t u = 0; u < model_.units.size(); ++u) try_unit(static_cast<int>(u), sums);
}

void ShardedOptimizer::try_unit(int unit, GradientSums& sums) {
  const Range range = update_range(unit);
  if (!model_.units[unit].trainable || range.empty()) return;
  sums.visit(unit, range, Access::kRead, [&](Range piece, Sums gradient) { update_range_of(unit, piece, gradient); });
}

void ShardedOptimizer::begin_try(const std::vector<double>& lr, double gradient_scale) {
  ZERO_CHECK(options_.updates_late && !is_late_ && !whole_, "an update that cannot be tried");
  note_rates(lr, gradient_scale);
  noted_.group = options_.group_of_parameter;
  noted_.steps = steps_;
  if (disk_) disk_->begin_try();
  is_late_ = true;
}

bool ShardedOptimizer::would_repeat(const std::vector<double>& lr, double gradient_scale) const {
  for (std::size_t g = 0; g < options_.groups.size(); ++g) {
    optim::Hyper now = options_.groups[g].hyper;
    now.lr = lr[g];
    now.gradient_scale = gradient_scale;
    if (noted_.hyper[g] != now) return false;
  }
  return noted_.group == options_.group_of_parameter && noted_.steps == steps_;
}

void ShardedOptimizer::keep_try(GradientSums& sums, const std::function<bool(int unit)>& is_tried) {
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    const int unit = static_cast<int>(u);
    if (!model_.units[u].trainable || is_tried(unit)) continue;
    note_unit(unit);
    try_unit(unit, sums);
  }
  if (disk_) disk_->keep_try();
  end_update();
  end_step();
}

void ShardedOptimizer::forget_try() {
  is_late_ = false;
  if (disk_) disk_->forget_try();
}

void ShardedOptimizer::end_update() {
  is_late_ = false;
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    if (!model_.units[u].trainable) continue;
    const int unit = static_cast<int>(u);
    const std::int64_t first = update_range(unit).begin;
    for_each_run(unit, update_range(unit), [&](Range run, int, std::int64_t) {
      store_.visit(unit, run, Access::kUpdate, [&](Range piece, void* low) {
        model_.passes->copy(low, next_low_[u].data_at(piece.begin - first),
                            static_cast<std::size_t>(piece.numel() * nbytes_of(model_.param_dtype)));
      });
    });
  }
}

void ShardedOptimizer::visit_low(int unit, Range range, Access access, ParameterStore::Lease lease) const {
  if (!is_late_) return store_.visit(unit, range, access, lease);
  if (range.empty()) return;
  const auto next_at = [&](Range piece) { return next_low_[unit].data_at(piece.begin - update_range(unit).begin); };
  // Of separate masters new values are all that there is to it.
  if (masters_ != Masters::kOwn) {
    store_.visit(unit, range, Access::kRead, [&](Range piece, const void* low) {
      model_.passes->copy(next_at(piece), low, static_cast<std::size_t>(piece.numel() * nbytes_of(model_.param_dtype)));
    });
  }
  lease(range, next_at(range));
}

void ShardedOptimizer::note_rates(const std::vector<double>& lr, double gradient_scale) {
  noted_.hyper.resize(options_.groups.size());
  for (std::size_t g = 0; g < options_.groups.size(); ++g) {
    noted_.hyper[g] = options_.groups[g].hyper;
    noted_.hyper[g].lr = lr[g];
    noted_.hyper[g].gradient_scale = gradient_scale;
  }
}

void ShardedOptimizer::note_all_units() {
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    if (model_.units[u].trainable) note_unit(static_cast<int>(u));
  }
}

void ShardedOptimizer::note_unit(int unit) {
  for (const int p : model_.units[unit].parameters) {
    noted_.group[p] = is_active(p) ? options_.group_of_parameter[p] : -1;
    noted_.steps[p] = steps_[p];
  }
}

void ShardedOptimizer::end_step() {
  for (std::size_t p = 0; p < steps_.size(); ++p) {
    const bool trainable = model_.units[model_.parameters[p].unit].trainable;
    if (trainable && is_active(static_cast<int>(p))) ++steps_[p];
  }
}

std::int64_t ShardedOptimizer::steps() const {
  return steps_.empty() ? 0 : *std::max_element(steps_.begin(), steps_.end());
}

void ShardedOptimizer::update_range_of(int unit, Range range, Sums gradient) {
  for_each_run(unit, range, [&](Range run, int group, std::int64_t steps) {
    const optim::Rule& rule = *options_.groups[group].rule;
    const optim::Hyper hyper = hyper_of(group, steps);
    for_each_piece(unit, run, Access::kUpdate, offload::kAllColumns,
                   [&](Range piece, void* low, std::span<void* const> columns) {
                     update_piece(*model_.passes, rule, unit, piece, low, columns,
                                  gradient.from(piece.begin - range.begin), hyper);
                   });
  });
}

optim::Hyper ShardedOptimizer::hyper_of(int group, std::int64_t steps) const {
  optim::Hyper hyper = noted_.hyper[group];
  hyper.step = steps + 1;
  return hyper;
}

void ShardedOptimizer::begin_on_device(int unit, Range range, Sums gradient) {
  ZERO_CHECK(update_range(unit) == store_.writable_range(unit), "unit {} is updated by others, too", unit);
  const optim::Passes& passes = optim::passes_for(model_.module_device);
  for_each_run(unit, range, [&](Range run, int group, std::int64_t steps) {
    const optim::Rule& rule = *options_.groups[group].rule;
    const optim::Hyper hyper = hyper_of(group, steps);
    twins_->there().for_each(
        unit, run, on_device_->most_numel(), Access::kUpdate, offload::kAllColumns,
        [&](Range piece, std::span<void* const> columns) {
          on_device_->begin(piece.numel(), gradient.from(piece.begin - range.begin), store_.in_memory(unit, piece),
                            masters_ != Masters::kOwn, [&](Sums own_sums, void* own_low) {
                              update_piece(passes, rule, unit, piece, own_low, columns, own_sums, hyper);
                            });
        });
  });
}

void ShardedOptimizer::finish_directions(GradientReducer& reducer, const std::vector<double>& lr) {
  std::vector<int> taking_part, with_weight_norm, with_direction_norm;
  for (int p = 0; p < static_cast<int>(model_.parameters.size()); ++p) {
    const optim::Rule* const rule = rule_of(p);
    if (!rule || !rule->whole || !model_.units[model_.parameters[p].unit].trainable) continue;
    if (!is_active(p)) continue;
    taking_part.push_back(p);
    if (rule->whole->needs_weight_norm) with_weight_norm.push_back(p);
    if (rule->whole->needs_direction_norm) with_direction_norm.push_back(p);
  }
  const auto direction_of = [&](int unit, Range range) {
    return static_cast<float*>(reducer.accumulator(unit)) + (range.begin - reducer.gradient_range(unit).begin);
  };
  const auto copy_direction = [&](int unit, Range range, float* out) {
    reducer.visit_sums(unit, range, Access::kRead, [&](Range piece, Sums direction) {
      model_.passes->copy(out + (piece.begin - range.begin), direction.data,
                          static_cast<std::size_t>(piece.numel()) * sizeof(float));
    });
  };
  const auto live_hyper_of = [&](int p) {
    optim::Hyper hyper = options_.groups[group_of(p)].hyper;
    hyper.lr = lr[group_of(p)];
    hyper.step = steps_[p] + 1;
    return hyper;
  };

  const auto weights = whole_->sums_of_squares(
      with_weight_norm, [&](int unit, Range range, float* out) { copy_master(unit, range, out); });
  const auto directions = whole_->sums_of_squares(with_direction_norm, copy_direction);
  whole_->change_tensors([&](int p) { return std::ranges::binary_search(taking_part, p); }, direction_of,
                         [&](int p, const at::Tensor& direction) {
                           rule_of(p)->whole->change(direction, held_tensor_states(p), live_hyper_of(p));
                         });

  std::size_t next_weight = 0, next_direction = 0;
  for (const int p : taking_part) {
    const optim::WholeStep& whole = *rule_of(p)->whole;
    const double weight_norm = whole.needs_weight_norm ? std::sqrt(weights[next_weight++]) : 0;
    const double direction_norm = whole.needs_direction_norm ? std::sqrt(directions[next_direction++]) : 0;
    const Parameter& parameter = model_.parameters[p];
    const Range mine = layout::intersect(parameter.range, update_range(parameter.unit));
    optim::Hyper second = whole.second(live_hyper_of(p), weight_norm, direction_norm, parameter.range.numel());
    second.step = steps_[p] + 1;
    reducer.visit_sums(parameter.unit, mine, Access::kRead, [&](Range held, Sums its) {
      for_each_piece(parameter.unit, held, Access::kUpdate, offload::kAllColumns,
                     [&](Range piece, void* low, std::span<void* const> columns) {
                       update_piece(*model_.passes, optim::take_direction(), parameter.unit, piece, low, columns,
                                    its.from(piece.begin - held.begin), second);
                     });
    });
  }
}

void ShardedOptimizer::update_piece(const optim::Passes& passes, const optim::Rule& rule, int unit, Range piece,
                                    void* low, std::span<void* const> columns, Sums gradient,
                                    const optim::Hyper& hyper) const {
  optim::UpdateArgs args{.low = low, .low_dtype = model_.param_dtype, .numel = piece.numel()};
  if (gradient.dtype == DType::kFloat32) {
    args.gradient = args.direction = static_cast<float*>(gradient.data);  // the sums are used up by the step
  } else {
    args.narrow.gradient = gradient.data;
    args.narrow.gradient_format = format_of(gradient.dtype);
  }
  void* master = nullptr;
  switch (masters_) {
    case Masters::kParameters:
      master = std::exchange(args.low, nullptr);
      break;
    case Masters::kRemainders:
      args.remainder = static_cast<std::uint16_t*>(columns[kMaster]);
      break;
    case Masters::kOwn:
      master = columns[kMaster];
      break;
  }
  if (options_.master_dtype == DType::kFloat32) {
    args.master = static_cast<float*>(master);
  } else {
    args.narrow.master = master;
    args.narrow.master_format = format_of(options_.master_dtype);
    args.narrow.stochastic = options_.stochastic_rounding;
    args.narrow.seed = options_.seed;
    args.narrow.first_element = (static_cast<std::uint64_t>(unit) << 40) + static_cast<std::uint64_t>(piece.begin);
  }
  for (std::size_t s = 0; s < rule.states.size(); ++s)
    args.states[s] = columns[column_of(*find_state(rule.states[s].name))];
  passes.update(rule, args, hyper);
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
  for_each_piece(unit, whole, Access::kUpdate, master_column(), [&](Range part, void*, std::span<void* const> columns) {
    const std::int64_t begin = part.begin - whole.begin;
    if (masters_ == Masters::kOwn) {
      const at::Tensor master = model_.view(columns[kMaster], options_.master_dtype, part.numel());
      master.copy_(at::where(same.narrow(0, begin, part.numel()), master,
                             low.narrow(0, begin, part.numel()).to(master.scalar_type())));
      return;
    }
    const at::Tensor changed = same.narrow(0, begin, part.numel()).logical_not();
    model_.view(columns[kMaster], DType::kBFloat16, part.numel()).view(at::kShort).masked_fill_(changed, 0);
  });
}

void ShardedOptimizer::low_from_master(int unit) {
  if (!model_.units[unit].trainable || masters_ != Masters::kOwn) return;
  const Range part = layout::intersect(update_range(unit), store_.writable_range(unit));
  for_each_piece(unit, part, Access::kRead, Access::kUpdate, master_column(),
                 [&](Range piece, void* low, std::span<void* const> columns) {
                   if (options_.master_dtype != DType::kFloat32) {
                     model_.passes->copy(low, columns[kMaster],
                                         static_cast<std::size_t>(piece.numel() * nbytes_of(model_.param_dtype)));
                     return;
                   }
                   model_.passes->round(static_cast<const float*>(columns[kMaster]), low, model_.param_dtype,
                                        piece.numel());
                 });
}

at::Tensor ShardedOptimizer::empty(DType dtype, std::int64_t numel) const {
  return at::empty({numel}, at::TensorOptions().dtype(device::to_scalar_type(dtype)).device(model_.device));
}

std::optional<std::size_t> ShardedOptimizer::find_state(std::string_view name) const {
  const auto found = std::ranges::find(kept_, name, &optim::StateColumn::name);
  if (found == kept_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - kept_.begin());
}

at::Tensor ShardedOptimizer::state_in_memory(std::size_t state, int unit, Range range) const {
  const Range part = layout::intersect(range, update_range(unit));
  if (part.empty() || kept_[state].format != StateFormat::kFloat32) return at::Tensor();
  const void* const data = states_->in_memory(column_of(state), unit, part);
  return data ? model_.view(data, DType::kFloat32, part.numel()) : at::Tensor();
}

void ShardedOptimizer::copy_state(std::size_t state, int unit, Range range, float* out) const {
  const StateFormat format = kept_[state].format;
  if (format == StateFormat::kFloat32) return read_state(column_of(state), unit, range, out);
  if (!optim::is_quantized(format)) {
    const DType dtype = optim::dtype_of(format);
    const at::Tensor kept = empty(dtype, range.numel());
    read_state(column_of(state), unit, range, kept.mutable_data_ptr());
    model_.view(out, DType::kFloat32, range.numel()).copy_(kept);
    return;
  }
  // Blocks at both ends may reach beyond the range.
  constexpr std::int64_t kPiece = 1 << 16;
  const std::int64_t first = range.begin / optim::block_numel(format) * optim::block_numel(format);
  for (std::int64_t begin = first; begin < range.end; begin += kPiece) {
    const Range piece = whole_blocks({begin, std::min(range.end, begin + kPiece)}, format);
    const at::Tensor kept = empty(DType::kByte, optim::nbytes_of(format, piece.numel()));
    read_state(column_of(state), unit, piece, kept.mutable_data_ptr());
    const at::Tensor wide = at::empty({piece.numel()}, at::kFloat);
    optim::kernels().widen_state(format, kept.cpu().const_data_ptr(), wide.mutable_data_ptr<float>(), piece.numel());
    const Range wanted = layout::intersect(piece, range);
    model_.view(out + (wanted.begin - range.begin), DType::kFloat32, wanted.numel())
        .copy_(wide.narrow(0, wanted.begin - piece.begin, wanted.numel()));
  }
}

at::Tensor ShardedOptimizer::state_values(std::size_t state, int unit, Range range) const {
  at::Tensor values = empty(DType::kFloat32, range.numel());
  copy_state(state, unit, range, values.mutable_data_ptr<float>());
  return values;
}

void ShardedOptimizer::set_state(std::size_t state, int unit, Range range, const at::Tensor& values) {
  const StateFormat format = kept_[state].format;
  if (!optim::is_quantized(format)) {
    const auto type = device::to_scalar_type(optim::dtype_of(format));
    write_state(column_of(state), unit, range, values.to(model_.device, type).contiguous().const_data_ptr());
    return;
  }
  ZERO_CHECK(range.begin % optim::block_numel(format) == 0, "{} from element {} on", kept_[state].name, range.begin);
  // What the last block has besides is padding.
  const Range blocks = whole_blocks(range, format);
  const at::Tensor wide = at::zeros({blocks.numel()}, at::kFloat);
  wide.narrow(0, 0, range.numel()).copy_(values);
  const at::Tensor kept = at::empty({optim::nbytes_of(format, blocks.numel())}, at::kByte);
  optim::kernels().narrow_state(format, wide.const_data_ptr<float>(), kept.mutable_data_ptr(), blocks.numel());
  write_state(column_of(state), unit, blocks, kept.to(model_.device).const_data_ptr());
}

at::Tensor ShardedOptimizer::master_in_memory(int unit, Range range) const {
  const Range part = layout::intersect(range, update_range(unit));
  if (part.empty() || masters_ == Masters::kRemainders || options_.master_dtype != DType::kFloat32) return at::Tensor();
  const void* const data =
      masters_ == Masters::kOwn ? states_->in_memory(kMaster, unit, part) : store_.in_memory(unit, part);
  return data ? model_.view(data, DType::kFloat32, part.numel()) : at::Tensor();
}

at::Tensor ShardedOptimizer::master_values(int unit, Range range) const {
  if (range.empty()) return at::Tensor();
  if (const at::Tensor there = master_in_memory(unit, range); there.defined()) return there;
  at::Tensor values = empty(DType::kFloat32, range.numel());
  copy_master(unit, range, values.mutable_data_ptr<float>());
  return values;
}

void ShardedOptimizer::copy_master(int unit, Range range, float* out) const {
  for_each_piece(unit, range, Access::kRead, master_column(),
                 [&](Range piece, void* low, std::span<void* const> columns) {
                   float* const to = out + (piece.begin - range.begin);
                   if (masters_ == Masters::kRemainders) {
                     model_.passes->join(static_cast<const std::uint16_t*>(low),
                                         static_cast<const std::uint16_t*>(columns[kMaster]), to, piece.numel());
                     return;
                   }
                   const void* const master = masters_ == Masters::kParameters ? low : columns[kMaster];
                   if (options_.master_dtype == DType::kFloat32) {
                     model_.passes->copy(to, master, static_cast<std::size_t>(piece.numel()) * sizeof(float));
                   } else {
                     model_.view(to, DType::kFloat32, piece.numel())
                         .copy_(model_.view(master, options_.master_dtype, piece.numel()));
                   }
                 });
}

}  // namespace zero::sharding
