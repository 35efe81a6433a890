#include "persistence/load_plan.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <fmt/ranges.h>
#include <algorithm>

#include <iterator>
#include <set>
#include <utility>

#include "checkpoint/load_report.h"
#include "engine/buffers.h"
#include "engine/optimizers/program_optimizer.h"
#include "engine/random_state.h"
#include "persistence/checkpoints.h"
#include "zero/errors.h"

namespace zero::persistence {
namespace {

using checkpoint::require_all_match;
using checkpoint::shape_mismatch;
using checkpoint::some_of;
using engine::Inventory;
using engine::ProgramOptimizer;
using engine::stored_shape;
using engine::TrainingState;
namespace kinds = checkpoint::kinds;
using checkpoint::TensorInfo;
using layout::Range;

class LoadPlanner {
 public:
  LoadPlanner(const Engine::Impl& impl, const checkpoint::Found& found, const SavedTensors& saved,
              const SavedState& state, const LoadOptions& options)
      : impl_(impl), found_(found), saved_(saved), state_(state), options_(options) {
    auto& report = plan_.report;
    report.folder = found.folder;
    report.tag = found.tag;
    report.client_state = found.manifest.client_state;
    report.global_steps = impl.training.global_steps;
    report.micro_batches = impl.training.micro_batches;
  }

  LoadPlan plan() {
    for (std::size_t p = 0; p < impl_.sharded.model.parameters.size(); ++p) plan_parameter(static_cast<int>(p));
    for (const auto& buffer : impl_.trained.inventory.buffers) {
      if (buffer.persistent) plan_buffer(buffer);
    }
    for (const std::size_t t : saved_.weights_and_buffers()) {
      if (!used_.contains(t)) plan_.report.unexpected.push_back(saved_.info(t).name);
    }
    if (impl_.sharded.local_steps) plan_outer_values();
    if (options_.strict) check_strict();
    if (!options_.module_only && options_.load_optimizer_states) check_optimizer();
    notice_names();
    if (!options_.module_only) {
      if (options_.load_optimizer_states) plan_optimizer_steps();
      plan_training();
    }
    return std::move(plan_);
  }

 private:
  std::vector<std::int64_t> whole_shape(int p) const {
    const auto& split = impl_.trained.inventory.parameters[static_cast<std::size_t>(p)].split;
    return split.whole_shape(impl_.sharded.model.parameters[p].tensor.sizes().vec());
  }

  bool shapes_match(std::size_t t, const std::vector<std::int64_t>& mine, const std::string& name) {
    const auto& shape = saved_.info(t).shape;
    if (mine == shape) return true;
    plan_.report.mismatched.push_back(shape_mismatch(name, mine, shape, "the checkpoint"));
    return false;
  }

  void plan_parameter(int p) {
    const auto& parameter = impl_.sharded.model.parameters[p];
    const auto weight = saved_.find_parameter(kinds::kWeight, p);
    if (weight) used_.insert(*weight);
    if (!weight) plan_.report.missing.push_back(parameter.name);
    if (!weight || !shapes_match(*weight, whole_shape(p), parameter.name)) {
      left_alone_.push_back(parameter.name);
      return;
    }
    const int unit = parameter.unit;
    const bool trainable = impl_.sharded.model.units[unit].trainable;
    auto* optimizer = impl_.sharded.optimizer.get();
    const Range held = trainable ? optimizer->update_range(unit) : impl_.sharded.store->writable_range(unit);
    Destination destination{{},
                            [=](Range range, const at::Tensor& values) { optimizer->load_range(unit, range, values); }};
    if (trainable) destination.view_of = [=](Range range) { return optimizer->master_in_memory(unit, range); };
    add(p, *weight, held, destination);
    if (options_.module_only || !options_.load_optimizer_states) return;
    if (trainable && keeper_) {
      plan_program_state(p, *weight, held);
    } else if (trainable) {
      bool is_first = true;
      for (std::size_t state = 0; state < optimizer->states().size(); ++state) {
        if (optimizer->has_state(state, p)) plan_state(p, state, held, std::exchange(is_first, false));
      }
      for (const optim::TensorState& state : optimizer->tensor_states(p)) plan_tensor_state(p, state);
    } else if (saved_.has_states(p)) {
      unused_states_.push_back(parameter.name);
    }
  }

  void plan_state(int p, std::size_t state, Range held, bool is_first) {
    const auto& parameter = impl_.sharded.model.parameters[p];
    auto* optimizer = impl_.sharded.optimizer.get();
    const int unit = parameter.unit;
    const auto assign = [=](Range range, const at::Tensor& values) {
      optimizer->set_state(state, unit, range, values);
    };
    const auto t = saved_.find_parameter(optimizer->states()[state].name, p);
    if (t && saved_.info(*t).shape == whole_shape(p)) {
      add(p, *t, held, {[=](Range range) { return optimizer->state_in_memory(state, unit, range); }, assign});
      return;
    }
    if (is_first) without_states_.push_back(parameter.name);
    const Range mine = layout::intersect(parameter.range, held);
    const double initial = optimizer->initial_of(state, p);
    if (!mine.empty())
      plan_.to_start_anew.emplace_back([=] { assign(mine, at::full({mine.numel()}, initial, at::kFloat)); });
  }

  void plan_tensor_state(int p, const optim::TensorState& state) {
    const auto t = saved_.find_parameter(state.name, p);
    const at::Tensor held = impl_.sharded.optimizer->tensor_state(p, state.name);
    const bool fits = t && saved_.info(*t).shape == state.shape;
    if (!fits) without_states_.push_back(impl_.sharded.model.parameters[p].name);
    if (!held.defined()) return;
    if (fits) {
      plan_.items.push_back(
          {*t, 0, held.numel(), {}, {}, [held](const at::Tensor& values) { held.copy_(values.view(held.sizes())); }});
    } else {
      plan_.to_start_anew.emplace_back([held] { held.zero_(); });
    }
  }

  /// A state of the program's own optimizer: read beside it, and put into it as a whole.
  void plan_program_state(int p, std::size_t weight, Range held) {
    const auto put = [this, p](const std::shared_ptr<ProgramOptimizer::State>& state) {
      plan_.to_put.emplace_back(
          [optimizer = keeper_, p, state] { optimizer->put_state(p, state ? std::optional(*state) : std::nullopt); });
    };
    const std::string& name = saved_.info(weight).name;
    const auto& json = state_.program_optimizer;
    const bool has_states = json.is_object() && json.contains("states") && json["states"].is_object();
    if (!has_states || !json["states"].contains(name)) {
      if (!saved_.info(weight).trainable) without_states_.push_back(impl_.sharded.model.parameters[p].name);
      return put(nullptr);
    }
    const auto& saved = json["states"][name];
    const auto refuse = [&] {
      throw CheckpointError(fmt::format("the checkpoint '{}' has no usable 'program_optimizer' for '{}' in its state",
                                        found_.folder, name));
    };
    if (!saved.is_object() || !saved.contains("tensors") || !saved["tensors"].is_array() || !saved.contains("values") ||
        !saved["values"].is_object())
      refuse();
    const auto state = std::make_shared<ProgramOptimizer::State>();
    state->values = saved["values"];
    const Range mine = layout::intersect(impl_.sharded.model.parameters[p].range, held);
    for (const auto& kind : saved["tensors"]) {
      const auto t = kind.is_string() ? saved_.find_parameter(kind.get<std::string>(), p) : std::nullopt;
      if (!t || saved_.info(*t).shape != whole_shape(p)) refuse();
      const at::Tensor values = at::empty({mine.numel()}, at::TensorOptions().dtype(at::kFloat));
      add(p, *t, held, {{}, [values, mine](Range range, const at::Tensor& read) {
                          values.narrow(0, range.begin - mine.begin, range.numel()).copy_(read);
                        }});
      state->tensors[kind.get<std::string>()] = values;
    }
    put(state);
  }

  /// Plans reading what this rank holds of a tensor in the shape of a parameter.
  void add(int p, std::size_t t, Range held, const Destination& destination) {
    const Range mine = layout::intersect(impl_.sharded.model.parameters[p].range, held);
    if (mine.empty()) return;
    plan_.items.push_back(parameter_item(impl_, p, t, saved_.info(t), mine, destination));
  }

  void plan_buffer(const Inventory::Named& buffer) {
    auto t = saved_.find(kinds::kBuffer, buffer.name);
    for (const auto& alias : buffer.aliases) {
      const auto other = saved_.find(kinds::kBuffer, alias);
      if (other) used_.insert(*other);
      if (!t) t = other;
    }
    if (!t) {
      plan_.report.missing.push_back(buffer.name);
      return;
    }
    used_.insert(*t);
    if (shapes_match(*t, buffer.split.whole_shape(stored_shape(buffer.tensor)), buffer.name))
      plan_.items.push_back(buffer_item(buffer, *t, saved_.info(*t)));
  }

  void check_strict() const {
    require_all_match(plan_.report, fmt::format("the checkpoint '{}' is of another model", found_.folder),
                      "Set LoadOptions::strict to false to load what fits, or LoadOptions::names where only "
                      "names differ");
  }

  /// Refuses states of another optimizer, where one of its parameters is trained here. Throws CheckpointError.
  void check_optimizer() const {
    bool trains_both = false;
    for (std::size_t p = 0; p < impl_.sharded.model.parameters.size(); ++p) {
      const auto weight = saved_.find_parameter(kinds::kWeight, static_cast<int>(p));
      const auto& unit = impl_.sharded.model.units[impl_.sharded.model.parameters[p].unit];
      trains_both |= weight && saved_.info(*weight).trainable && unit.trainable;
    }
    if (keeper_) return trains_both ? check_program_optimizer() : void();
    if (!trains_both) return;
    const auto& optimizer = *impl_.sharded.optimizer;
    const std::set<std::string> theirs = saved_.states();
    std::set<std::string> ours, needed;  // by parameters that are trained in both
    for (std::size_t p = 0; p < impl_.sharded.model.parameters.size(); ++p) {
      const int parameter = static_cast<int>(p);
      const auto weight = saved_.find_parameter(kinds::kWeight, parameter);
      const bool in_both = weight && saved_.info(*weight).trainable;
      const auto add = [&](std::string_view state) {
        ours.emplace(state);
        if (in_both) needed.emplace(state);
      };
      if (!impl_.sharded.model.units[impl_.sharded.model.parameters[p].unit].trainable) continue;
      for (std::size_t state = 0; state < optimizer.states().size(); ++state) {
        if (optimizer.has_state(state, parameter)) add(optimizer.states()[state].name);
      }
      for (const auto& state : optimizer.tensor_states(parameter)) add(state.name);
    }
    for (const auto& state : optimizer.states()) ours.emplace(state.name);
    const bool same_name = !state_.optimizer.is_string() || state_.optimizer == SavedState::optimizer_name(optimizer);
    if (same_name && std::ranges::includes(theirs, needed) && std::ranges::includes(ours, theirs)) return;
    const auto listed = [](const std::set<std::string>& names) {
      return names.empty() ? std::string("no states") : fmt::format("{}", fmt::join(names, ", "));
    };
    throw CheckpointError(
        fmt::format("the checkpoint '{}' is of another optimizer: {} with {}, and {} as it is set here has {}. Use the "
                    "optimizer it was saved with, or set LoadOptions::load_optimizer_states to false to go on with the "
                    "states that there are",
                    found_.folder, state_.optimizer.is_string() ? state_.optimizer.get<std::string>() : "one",
                    listed(theirs), optimizer.name(), listed(ours)));
  }

  void check_program_optimizer() const {
    const auto& json = state_.program_optimizer;
    const std::string ours = keeper_->class_name();
    const std::string theirs =
        json.is_object() && json.contains("class") && json["class"].is_string() ? json["class"].get<std::string>() : "";
    if (theirs == ours) return;
    throw CheckpointError(
        fmt::format("the checkpoint '{}' is of another optimizer: {}, and optimizer_factory makes {}. Use the one it "
                    "was saved with, or set LoadOptions::load_optimizer_states to false to go on with the states that "
                    "there are",
                    found_.folder, theirs.empty() ? "one of the engine's" : theirs, ours));
  }

  /// What islands have together: what their round began from, and the outer momentum.
  void plan_outer_values() {
    if (options_.module_only || !options_.load_optimizer_states) return;
    const auto find = [&](const char* kind, int p) {
      const auto t = saved_.find_parameter(kind, p);
      return t && saved_.info(*t).shape == whole_shape(p) ? t : std::nullopt;
    };
    plan_.in_round = state_.in_round;
    for (std::size_t i = 0; i < impl_.sharded.model.parameters.size(); ++i) {
      const int p = static_cast<int>(i);
      const bool trainable = impl_.sharded.model.units[impl_.sharded.model.parameters[i].unit].trainable;
      plan_.in_round &= !trainable || find(kinds::kOuterWeight, p).has_value();
    }
    for (const auto& part : impl_.sharded.local_steps->parts()) {
      for (const int p : impl_.sharded.model.units[part.unit].parameters) {
        const Range mine = layout::intersect(impl_.sharded.model.parameters[p].range, part.range);
        const auto read = [&](std::size_t t, float* values) {
          const auto view = [values, begin = part.range.begin](Range range) {
            return at::from_blob(values + (range.begin - begin), {range.numel()}, at::kFloat);
          };
          plan_.items.push_back(parameter_item(impl_, p, t, saved_.info(t), mine, {view}));
        };
        if (mine.empty()) continue;
        if (plan_.in_round) read(*find(kinds::kOuterWeight, p), part.outer);
        if (!part.momentum) continue;
        if (const auto t = find(kinds::kOuterMomentum, p)) {
          read(*t, part.momentum);
        } else {
          plan_.to_start_anew.emplace_back([begin = part.momentum + (mine.begin - part.range.begin), mine] {
            std::fill_n(begin, mine.numel(), 0.0F);
          });
        }
      }
    }
  }

  void notice_islands() {
    const int islands = impl_.sharded.local_steps ? impl_.sharded.local_steps->islands() : 1;
    if (state_.islands == islands || state_.islands == 1) return;
    notice(fmt::format(
        "the checkpoint is of {} islands that train apart (zerotorch.local_steps), and this run has {}: "
        "all take the optimizer states{} of the first",
        state_.islands, islands == 1 ? "none" : std::to_string(islands), state_.in_round ? ", and the weights," : ""));
  }

  void notice(std::string text) { plan_.report.notices.push_back(std::move(text)); }

  void notice_names() {
    if (!left_alone_.empty()) {
      notice(
          fmt::format("{} parameters are not in the checkpoint, or not in this shape: they and their "
                      "optimizer states stay "
                      "as they are: {}",
                      left_alone_.size(), some_of(left_alone_)));
    }
    if (options_.module_only) return;
    if (!without_states_.empty()) {
      notice(fmt::format("{} parameters have no optimizer states in the checkpoint; theirs start anew: {}",
                         without_states_.size(), some_of(without_states_)));
    }
    if (!unused_states_.empty()) {
      notice(fmt::format(
          "{} parameters are frozen in this model, their optimizer states in the checkpoint are not used: {}",
          unused_states_.size(), some_of(unused_states_)));
    }
    notice_islands();
    if (!options_.load_optimizer_states) notice("optimizer states were not loaded: they stay as they are");
  }

  void plan_optimizer_steps() {
    auto& steps = plan_.optimizer_steps;
    for (std::size_t p = 0; p < impl_.sharded.model.parameters.size(); ++p)
      steps.push_back(saved_.has_states(static_cast<int>(p)) ? state_.optimizer_steps : 0);
    const auto by_name = saved_.parameters_by_saved_name();
    for (const auto& [name, count] : state_.parameter_steps) {
      if (const auto p = by_name.find(name); p != by_name.end()) steps[static_cast<std::size_t>(p->second)] = count;
    }
    plan_.unused_in_window = saved_.parameters_among(state_.unused_in_window);
  }

  void plan_training() {
    const auto compare = [&](const char* what, const nlohmann::json& was, const nlohmann::json& now) {
      if (was == now) return;
      notice(
          fmt::format("the checkpoint was written with {} {}, this run has {}: the next steps may differ in the "
                      "last bits",
                      what, was.dump(), now.dump()));
    };
    compare("threads_per_rank", state_.threads_per_rank, threads_per_rank());
    compare("cpu_capability", state_.cpu_capability, cpu_capability());
    // Earlier checkpoints do not say.
    const nlohmann::json products = cpu_products(impl_);
    if (!state_.cpu_products.is_null() && !products.is_null()) compare("cpu_products", state_.cpu_products, products);
    plan_.training = state_.training;
    plan_accumulation();
    plan_.training.micro_batches = plan_position();
    if (!plan_.keeps_window) plan_.training.window_begin = plan_.training.micro_batches;
    plan_random_states();
    plan_rates();
    plan_.report.global_steps = plan_.training.global_steps;
    plan_.report.micro_batches = plan_.training.micro_batches;
  }

  /// The schedule is in the counters: one that stays where it is has begun so many updates later.
  void keep_schedule() {
    const auto updates = [](const TrainingState& training) {
      return training.global_steps - training.scaler.skipped_steps();
    };
    plan_.training.lr_overrides = impl_.training.lr_overrides;
    plan_.training.schedule_begin = impl_.training.schedule_begin + updates(plan_.training) - updates(impl_.training);
  }

  void plan_rates() {
    if (!options_.load_lr_scheduler_states) return keep_schedule();
    const std::size_t groups = impl_.training.lr_overrides.size();
    auto& rates = plan_.training.lr_overrides;
    const std::size_t saved_groups = rates.size();
    if (saved_groups == 1) rates.resize(groups, rates.front());
    if (rates.size() == groups) return;
    rates.assign(groups, std::nullopt);
    notice(fmt::format(
        "the checkpoint has learning rates set for {} parameter groups, this run has {}: they are not taken over",
        saved_groups, groups));
  }

  /// As many micro-batches of all ranks make a step as the program had set, where it had.
  void plan_accumulation() {
    auto& steps = plan_.training.accumulation_steps;
    const std::int64_t ranks = impl_.groups.data_parallel.size(), now = impl_.config.gradient_accumulation_steps;
    if (!steps) {
      steps = impl_.training.accumulation_steps;
      return;
    }
    if (state_.window() % ranks == 0 && (state_.window() == ranks || impl_.keeps_gradients())) {
      steps = state_.window() / ranks;
      if (*steps == now) return;
      notice(fmt::format("gradient_accumulation_steps is {} again, as the program had set it, instead of {}", *steps,
                         now));
      return;
    }
    steps = impl_.training.accumulation_steps;
    notice(fmt::format("gradient_accumulation_steps stays {}: the program had set {} for {} ranks, which {}", now,
                       state_.gradient_accumulation_steps, state_.data_parallel_size,
                       state_.window() % ranks == 0 ? std::string("zerotorch.update does not allow")
                                                    : fmt::format("{} ranks cannot share out", ranks)));
  }

  /// Where the data goes on, in micro-batches of all ranks, and with it whether the accumulated gradients can be kept.
  std::int64_t plan_position() {
    const std::int64_t ranks = impl_.groups.data_parallel.size();
    const std::int64_t steps = plan_.training.accumulation_steps.value_or(impl_.config.gradient_accumulation_steps);
    const std::int64_t window = steps * ranks;
    const std::int64_t inside = state_.window_micro_batches, begin = state_.training.window_begin;
    const bool has_sums = inside > 0;
    const std::int64_t next = (begin + ranks - 1) / ranks * ranks;  // every rank takes one of as many
    if (state_.window() != window) {
      notice(fmt::format(
          "{} micro-batches made a step when the checkpoint was written, {} do now: the data, which had come "
          "to micro-batch {}, goes on at {}{}",
          state_.window(), window, begin + inside, next,
          has_sums ? ", without the gradients of the step that was not over" : ""));
      return next;
    }
    if (!has_sums) {
      if (next != begin) {
        notice(
            fmt::format("the data, which had come to micro-batch {}, goes on at {}, from where {} ranks can share "
                        "it out",
                        begin, next, ranks));
      }
      return next;
    }
    if (inside % ranks != 0 || next != begin) {
      notice(fmt::format(
          "the checkpoint lies {} micro-batches inside an accumulation window, which {} ranks cannot "
          "share out: the window starts again, at micro-batch {}{}",
          inside, ranks, next,
          config::kind_of(impl_.config.zerotorch.update).ends_after_step
              ? "; its first micro-batches were of weights that lacked an update (zerotorch.update), and are "
                "now of weights that have it"
              : ""));
      return next;
    }
    if (!plan_sums()) {
      notice(
          "the accumulated gradients of the checkpoint are of another model: the accumulation window "
          "starts again");
      return begin;
    }
    plan_.keeps_window = true;
    return begin + inside;
  }

  /// Plans reading the accumulated gradients; false, and nothing planned, when they are of another model.
  bool plan_sums() {
    const std::size_t items_before = plan_.items.size();
    for (std::size_t i = 0; i < impl_.sharded.model.parameters.size(); ++i) {
      const int p = static_cast<int>(i), u = impl_.sharded.model.parameters[i].unit;
      if (!impl_.sharded.model.units[u].trainable) continue;
      const auto t = saved_.find_parameter(kinds::kGradientSum, p);
      const auto weight = saved_.find_parameter(kinds::kWeight, p);
      // Frozen there: nothing was summed, and here are zeros.
      if (!t && weight && !saved_.info(*weight).trainable) continue;
      if (!t || saved_.info(*t).shape != whole_shape(p)) {
        plan_.items.resize(items_before);
        return false;
      }
      auto* reducer = impl_.sharded.reducer.get();
      // The owner's part only: the others get theirs when the window is over. Sums have memory from
      // prepare_window() on.
      add(p, *t, impl_.sharded.model.shard_of(u),
          {{}, [=, &model = impl_.sharded.model](Range r, const at::Tensor& values) {
             reducer->visit_sums(u, r, sharding::GradientSums::Access::kUpdate, [&](Range piece, sharding::Sums sums) {
               model.view(sums.data, sums.dtype, piece.numel())
                   .copy_(values.narrow(0, piece.begin - r.begin, piece.numel()));
             });
           }});
    }
    return true;
  }

  void plan_random_states() {
    if (found_.manifest.world_size != impl_.groups.all.size()) {
      if (!impl_.config.zerotorch.reseed_per_micro_batch) {
        notice(
            "random streams belong to ranks and the number of ranks has changed: they go on from this run's "
            "seed");
      }
      return;
    }
    plan_random_state("cpu", c10::Device(c10::kCPU));
    if (!impl_.sharded.model.module_device.is_cpu())
      plan_random_state("accelerator", impl_.sharded.model.module_device);
  }

  void plan_random_state(std::string_view device_name, c10::Device device) {
    const auto t = saved_.find(kinds::kRandomState, random_state_name(impl_.groups.all.rank(), device_name));
    if (!t) return;
    plan_.items.push_back({*t, 0, saved_.info(*t).numel(), {}, {}, [device](const at::Tensor& state) {
                             engine::set_random_state(device, state);
                           }});
  }

  const Engine::Impl& impl_;
  ProgramOptimizer* const keeper_ =
      impl_.optimizer_source->keeper_of_states();  ///< of states; null: impl_.sharded.optimizer
  const checkpoint::Found& found_;
  const SavedTensors& saved_;
  const SavedState& state_;
  const LoadOptions& options_;
  std::set<std::size_t> used_;  ///< tensors
  /// Names of parameters: without states in the checkpoint; frozen here, with states there; not loaded.
  std::vector<std::string> without_states_, unused_states_, left_alone_;
  LoadPlan plan_;
};

}  // namespace

std::vector<int> frozen_with_states(const Engine::Impl& impl, const SavedTensors& saved, const SavedState& state) {
  std::vector<int> parameters;
  for (const int p : saved.parameters_among(state.frozen)) {
    if (!impl.sharded.model.units[impl.sharded.model.parameters[p].unit].trainable && saved.has_states(p))
      parameters.push_back(p);
  }
  return parameters;
}

LoadPlan plan_load(const Engine::Impl& impl, const checkpoint::Found& found, const SavedTensors& saved,
                   const SavedState& state, const LoadOptions& options) {
  require_known_names(impl.trained.inventory, options.names, "LoadOptions::names");
  return LoadPlanner(impl, found, saved, state, options).plan();
}

}  // namespace zero::persistence
