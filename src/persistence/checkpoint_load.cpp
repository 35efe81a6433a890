// Engine::load_checkpoint: which checkpoint, and the phases of a load, on all ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/folder.h"
#include "checkpoint/range_reader.h"
#include "engine/agreement.h"
#include "persistence/checkpoints.h"
#include "persistence/load_apply.h"
#include "persistence/load_plan.h"
#include "zero/errors.h"

namespace zero {
namespace persistence {
namespace {

using checkpoint::agree;
using checkpoint::error_of;
using checkpoint::find_checkpoint;
using checkpoint::Found;
using engine::broadcast_text;
using engine::first_difference;

/// Loads one checkpoint. `changed` becomes true before the first value does. *Collective.*
LoadReport load_one(Engine::Impl& impl, io::FileSystem& files, const Found& found, const LoadOptions& options,
                    bool& changed) {
  const std::string what = fmt::format("loading the checkpoint '{}'", found.folder);
  const sharding::LocalSteps* const local_steps = impl.sharded.local_steps.get();
  const int island = local_steps ? local_steps->island() : 0, islands = local_steps ? local_steps->islands() : 1;
  std::optional<SavedTensors> tensors;
  SavedState state;
  LoadPlan plan;
  std::optional<checkpoint::RangeReader> reader;
  std::vector<int> frozen;
  agree(what, error_of([&] {
          const bool whole = !options.module_only;
          state = SavedState::from_json(found.manifest.state,
                                        {.optimizer = whole && options.load_optimizer_states, .training = whole},
                                        found.folder, island, islands);
          tensors.emplace(impl, found.manifest, options.names, state.islands == islands ? island : 0);
          frozen = frozen_with_states(impl, *tensors, state);
        }),
        impl.groups.all);
  const SavedTensors& saved = *tensors;
  impl.gradients->make_trainable(frozen);
  agree(what, error_of([&] {
          plan = plan_load(impl, found, saved, state, options);
          reader.emplace(files, found);
          if (options.verify_first) reader->read(verification_targets(plan.items));
        }),
        impl.groups.all);
  const bool is_repair = std::exchange(changed, true);
  impl.sharded.store->quiesce();
  impl.groups.data_parallel.barrier({.label = "load_checkpoint"}).wait();  // nobody reads old values any more
  agree(what, error_of([&] {
          prepare_window(impl, plan, options, is_repair);
          read_items(plan.items, found.manifest, *reader);
          for (const auto& put : plan.to_put) put();
        }),
        impl.groups.all);
  apply_load(impl, plan, options);
  return std::move(plan.report);
}

/// The checkpoint rank 0 finds, the same on every rank. *Collective.*
Found find_together(Engine::Impl& impl, io::FileSystem& files, const std::string& folder, const std::string& tag) {
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
    throw CheckpointError(fmt::format("{}: the ranks see different checkpoints there: {}", what, *difference));
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
}  // namespace persistence

namespace {

/// Leaves the engine marked as half loaded when a load ends without success after changing something.
struct LoadInProgress {
  explicit LoadInProgress(Engine::Impl& of) : impl(of), changed(std::exchange(of.life.half_loaded, false)) {}
  ~LoadInProgress() { impl.life.half_loaded = changed && !succeeded; }

  Engine::Impl& impl;
  bool changed;
  bool succeeded = false;
};

}  // namespace

LoadReport Engine::load_checkpoint(const std::string& folder, const std::string& tag, const LoadOptions& given) {
  auto& impl = *impl_;
  LoadOptions options = given;
  options.module_only = given.module_only || impl.trained.evaluation_only;
  LoadInProgress progress(impl);
  impl.enter(engine::Entry::kBetweenSteps, "load_checkpoint");
  wait_checkpoint();
  auto& files = persistence::checkpoints_of(impl).files();
  std::set<std::string> tried;
  std::vector<std::string> failures;
  std::string next = tag;
  while (true) {
    try {
      const auto found = persistence::find_together(impl, files, folder, next);
      next = found.tag;
      LoadReport report = persistence::load_one(impl, files, found, options, progress.changed);
      progress.succeeded = true;
      impl.note_loaded(report);
      persistence::checkpoints_of(impl).go_on_in(folder);
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
      const auto others = persistence::other_tags(impl, files, folder, tried);
      if (others.empty()) throw CheckpointError(fmt::format("{}", fmt::join(failures, "; then ")));
      next = others.front();
    }
  }
}

}  // namespace zero
