// Engine::load_checkpoint: from named tensors of any layout to this engine's shards.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/element_order.h"
#include "checkpoint/folder.h"
#include "checkpoint/range_reader.h"
#include "engine/agreement.h"
#include "engine/buffers.h"
#include "engine/checkpoints.h"
#include "engine/gradients.h"
#include "engine/load_report.h"
#include "engine/random_state.h"
#include "engine/saved_state.h"
#include "engine/tensor_types.h"
#include "intercept/gradient_hook.h"
#include "zero/errors.h"

namespace zero {
namespace engine {
namespace {

using checkpoint::agree;
using checkpoint::error_of;
using checkpoint::find_checkpoint;
using checkpoint::Found;
namespace kinds = checkpoint::kinds;
using checkpoint::ManifestTensor;
using checkpoint::Target;
using layout::Range;

/// Where the data goes on, in micro-batches of all ranks, and whether the accumulated gradients can be kept.
struct Position {
  std::int64_t micro_batches = 0;
  bool keeps_window = false;
};

/// What the state says, checked before anything is changed.
struct Counters {
  std::int64_t optimizer_steps = 0, global_steps = 0, skipped_steps = 0;
  std::vector<std::optional<double>> lr_overrides;            ///< by optimizer group
  std::vector<std::pair<int, std::int64_t>> parameter_steps;  ///< where they are not optimizer_steps
  std::vector<int> unused_in_window;
  std::uint64_t seed = 0;
};

constexpr std::size_t kMostBesideNbytes = 256 << 20;

/// Elements of a tensor in its file order before those of this rank's part, when these lie there one after the other as
/// in this rank's memory.
std::optional<std::int64_t> begin_in_file(const checkpoint::ElementOrder& order, const Split& split,
                                          const std::vector<std::int64_t>& part,
                                          const std::vector<std::int64_t>& strides) {
  const bool same_dims =
      checkpoint::has_one_order(part) || checkpoint::dim_order_of(part, strides) == order.dim_order;
  if (!same_dims || split.boxes(part) != order.boxes) return std::nullopt;
  return split.elements_before(part);
}

/// A view or copy of [shape], from all elements of a tensor in the order of its file.
at::Tensor whole_from_file(const at::Tensor& values, const checkpoint::TensorInfo& info) {
  const auto& order = info.order;
  if (order.boxes.empty()) return values.as_strided(info.shape, strides_of(info.shape, order.dim_order));
  at::Tensor whole = at::empty(info.shape, values.options());
  std::int64_t begin = 0;
  for (const auto& box : order.boxes) {
    at::Tensor place = whole;
    for (std::size_t d = 0; d < box.size(); ++d)
      place = place.narrow(static_cast<std::int64_t>(d), box[d].first, box[d].second - box[d].first);
    const auto shape = checkpoint::shape_of(box);
    const std::int64_t numel = checkpoint::numel_of(box);
    place.copy_(values.narrow(0, begin, numel).as_strided(shape, strides_of(shape, order.dim_order)));
    begin += numel;
  }
  return whole;
}

/// One load: planned against the manifest, then read, then applied.
class CheckpointLoader {
 public:
  CheckpointLoader(Engine::Impl& impl, const Found& found, const LoadOptions& options)
      : impl_(impl), found_(found), options_(options), state_(found.manifest.state, found.folder) {
    for (std::size_t t = 0; t < found.manifest.tensors.size(); ++t)
      index_[found.manifest.tensors[t].info.key()] = t;
    // Another name of a tied parameter or buffer may be the first one in another model.
    for (std::size_t t = 0; t < found.manifest.tensors.size(); ++t) {
      for (const auto& alias : found.manifest.tensors[t].info.aliases) {
        const auto kind = found.manifest.tensors[t].info.kind;
        if (kind == kinds::kWeight || kind == kinds::kBuffer) {
          owner_of_alias_.emplace(alias, found.manifest.tensors[t].info.name);
        }
      }
    }
    report_.folder = found.folder;
    report_.tag = found.tag;
    report_.client_state = found.manifest.client_state;
  }

  /// Parameters that are frozen here and were frozen when they were saved, with states: both programs mean to go on
  /// with them later. Same result on every rank. Throws CheckpointError.
  std::vector<int> frozen_with_states() const {
    std::vector<int> parameters;
    if (options_.module_only || !options_.load_optimizer_states) return parameters;
    for (const int p : saved_parameters("frozen")) {
      if (!impl_.model.units[impl_.model.parameters[p].unit].trainable && has_states(p))
        parameters.push_back(p);
    }
    return parameters;
  }

  /// Matches names, shapes and counters; changes nothing. Same result on every rank. Throws CheckpointError.
  void plan() {
    require_known_names(impl_.inventory, options_.names, "LoadOptions::names");
    std::set<std::size_t> used;
    for (std::size_t p = 0; p < impl_.model.parameters.size(); ++p) plan_parameter(static_cast<int>(p), used);
    for (std::size_t b = 0; b < impl_.inventory.buffers.size(); ++b) plan_buffer(static_cast<int>(b), used);
    for (const auto& [key, t] : index_) {
      const auto& info = found_.manifest.tensors[t].info;
      if ((info.kind == kinds::kWeight || info.kind == kinds::kBuffer) && !used.contains(t)) {
        report_.unexpected.push_back(info.name);
      }
    }
    if (options_.strict) check_strict();
    plan_counters();
  }

  std::vector<Target> verification_targets() const {
    std::vector<Target> targets;
    for (const auto& item : items_) targets.push_back({item.tensor, item.begin, item.numel, nullptr});
    return targets;
  }

  /// Reads into the engine's own memory, and beside it, piece by piece, what has to be converted.
  void read(checkpoint::RangeReader& reader) {
    at::NoGradGuard no_grad;
    std::vector<Target> targets;
    std::size_t first = 0, beside_nbytes = 0;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      Item& item = items_[i];
      targets.push_back({item.tensor, item.begin, item.numel, destination(item)});
      if (item.beside.defined()) beside_nbytes += item.beside.nbytes();
      if (beside_nbytes < kMostBesideNbytes && i + 1 < items_.size()) continue;
      reader.read(targets);
      for (; first <= i; ++first) {
        if (items_[first].beside.defined()) items_[first].apply(items_[first].beside);
        items_[first].beside = at::Tensor();
      }
      targets.clear();
      beside_nbytes = 0;
    }
  }

  /// Parameters and counters follow what was read. *Collective.*
  LoadReport apply() {
    at::NoGradGuard no_grad;
    for (std::size_t u = 0; u < impl_.model.units.size(); ++u)
      impl_.optimizer->low_from_master(static_cast<int>(u));
    impl_.store->publish(/*frozen_too=*/true);
    for (const auto& parameter : impl_.model.parameters) intercept::bump_version(parameter.tensor);
    apply_counters();
    return std::move(report_);
  }

  /// Before read(): gradient sums start from zero. `is_repair`: an earlier load failed and left sums of its
  /// own.
  void prepare_window(bool is_repair) {
    const std::int64_t window = impl_.config.gradient_accumulation_steps;
    // The place in the window goes with its sums, also should reading fail.
    if (position_.keeps_window) {
      impl_.micro_steps = position_.micro_batches / impl_.group.size();
      impl_.reducer->resume_window(impl_.micro_steps % window);
      impl_.gradients->mark_all();
    } else if (is_repair || (!options_.module_only && options_.load_lr_scheduler_states)) {
      impl_.micro_steps -= impl_.micro_steps % window;
      impl_.reducer->start_window();
    }
  }

 private:
  /// Elements of a tensor of the checkpoint, and where they go.
  struct Item {
    std::size_t tensor = 0;
    std::int64_t begin = 0, numel = 0;  ///< in the order of the file
    at::Tensor direct;                  ///< fp32 memory of the engine's that can be filled as it is
    at::Tensor beside;                  ///< else: read here, in the file's dtype, and given to `apply`
    std::function<void(const at::Tensor&)> apply;
  };

  const ManifestTensor& saved(std::size_t t) const { return found_.manifest.tensors[t]; }

  std::string name_in_checkpoint(const std::string& name) const {
    if (const auto renamed = options_.names.find(name); renamed != options_.names.end())
      return renamed->second;
    return name;
  }

  /// Index of the tensor, or nothing.
  std::optional<std::size_t> find(std::string_view kind, const std::string& name) const {
    const auto key = [kind](const std::string& n) { return fmt::format("{}/{}", kind, n); };
    const std::string wanted = name_in_checkpoint(name);
    if (const auto found = index_.find(key(wanted)); found != index_.end()) return found->second;
    const auto owner = owner_of_alias_.find(wanted);
    if (owner == owner_of_alias_.end()) return std::nullopt;
    const auto found = index_.find(key(owner->second));
    return found == index_.end() ? std::nullopt : std::optional(found->second);
  }

  /// As find() for a parameter under any of its names.
  std::optional<std::size_t> find_parameter_tensor(std::string_view kind, int p) const {
    const auto& name = impl_.model.parameters[p].name;
    if (auto found = find(kind, name)) return found;
    for (const auto& [alias, index] : impl_.inventory.index_of) {
      if (index != p || alias == name) continue;
      if (auto found = find(kind, alias)) return found;
    }
    return std::nullopt;
  }

  const Split& split_of(int p) const { return impl_.inventory.parameters[static_cast<std::size_t>(p)].split; }
  /// A parameter's, of all model-parallel ranks together.
  std::vector<std::int64_t> whole_shape(int p) const {
    return split_of(p).whole_shape(impl_.model.parameters[p].tensor.sizes().vec());
  }

  bool shapes_match(std::size_t t, const std::vector<std::int64_t>& mine, const std::string& name) {
    const auto& shape = saved(t).info.shape;
    if (mine == shape) return true;
    report_.mismatched.push_back(shape_mismatch(name, mine, shape, "the checkpoint"));
    return false;
  }

  void plan_parameter(int p, std::set<std::size_t>& used) {
    const auto& parameter = impl_.model.parameters[p];
    const auto weight = find_parameter_tensor(kinds::kWeight, p);
    if (!weight) {
      report_.missing.push_back(parameter.name);
      left_alone_.push_back(parameter.name);
      return;
    }
    used.insert(*weight);
    if (!shapes_match(*weight, whole_shape(p), parameter.name)) {
      left_alone_.push_back(parameter.name);
      return;
    }
    const auto& unit = impl_.model.units[parameter.unit];
    auto* optimizer = impl_.optimizer.get();
    const Range held = unit.trainable ? optimizer->update_range(parameter.unit)
                                      : impl_.store->writable_range(parameter.unit);
    const int u = parameter.unit;
    if (unit.trainable) {
      add(
          p, *weight, held, [=](Range r) { return optimizer->master_in_memory(u, r); },
          [=](Range r, const at::Tensor& values) { optimizer->load_range(u, r, values); });
    } else {
      add(p, *weight, held, {},
          [=](Range r, const at::Tensor& values) { optimizer->load_range(u, r, values); });
    }
    if (options_.module_only || !options_.load_optimizer_states) return;
    if (unit.trainable) {
      for (std::size_t state = 0; state < optimizer->rule().states.size(); ++state) plan_state(p, state, held);
    } else if (has_states(p)) {
      unused_states_.push_back(parameter.name);
    }
  }

  /// True when the checkpoint has the optimizer's states of a parameter.
  bool has_states(int p) const {
    const auto& states = impl_.optimizer->rule().states;
    return !states.empty() && find_parameter_tensor(states.front().name, p);
  }

  void plan_state(int p, std::size_t state, Range held) {
    const auto& parameter = impl_.model.parameters[p];
    auto* optimizer = impl_.optimizer.get();
    const int unit = parameter.unit;
    const auto assign = [=](Range range, const at::Tensor& values) {
      optimizer->set_state(state, unit, range, values);
    };
    const auto t = find_parameter_tensor(optimizer->rule().states[state].name, p);
    if (t && saved(*t).info.shape == whole_shape(p)) {
      add(p, *t, held, [=](Range range) { return optimizer->state_in_memory(state, unit, range); }, assign);
      return;
    }
    if (state == 0) without_states_.push_back(parameter.name);
    const Range mine = layout::intersect(parameter.range, held);
    if (!mine.empty()) to_zero_.emplace_back([=] { assign(mine, at::zeros({mine.numel()})); });
  }

  /// Plans reading this rank's part of a parameter-shaped tensor. `view_of(range of the unit)`: fp32 memory
  /// to fill; or `assign(range, values)` where that is not all.
  void add(int p, std::size_t t, Range held, std::function<at::Tensor(Range)> view_of,
           std::function<void(Range, const at::Tensor&)> assign = {}) {
    const auto& parameter = impl_.model.parameters[p];
    const Range mine = layout::intersect(parameter.range, held);
    if (mine.empty()) return;
    const auto& info = saved(t).info;
    Item item;
    item.tensor = t;
    const auto part_shape = parameter.tensor.sizes().vec();
    const Range part{mine.begin - parameter.range.begin, mine.end - parameter.range.begin};
    item.begin = part.begin;
    item.numel = part.numel();
    const at::Tensor view = view_of ? view_of(mine) : at::Tensor();
    const auto mine_in_file = begin_in_file(info.order, split_of(p), part_shape, parameter.tensor.strides().vec());
    const bool same_order = mine_in_file.has_value();
    item.begin += mine_in_file.value_or(0);
    if (view.defined() && view.is_cpu() && same_order && info.dtype == checkpoint::ElementType::kF32) {
      item.direct = view;
      items_.push_back(std::move(item));
      return;
    }
    const auto give = [view, assign, mine](const at::Tensor& values) {
      if (view.defined()) {
        view.copy_(values);
      } else {
        assign(mine, values);
      }
    };
    if (same_order) {
      item.apply = give;
    } else {
      // The whole tensor, of which this rank's part is turned into the order of this model's memory.
      const auto strides = parameter.tensor.strides().vec();
      item.begin = 0;
      item.numel = info.numel();
      item.apply = [give, part, part_shape, strides, split = split_of(p), info](const at::Tensor& values) {
        const at::Tensor turned = at::empty({c10::multiply_integers(part_shape)}, values.options());
        turned.as_strided(part_shape, strides).copy_(split.part_of(whole_from_file(values, info)));
        give(turned.narrow(0, part.begin, part.numel()));
      };
    }
    items_.push_back(std::move(item));
  }

  void plan_buffer(int b, std::set<std::size_t>& used) {
    const auto& buffer = impl_.inventory.buffers[b];
    auto t = find(kinds::kBuffer, buffer.name);
    for (const auto& alias : buffer.aliases) {
      const auto other = find(kinds::kBuffer, alias);
      if (other) used.insert(*other);
      if (!t) t = other;
    }
    if (!t) {
      report_.missing.push_back(buffer.name);
      return;
    }
    used.insert(*t);
    if (!shapes_match(*t, buffer.split.whole_shape(stored_shape(buffer.tensor)), buffer.name)) return;
    const auto& info = saved(*t).info;
    Item item{*t, 0, info.numel(), {}, {}, {}};
    item.apply = [tensor = buffer.tensor, split = buffer.split, info](const at::Tensor& values) {
      write_stored(tensor, split.part_of(whole_from_file(values, info)));
    };
    items_.push_back(std::move(item));
  }

  void check_strict() const {
    require_all_match(report_, fmt::format("the checkpoint '{}' is of another model", found_.folder),
                      "Set LoadOptions::strict to false to load what fits, or LoadOptions::names where only "
                      "names differ");
  }

  void notice(std::string text) { report_.notices.push_back(std::move(text)); }

  void plan_counters() {
    if (!left_alone_.empty()) {
      notice(
          fmt::format("{} parameters are not in the checkpoint, or not in this shape: they and their "
                      "optimizer states stay "
                      "as they are: {}",
                      left_alone_.size(), some_of(left_alone_)));
    }
    if (options_.module_only) {
      report_.global_steps = impl_.global_steps;
      report_.micro_batches = impl_.micro_batches();
      return;
    }
    if (!without_states_.empty()) {
      notice(fmt::format("{} parameters have no optimizer states in the checkpoint; theirs start at zero: {}",
                         without_states_.size(), some_of(without_states_)));
    }
    if (!unused_states_.empty()) {
      notice(fmt::format(
          "{} parameters are frozen in this model, their optimizer states in the checkpoint are not used: {}",
          unused_states_.size(), some_of(unused_states_)));
    }
    if (options_.load_optimizer_states) {
      counters_.optimizer_steps = state_.count("optimizer_steps");
      plan_parameter_steps();
    }
    if (!options_.load_optimizer_states) notice("optimizer states were not loaded: they stay as they are");
    if (!options_.load_lr_scheduler_states) {
      report_.global_steps = impl_.global_steps;
      report_.micro_batches = impl_.micro_batches();
      return;
    }
    const std::vector<std::pair<const char*, nlohmann::json>> contract = {
        {"threads_per_rank", at::get_num_threads()}, {"cpu_capability", at::get_cpu_capability()}};
    for (const auto& [key, value] : contract) {
      if (const auto was = state_.value(key); was != value) {
        notice(fmt::format(
            "the checkpoint was written with {} {}, this run has {}: the next steps may differ in the "
            "last bits",
            key, was.dump(), value.dump()));
      }
    }
    position_ = plan_position();
    plan_random_states();
    counters_.global_steps = state_.count("global_steps");
    counters_.skipped_steps = state_.skipped_steps(counters_.global_steps);
    plan_rates();
    counters_.seed = state_.seed();
    report_.global_steps = counters_.global_steps;
    report_.micro_batches = position_.micro_batches;
  }

  void plan_rates() {
    const std::size_t groups = impl_.lr_overrides.size();
    std::size_t saved_groups = 0;
    const auto rates = state_.rates(groups, &saved_groups);
    counters_.lr_overrides = rates.value_or(std::vector<std::optional<double>>(groups));
    if (rates) return;
    notice(fmt::format(
        "the checkpoint has learning rates set for {} parameter groups, this run has {}: they are not taken over",
        saved_groups, groups));
  }

  /// This model's parameters by their names in the checkpoint.
  std::map<std::string, int> parameters_by_saved_name() const {
    std::map<std::string, int> parameters;
    for (std::size_t p = 0; p < impl_.model.parameters.size(); ++p) {
      if (const auto t = find_parameter_tensor(kinds::kWeight, static_cast<int>(p)))
        parameters.emplace(saved(*t).info.name, static_cast<int>(p));
    }
    return parameters;
  }

  /// What differs by parameter: how often it was updated, and whether it was used in the open window.
  void plan_parameter_steps() {
    const auto parameters = parameters_by_saved_name();
    for (const auto& [name, steps] : state_.parameter_steps(counters_.optimizer_steps)) {
      if (const auto p = parameters.find(name); p != parameters.end())
        counters_.parameter_steps.emplace_back(p->second, steps);
    }
    counters_.unused_in_window = saved_parameters("unused_in_window");
  }

  /// Those of this model that a list of names in the state calls.
  std::vector<int> saved_parameters(const char* key) const {
    std::vector<int> parameters;
    const auto by_name = parameters_by_saved_name();
    for (const auto& name : state_.names(key)) {
      if (const auto p = by_name.find(name); p != by_name.end()) parameters.push_back(p->second);
    }
    return parameters;
  }

  Position plan_position() {
    const std::int64_t ranks = impl_.group.size();
    const std::int64_t window = impl_.config.gradient_accumulation_steps * ranks;
    const std::int64_t done = state_.count("micro_batches"), inside = state_.count("window_micro_batches");
    const std::int64_t saved_window = state_.window();
    if (saved_window == 0 || inside >= saved_window || inside > done || (done - inside) % saved_window != 0) {
      state_.refuse("micro_batches");
    }
    const bool has_sums = inside > 0;
    if (saved_window != window) {
      const std::int64_t begin = done - inside;
      const std::int64_t next = (begin + window - 1) / window * window;
      notice(fmt::format(
          "{} micro-batches made a step when the checkpoint was written, {} do now: the data, which had come "
          "to micro-batch {}, goes on at {}{}",
          saved_window, window, done, next,
          has_sums ? ", without the gradients of the step that was not over" : ""));
      return {next, false};
    }
    if (!has_sums) return {done, false};
    if (inside % ranks != 0) {
      notice(fmt::format(
          "the checkpoint lies {} micro-batches inside an accumulation window, which {} ranks cannot "
          "share out: the window starts again, at micro-batch {}",
          inside, ranks, done - inside));
      return {done - inside, false};
    }
    for (std::size_t p = 0; p < impl_.model.parameters.size(); ++p) {
      const auto& parameter = impl_.model.parameters[p];
      if (!impl_.model.units[parameter.unit].trainable) continue;
      const auto t = find_parameter_tensor(kinds::kGradientSum, static_cast<int>(p));
      const auto weight = find_parameter_tensor(kinds::kWeight, static_cast<int>(p));
      // Frozen there: nothing was summed, and here are zeros.
      if (!t && weight && !saved(*weight).info.trainable) continue;
      if (!t || saved(*t).info.shape != whole_shape(static_cast<int>(p))) {
        notice(
            "the accumulated gradients of the checkpoint are of another model: the accumulation window "
            "starts again");
        items_.erase(std::remove_if(items_.begin(), items_.end(),
                                    [&](const Item& item) {
                                      return saved(item.tensor).info.kind == kinds::kGradientSum;
                                    }),
                     items_.end());
        return {done - inside, false};
      }
      const int u = parameter.unit;
      auto* reducer = impl_.reducer.get();
      // The owner's part only: the others get theirs when the window is over. Sums have memory from
      // prepare_window() on.
      add(static_cast<int>(p), *t, impl_.model.units[u].shard(impl_.group.rank()), {},
          [=](Range r, const at::Tensor& values) {
            reducer->accumulated(u)
                .narrow(0, r.begin - reducer->gradient_range(u).begin, r.numel())
                .copy_(values);
          });
    }
    return {done, true};
  }

  /// Memory that the item's elements are read into.
  std::byte* destination(Item& item) {
    if (item.direct.defined()) return static_cast<std::byte*>(item.direct.mutable_data_ptr());
    item.beside =
        at::empty({item.numel}, at::TensorOptions().dtype(to_scalar_type(saved(item.tensor).info.dtype)));
    return static_cast<std::byte*>(item.beside.mutable_data_ptr());
  }

  void apply_counters() {
    for (const auto& to_zero : to_zero_) to_zero();
    if (options_.module_only) return;
    if (options_.load_optimizer_states) {
      for (std::size_t p = 0; p < impl_.model.parameters.size(); ++p) {
        const int index = static_cast<int>(p);
        const bool was_updated = has_states(index);
        impl_.optimizer->set_steps_of(index, was_updated ? counters_.optimizer_steps : 0);
      }
      for (const auto& [p, steps] : counters_.parameter_steps) impl_.optimizer->set_steps_of(p, steps);
    }
    if (!options_.load_lr_scheduler_states) return;
    impl_.global_steps = counters_.global_steps;
    impl_.scaler.set_skipped_steps(counters_.skipped_steps);
    impl_.micro_steps = position_.micro_batches / impl_.group.size();
    impl_.lr_overrides = counters_.lr_overrides;
    for (const int p : counters_.unused_in_window) {
      if (position_.keeps_window) impl_.reducer->set_unused_in_window(p);
    }
    impl_.seed = counters_.seed;
    impl_.reseed(/*follows_program=*/false);
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
    if (!impl_.model.device.is_cpu()) plan_random_state("accelerator", impl_.model.device);
  }

  void plan_random_state(std::string_view device_name, c10::Device device) {
    const auto t = find(kinds::kRandomState, random_state_name(impl_.groups.all.rank(), device_name));
    if (!t) return;
    Item item{*t, 0, saved(*t).info.numel(), {}, {}, {}};
    item.apply = [device](const at::Tensor& state) { set_random_state(device, state); };
    items_.push_back(std::move(item));
  }

  Engine::Impl& impl_;
  const Found& found_;
  const LoadOptions& options_;
  SavedState state_;
  std::map<std::string, std::size_t> index_;           ///< by "kind/name"
  std::map<std::string, std::string> owner_of_alias_;  ///< to the name its tensor has
  std::vector<Item> items_;
  std::vector<std::function<void()>> to_zero_;
  /// Names of parameters: without states in the checkpoint; frozen here, with states there; not loaded.
  std::vector<std::string> without_states_, unused_states_, left_alone_;
  Counters counters_;
  Position position_;
  LoadReport report_;
};

/// Loads one checkpoint. `changed` becomes true before the first value does. *Collective.*
LoadReport load_one(Engine::Impl& impl, io::FileSystem& files, const Found& found, const LoadOptions& options,
                    bool& changed) {
  CheckpointLoader loading(impl, found, options);
  const std::string what = fmt::format("loading the checkpoint '{}'", found.folder);
  std::optional<checkpoint::RangeReader> reader;
  std::vector<int> frozen;
  agree(what, error_of([&] { frozen = loading.frozen_with_states(); }), impl.groups.all);
  impl.gradients->make_trainable(frozen);
  agree(what, error_of([&] {
          loading.plan();
          reader.emplace(files, found);
          if (options.verify_first) reader->read(loading.verification_targets());
        }),
        impl.groups.all);
  const bool is_repair = std::exchange(changed, true);
  impl.store->quiesce();
  impl.group.barrier({.label = "load_checkpoint"}).wait();  // nobody reads old values any more
  agree(what, error_of([&] {
          loading.prepare_window(is_repair);
          loading.read(*reader);
        }),
        impl.groups.all);
  return loading.apply();
}

/// The checkpoint rank 0 finds, the same on every rank. *Collective.*
Found find_together(Engine::Impl& impl, io::FileSystem& files, const std::string& folder,
                    const std::string& tag) {
  Found found;
  const std::string what = fmt::format("loading a checkpoint from '{}'", folder);
  std::string chosen = tag;
  agree(what, error_of([&] {
          if (impl.groups.all.rank() != 0) return;
          chosen = find_checkpoint(files, folder, tag).tag;
          if (tag.empty()) checkpoints_of(impl).check_latest(folder, chosen);
        }),
        impl.groups.all);
  chosen = broadcast_text(chosen, 0, impl.groups.all, "checkpoint");
  agree(what, error_of([&] { found = find_checkpoint(files, folder, chosen); }), impl.groups.all);
  if (const auto difference = first_difference(found.manifest.id, impl.groups.all, "checkpoint")) {
    throw CheckpointError(
        fmt::format("{}: the ranks see different checkpoints there: {}", what, *difference));
  }
  return found;
}

/// Tags of complete checkpoints but those, newest first, as rank 0 sees them. *Collective.*
std::vector<std::string> other_tags(Engine::Impl& impl, io::FileSystem& files, const std::string& folder,
                                    const std::set<std::string>& tried) {
  nlohmann::json tags = nlohmann::json::array();
  if (impl.groups.all.rank() == 0) {
    error_of([&] {
      auto listing = checkpoint::list_checkpoints(files, folder);
      for (auto it = listing.complete.rbegin(); it != listing.complete.rend(); ++it) {
        if (!tried.contains(it->tag)) tags.push_back(it->tag);
      }
    });
  }
  return nlohmann::json::parse(broadcast_text(tags.dump(), 0, impl.groups.all, "checkpoint"))
      .get<std::vector<std::string>>();
}

}  // namespace
}  // namespace engine

namespace {

/// Leaves the engine marked as half loaded when a load ends without success after changing something.
struct LoadInProgress {
  explicit LoadInProgress(Engine::Impl& impl) : impl(impl), changed(std::exchange(impl.half_loaded, false)) {}
  ~LoadInProgress() { impl.half_loaded = changed && !succeeded; }

  Engine::Impl& impl;
  bool changed;
  bool succeeded = false;
};

}  // namespace

LoadReport Engine::load_checkpoint(const std::string& folder, const std::string& tag,
                                   const LoadOptions& options) {
  auto& impl = *impl_;
  LoadInProgress progress(impl);
  impl.enter_between_steps("load_checkpoint");
  impl.settle();
  wait_checkpoint();
  auto& files = engine::checkpoints_of(impl).files();
  std::set<std::string> tried;
  std::vector<std::string> failures;
  std::string next = tag;
  while (true) {
    try {
      const auto found = engine::find_together(impl, files, folder, next);
      next = found.tag;
      LoadReport report = engine::load_one(impl, files, found, options, progress.changed);
      progress.succeeded = true;
      engine::checkpoints_of(impl).go_on_in(folder);
      for (const auto& failure : failures) {
        report.notices.push_back(fmt::format("fell back to another checkpoint: {}", failure));
      }
      if (impl.groups.all.rank() == 0) {
        for (const auto& notice : report.notices) base::log_warning("load_checkpoint: {}", notice);
      }
      return report;
    } catch (const CheckpointError& error) {
      if (!options.fall_back || !tag.empty()) throw;
      failures.emplace_back(error.what());
      tried.insert(next);
      const auto others = engine::other_tags(impl, files, folder, tried);
      if (others.empty()) throw CheckpointError(fmt::format("{}", fmt::join(failures, "; then ")));
      next = others.front();
    }
  }
}

}  // namespace zero
