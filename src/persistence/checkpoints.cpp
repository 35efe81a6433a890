#include "persistence/checkpoints.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/agree.h"
#include "checkpoint/element_order.h"
#include "engine/agreement.h"
#include "engine/buffers.h"
#include "engine/random_state.h"
#include "engine/tensor_types.h"
#include "persistence/saved_state.h"
#include "zero/errors.h"

namespace zero {
namespace persistence {
namespace {

using checkpoint::ElementType;
using engine::EngineMoments;
using engine::first_difference;
using engine::MicroBatchRandom;
using engine::Split;
using engine::stored_form;
using engine::stored_shape;
using engine::to_element_type;
namespace kinds = checkpoint::kinds;
using checkpoint::Piece;
using checkpoint::TensorInfo;

const std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<const std::byte*>(tensor.const_data_ptr()); }

/// Builds the common list of tensors and this rank's pieces of them, kind by kind in the order of the flat
/// layout, so that neighbours in memory are neighbours in the file.
class Collector {
 public:
  Collector(const Engine::Impl& impl, std::vector<at::Tensor>& keep) : impl_(impl), keep_(keep) {
    std::vector<std::vector<std::string>> aliases(impl.sharded.model.parameters.size());
    for (const auto& [name, index] : impl.trained.inventory.index_of) {
      if (name != impl.sharded.model.parameters[index].name) aliases[index].push_back(name);
    }
    aliases_ = std::move(aliases);
  }

  /// What is added next is as this island has it.
  void begin_island(int island) {
    island_ = island;
    is_mine_ = !impl_.sharded.local_steps || impl_.sharded.local_steps->island() == island;
  }

  void add_weights() {
    const bool trainable_only = island_ > 0;
    const auto tensors = add_infos(trainable_only, [&](int p) {
      auto& info = add_info(p, kinds::kWeight, unit_of(p).trainable ? ElementType::kF32 : low_type());
      info.aliases = aliases_[p];
    });
    for_each_part(trainable_only, [&](int p, layout::Range mine) {
      const auto& parameter = impl_.sharded.model.parameters[p];
      const std::size_t tensor = tensors[static_cast<std::size_t>(p)];
      if (unit_of(p).trainable) {
        if (const at::Tensor masters = impl_.sharded.optimizer->master_in_memory(parameter.unit, mine);
            masters.defined()) {
          add_piece(tensor, p, mine, masters);
        } else {
          add_made_piece(tensor, p, mine,
                         from_home([optimizer = impl_.sharded.optimizer.get(), unit = parameter.unit](
                                       layout::Range range, float* out) { optimizer->copy_master(unit, range, out); }));
        }
      } else if (void* const there = impl_.sharded.store->in_memory(parameter.unit, mine)) {
        const auto options = at::TensorOptions()
                                 .dtype(device::to_scalar_type(impl_.sharded.model.param_dtype))
                                 .device(impl_.sharded.model.device);
        add_piece(tensor, p, mine, at::from_blob(there, {mine.numel()}, options));
      } else {
        add_low_piece(tensor, p, mine);
      }
    });
  }

  template <class ViewOf>
  void add_states(std::string_view kind, ViewOf view_of) {
    const auto tensors = add_infos(/*trainable_only=*/true, [&](int p) { add_info(p, kind, ElementType::kF32); });
    for_each_part(/*trainable_only=*/true, [&](int p, layout::Range mine) {
      add_piece(tensors[static_cast<std::size_t>(p)], p, mine, view_of(p, mine));
    });
  }

  /// In fp32, however it is kept.
  void add_optimizer_state(std::size_t state) {
    const auto* const optimizer = impl_.sharded.optimizer.get();
    const auto name = optimizer->states()[state].name;
    const auto tensors = add_infos(/*trainable_only=*/true, [&](int p) {
      if (optimizer->has_state(state, p)) add_info(p, name, ElementType::kF32);
    });
    for_each_part(/*trainable_only=*/true, [&](int p, layout::Range mine) {
      if (!optimizer->has_state(state, p)) return;
      const std::size_t tensor = tensors[static_cast<std::size_t>(p)];
      const int unit = impl_.sharded.model.parameters[p].unit;
      const at::Tensor there = optimizer->state_in_memory(state, unit, mine);
      if (there.defined()) return add_piece(tensor, p, mine, there);
      add_made_piece(tensor, p, mine, from_home([=](layout::Range range, float* out) {
                       optimizer->copy_state(state, unit, range, out);
                     }));
    });
  }

  /// In fp32, however they are kept.
  void add_gradient_sums() {
    const auto* const reducer = impl_.sharded.reducer.get();
    const auto tensors =
        add_infos(/*trainable_only=*/true, [&](int p) { add_info(p, kinds::kGradientSum, ElementType::kF32); });
    for_each_part(/*trainable_only=*/true, [&](int p, layout::Range mine) {
      const std::size_t tensor = tensors[static_cast<std::size_t>(p)];
      const int unit = impl_.sharded.model.parameters[p].unit;
      if (reducer->accumulator(unit) && reducer->sums().dtype() == DType::kFloat32)
        return add_piece(tensor, p, mine, reducer->accumulated(unit, mine));
      add_made_piece(tensor, p, mine, [=, &model = impl_.sharded.model](layout::Range range, float* out) {
        const at::Tensor sums = reducer->accumulated(unit, range);
        at::from_blob(out, {range.numel()}, at::kFloat).copy_(sums);
      });
    });
  }

  /// States of whole tensors, from the ranks that hold them.
  void add_tensor_states() {
    const auto& optimizer = *impl_.sharded.optimizer;
    for (std::size_t p = 0; p < impl_.sharded.model.parameters.size(); ++p) {
      const int parameter = static_cast<int>(p);
      for (const optim::TensorState& state : optimizer.tensor_states(parameter)) {
        TensorInfo info;
        info.name = impl_.sharded.model.parameters[p].name;
        info.kind = kinds::of_island(island_, state.name);
        info.shape = state.shape;
        info.trainable = true;
        contents_.tensors.push_back(std::move(info));
        const at::Tensor held = optimizer.tensor_state(parameter, state.name);
        if (held.defined() && is_mine_ && impl_.groups.model_parallel_rank() == 0) add_whole(held);
      }
    }
  }

  /// Those of the first data-parallel rank, as it is its module that full weights are taken from.
  void add_buffers() {
    for (const auto& item : impl_.trained.inventory.buffers) {
      if (!item.persistent) continue;
      TensorInfo info;
      info.name = item.name;
      info.kind = kinds::of_island(island_, kinds::kBuffer);
      info.aliases = item.aliases;
      info.dtype = info.module_dtype = to_element_type(c10::toRealValueType(item.tensor.scalar_type()), item.name);
      const auto part = stored_shape(item.tensor);
      info.shape = item.split.whole_shape(part);
      info.order.boxes = item.split.boxes(part);
      contents_.tensors.push_back(std::move(info));
      if (impl_.groups.island.rank() == 0 && is_mine_ && is_saved_here(item.split))
        add_whole(stored_form(item.tensor).contiguous(), item.split.elements_before(part));
    }
  }

  /// What all islands have together.
  void add_outer_values() {
    sharding::LocalSteps& local_steps = *impl_.sharded.local_steps;
    island_ = 0;
    const std::vector<sharding::LocalSteps::Part> parts = local_steps.parts();
    const auto add = [&](std::string_view kind, auto values_of) {
      const auto tensors = add_infos(/*trainable_only=*/true, [&](int p) { add_info(p, kind, ElementType::kF32); });
      for (const auto& part : parts) {
        for (const int p : impl_.sharded.model.units[part.unit].parameters) {
          const layout::Range mine = layout::intersect(impl_.sharded.model.parameters[p].range, part.range);
          if (mine.empty()) continue;
          add_piece(tensors[static_cast<std::size_t>(p)], p, mine,
                    at::from_blob(values_of(part) + (mine.begin - part.range.begin), {mine.numel()}, at::kFloat));
        }
      }
    };
    if (local_steps.in_round()) add(kinds::kOuterWeight, [](const auto& part) { return part.outer; });
    if (local_steps.has_momentum()) add(kinds::kOuterMomentum, [](const auto& part) { return part.momentum; });
  }

  void add_random_states() {
    MicroBatchRandom::interrupt();  // the program's are saved
    for (int rank = 0; rank < impl_.groups.all.size(); ++rank) {
      add_random_state(rank, c10::Device(c10::kCPU));
      if (!impl_.sharded.model.module_device.is_cpu()) add_random_state(rank, impl_.sharded.model.module_device);
    }
  }

  checkpoint::Contents take() { return std::move(contents_); }

 private:
  const sharding::Unit& unit_of(int p) const {
    return impl_.sharded.model.units[impl_.sharded.model.parameters[p].unit];
  }
  ElementType low_type() const {
    return to_element_type(device::to_scalar_type(impl_.sharded.model.param_dtype), "the model");
  }

  /// Of what every model-parallel rank has, the first one's is saved.
  bool is_saved_here(const Split& split) const { return split.is_split() || impl_.groups.model_parallel_rank() == 0; }
  const Split& split_of(int p) const { return impl_.trained.inventory.parameters[static_cast<std::size_t>(p)].split; }

  /// Calls `add` for every parameter, on all ranks in the same order. Returns the index of its tensor by parameter.
  template <class Add>
  std::vector<std::size_t> add_infos(bool trainable_only, Add add) {
    std::vector<std::size_t> tensors(impl_.sharded.model.parameters.size());
    for (std::size_t p = 0; p < tensors.size(); ++p) {
      if (trainable_only && !unit_of(static_cast<int>(p)).trainable) continue;
      tensors[p] = contents_.tensors.size();
      add(static_cast<int>(p));
    }
    return tensors;
  }

  /// What this rank saves of each parameter, in the order of the flat layout.
  template <class Visit>
  void for_each_part(bool trainable_only, Visit visit) {
    if (!is_mine_) return;
    for (const auto& unit : impl_.sharded.model.units) {
      if (trainable_only && !unit.trainable) continue;
      for (const int p : unit.parameters) {
        const layout::Range mine =
            layout::intersect(impl_.sharded.model.parameters[p].range,
                              impl_.sharded.model.shard_of(impl_.sharded.model.parameters[p].unit));
        if (!mine.empty() && is_saved_here(split_of(p))) visit(p, mine);
      }
    }
  }

  TensorInfo& add_info(int p, std::string_view kind, ElementType dtype) {
    const auto& parameter = impl_.sharded.model.parameters[p];
    const auto part = parameter.tensor.sizes().vec();
    TensorInfo info;
    info.name = parameter.name;
    info.kind = kinds::of_island(island_, kind);
    info.dtype = dtype;
    info.shape = split_of(p).whole_shape(part);
    const auto& split = split_of(p);
    info.order = {split.boxes(part), split.is_split()
                                         ? split.dim_order
                                         : checkpoint::dim_order_of(part, parameter.tensor.strides().vec())};
    info.module_dtype = low_type();
    info.trainable = unit_of(p).trainable;
    return contents_.tensors.emplace_back(std::move(info));
  }

  /// Where an element of a unit is among those of its tensor.
  std::int64_t place_of(int p, std::int64_t in_unit) const {
    const auto& parameter = impl_.sharded.model.parameters[p];
    return split_of(p).elements_before(parameter.tensor.sizes().vec()) + in_unit - parameter.range.begin;
  }

  void add_piece(std::size_t tensor, int p, layout::Range mine, at::Tensor values) {
    if (!values.is_cpu()) {
      values = values.cpu();
      keep_.push_back(values);
    }
    contents_.pieces.push_back({tensor, place_of(p, mine.begin), mine.numel(), bytes_of(values)});
  }

  /// What is not in memory as fp32: `copy(range, out)` makes it so, part by part.
  template <class Copy>
  void add_made_piece(std::size_t tensor, int p, layout::Range mine, Copy copy) {
    const auto make = [copy, mine](std::int64_t first, std::int64_t count, std::byte* out) {
      const std::int64_t begin = mine.begin + first;
      copy(layout::Range{begin, begin + count}, reinterpret_cast<float*>(out));
    };
    contents_.pieces.push_back({tensor, place_of(p, mine.begin), mine.numel(), nullptr, make});
  }

  /// `copy` writes to memory of where states are; what this gives, to the host's.
  std::function<void(layout::Range, float*)> from_home(std::function<void(layout::Range, float*)> copy) const {
    if (impl_.sharded.model.device.is_cpu()) return copy;
    return [copy = std::move(copy), device = impl_.sharded.model.device](layout::Range range, float* out) {
      const at::NoGradGuard no_grad;
      const at::Tensor there = at::empty({range.numel()}, at::TensorOptions().dtype(at::kFloat).device(device));
      copy(range, there.mutable_data_ptr<float>());
      at::from_blob(out, {range.numel()}, at::kFloat).copy_(there);
    };
  }

  /// As it is kept where it is not in memory.
  void add_low_piece(std::size_t tensor, int p, layout::Range mine) {
    const auto element = static_cast<std::int64_t>(element_nbytes(impl_.sharded.model.param_dtype));
    const auto make = [store = impl_.sharded.store.get(), unit = impl_.sharded.model.parameters[p].unit, mine, element](
                          std::int64_t first, std::int64_t count, std::byte* out) {
      const std::int64_t begin = mine.begin + first;
      store->visit(
          unit, {begin, begin + count}, sharding::ParameterStore::Access::kRead, [&](layout::Range part, void* low) {
            std::memcpy(out + (part.begin - begin) * element, low, static_cast<std::size_t>(part.numel() * element));
          });
    };
    contents_.pieces.push_back({tensor, place_of(p, mine.begin), mine.numel(), nullptr, make});
  }

  /// The last tensor of the list, all of it from `begin` on from this rank.
  void add_whole(at::Tensor values, std::int64_t begin = 0) {
    if (!values.is_cpu()) values = values.cpu();
    keep_.push_back(values);
    contents_.pieces.push_back({contents_.tensors.size() - 1, begin, values.numel(), bytes_of(values)});
  }

  void add_random_state(int rank, c10::Device device) {
    const at::Tensor state = engine::random_state(device);
    TensorInfo info;
    info.name = random_state_name(rank, device.is_cpu() ? "cpu" : "accelerator");
    info.kind = kinds::kRandomState;
    info.dtype = info.module_dtype = ElementType::kU8;
    info.shape = {state.numel()};
    contents_.tensors.push_back(std::move(info));
    if (rank == impl_.groups.all.rank()) add_whole(state.contiguous());
  }

  const Engine::Impl& impl_;
  std::vector<at::Tensor>& keep_;
  std::vector<std::vector<std::string>> aliases_;
  checkpoint::Contents contents_;
  int island_ = 0;
  bool is_mine_ = true;
};

constexpr std::string_view kStepTag = "global_step";

/// Whose checkpoints are where, in this process. Two engines in one folder would replace each other's: without tags of
/// their own these are step numbers. An engine that has loaded from a folder goes on with what is there.
class FolderOwners {
 public:
  struct Place {
    const io::FileSystem* files = nullptr;
    int rank = 0;
    std::string folder;  ///< absolute, without links
    auto operator<=>(const Place&) const = default;
  };
  static Place place(const io::FileSystem& files, int rank, const std::string& folder) {
    std::error_code ignored;
    const auto path = std::filesystem::weakly_canonical(std::filesystem::absolute(folder, ignored), ignored);
    std::string text = path.empty() ? folder : path.string();
    while (text.size() > 1 && text.back() == '/') text.pop_back();
    return {&files, rank, text};
  }
  /// False when only others have saved there under `tag` (empty: under step numbers), and one of them was made, or has
  /// trained, since `who` was made. Else `who` replaces them, as the engine of a program's next training does.
  bool may_save(const Place& place, const std::string& tag, const Checkpoints* who) {
    const std::lock_guard lock(mutex_);
    auto& owners = owners_[place][tag];
    const auto is_over = [&](const Checkpoints* other) {
      return std::max(other->moments().made, other->moments().stepped) < who->moments().made;
    };
    if (!owners.contains(who) && std::ranges::all_of(owners, is_over)) owners = {who};
    return owners.contains(who);
  }
  /// True when others have saved `tag` there, and `who` has not.
  bool is_others(const Place& place, const std::string& tag, const Checkpoints* who) {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(place);
    if (found == owners_.end()) return false;
    const auto& tags = found->second;
    auto of_tag = tags.find(tag);
    if (of_tag == tags.end() && tag.starts_with(kStepTag)) of_tag = tags.find("");
    return of_tag != tags.end() && !of_tag->second.contains(who);
  }
  /// True when `who` has saved anything there.
  bool has_saved(const Place& place, const Checkpoints* who) {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(place);
    return found != owners_.end() && std::any_of(found->second.begin(), found->second.end(),
                                                 [who](const auto& item) { return item.second.contains(who); });
  }
  void join(const Place& place, const Checkpoints* who) {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(place);
    if (found == owners_.end()) return;
    for (auto& [tag, owners] : found->second) owners.insert(who);
  }
  void forget(const Checkpoints* who) {
    const std::lock_guard lock(mutex_);
    for (auto& [place, tags] : owners_) {
      for (auto& [tag, owners] : tags) owners.erase(who);
      std::erase_if(tags, [](const auto& item) { return item.second.empty(); });
    }
    std::erase_if(owners_, [](const auto& item) { return item.second.empty(); });
  }

 private:
  std::mutex mutex_;
  std::map<Place, std::map<std::string, std::set<const Checkpoints*>>> owners_;
};

FolderOwners& folder_owners() {
  static auto* owners = new FolderOwners;  // engines may go after static objects
  return *owners;
}

}  // namespace

std::string random_state_name(int rank, std::string_view device) { return fmt::format("rank_{:05}.{}", rank, device); }

Checkpoints::Checkpoints(Engine::Impl& impl, io::FileSystem& files)
    : impl_(impl),
      files_(files),
      checkpointer_(files, impl.groups.all, [this](std::size_t nbytes) { return staging(nbytes); }) {
  checkpointer_.leave_alone([this](const std::string& folder, const std::string& tag) {
    return folder_owners().is_others(FolderOwners::place(files_, impl_.groups.all.rank(), folder), tag, this);
  });
}

const EngineMoments& Checkpoints::moments() const { return impl_.life.moments; }

Checkpoints::~Checkpoints() { folder_owners().forget(this); }

void Checkpoints::own(const std::string& folder, const std::string& tag) {
  if (folder_owners().may_save(FolderOwners::place(files_, impl_.groups.all.rank(), folder), tag, this)) return;
  throw CheckpointError(fmt::format(
      "save_checkpoint: another engine of this process saves to '{}' {}, and the two would overwrite each "
      "other's checkpoints; give each engine a folder of its own, such as '{}/generator' and "
      "'{}/discriminator'",
      folder, tag.empty() ? "under step numbers too" : fmt::format("under the tag '{}' too", tag), folder, folder));
}

void Checkpoints::check_latest(const std::string& folder, const std::string& tag) {
  auto& owners = folder_owners();
  const auto place = FolderOwners::place(files_, impl_.groups.all.rank(), folder);
  if (!owners.has_saved(place, this) || !owners.is_others(place, tag, this)) return;
  throw CheckpointError(
      fmt::format("load_checkpoint without a tag: the latest checkpoint in '{}' is '{}', which another engine of this "
                  "process has saved; give the tag of one of this engine's",
                  folder, tag));
}

void Checkpoints::go_on_in(const std::string& folder) {
  folder_owners().join(FolderOwners::place(files_, impl_.groups.all.rank(), folder), this);
}

std::byte* Checkpoints::staging(std::size_t nbytes) {
  if (staging_.nbytes() < nbytes) {
    staging_ = {};
    staging_ = storage::FlatBuffer::make_private(impl_.sharded.ledger, MemoryKind::kStaging, DType::kByte,
                                                 static_cast<std::int64_t>(nbytes));
  }
  return static_cast<std::byte*>(staging_.data());
}

checkpoint::Contents Checkpoints::contents(const ProgramStates& program_states, std::vector<at::Tensor>& keep) const {
  Collector collector(impl_, keep);
  const auto& optimizer = *impl_.sharded.optimizer;
  const sharding::LocalSteps* const local_steps = impl_.sharded.local_steps.get();
  const bool has_sums = impl_.accumulation.window_micro_batches() > 0;
  if (has_sums) impl_.sharded.reducer->hold_sums();
  for (int island = 0; island < (local_steps ? local_steps->islands() : 1); ++island) {
    collector.begin_island(island);
    if (island == 0 || local_steps->in_round()) {
      collector.add_weights();
      collector.add_buffers();
    }
    for (std::size_t state = 0; state < optimizer.states().size(); ++state) collector.add_optimizer_state(state);
    collector.add_tensor_states();
    if (has_sums) collector.add_gradient_sums();
  }
  if (local_steps) collector.add_outer_values();
  std::set<std::string> of_program;
  for (const auto& state : program_states) {
    if (!state) continue;
    for (const auto& [name, tensor] : state->tensors) of_program.insert(name);
  }
  for (const auto& name : of_program) {
    collector.add_states(name, [&](int p, layout::Range range) {
      const auto& state = program_states[static_cast<std::size_t>(p)];
      if (state && state->tensors.contains(name))
        return keep.emplace_back(
            impl_.optimizer_source->keeper_of_states()->part_of(p, state->tensors.at(name), range));
      return keep.emplace_back(at::zeros({range.numel()}, at::kFloat));  // the JSON says that there is none
    });
  }
  collector.add_random_states();
  return collector.take();
}

Checkpoints::ProgramStates Checkpoints::take_program_states(nlohmann::json& described) const {
  ProgramStates states;
  engine::ProgramOptimizer* const optimizer = impl_.optimizer_source->keeper_of_states();
  if (!optimizer) return states;
  checkpoint::agree("saving a checkpoint", checkpoint::error_of([&] {
                      for (std::size_t p = 0; p < impl_.sharded.model.parameters.size(); ++p)
                        states.push_back(optimizer->saved_state(static_cast<int>(p)));
                    }),
                    impl_.groups.all);
  described = optimizer->to_json(states);
  Group group = impl_.groups.all;
  if (const auto difference = first_difference(described.dump(1), group, "optimizer states")) {
    throw CheckpointError(
        fmt::format("saving a checkpoint: {} has other numbers in its states on each rank, so it does not treat "
                    "elements one by one: {}",
                    optimizer->class_name(), *difference));
  }
  return states;
}

void Checkpoints::save(const std::string& folder, const std::string& tag, std::string_view client_state,
                       const SaveOptions& options) {
  at::NoGradGuard no_grad;
  own(folder, tag);
  impl_.sharded.store->quiesce();
  std::vector<at::Tensor> keep;
  SavedState state = SavedState::of(impl_);
  if (impl_.sharded.local_steps) state.add_islands(impl_);
  const ProgramStates program_states = take_program_states(state.program_optimizer);
  checkpoint::Contents contents = this->contents(program_states, keep);
  contents.global_steps = impl_.training.global_steps;
  contents.state = state.to_json();
  contents.client_state = client_state.empty() ? "null" : client_state;
  contents.config = impl_.config.to_json();
  if (impl_.sharded.optimizer->disk_traffic() || impl_.sharded.store->disk_traffic() ||
      impl_.sharded.reducer->disk_traffic())
    contents.only_streamed = "what is on NVMe streams from there to it";
  contents.versions = nlohmann::json{{"zerotorch", ZERO_VERSION}, {"torch", TORCH_VERSION}}.dump();
  const std::string name = tag.empty() ? fmt::format("{}{}", kStepTag, impl_.training.global_steps) : tag;
  checkpointer_.save(folder, name, std::move(contents), options);
}

Checkpoints& checkpoints_of(Engine::Impl& impl) {
  if (!impl.checkpoints) impl.checkpoints = std::make_shared<Checkpoints>(impl, io::system_files());
  return *impl.checkpoints;
}

void use_files(Engine::Impl& impl, io::FileSystem& files) {
  impl.checkpoints = std::make_shared<Checkpoints>(impl, files);
}

}  // namespace persistence

void Engine::save_checkpoint(const std::string& folder, const std::string& tag, std::string_view client_state,
                             const SaveOptions& options) {
  auto& impl = *impl_;
  impl.enter(engine::Entry::kBetweenSteps, "save_checkpoint");
  impl.check_values("save_checkpoint");
  if (impl.accumulation.window_micro_batches() > 0)
    impl.used_parts.agree(impl.groups, *impl.sharded.reducer, impl.sharded.model.parameters.size());
  persistence::checkpoints_of(impl).save(folder, tag, client_state, options);
  impl.sharded.reducer->forget_errors();  // a checkpoint has none, and a resumed run is to be the same as this one
}

void Engine::wait_checkpoint() {
  if (impl_->checkpoints) impl_->checkpoints->wait();
}

}  // namespace zero
