#pragma once
// Checkpoints of an engine: which tensors it has, where this rank's elements of them lie, and what else a
// run needs to go on.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "engine/engine_impl.h"
#include "engine/optimizers/program_optimizer.h"
#include "storage/flat_buffer.h"

namespace zero::persistence {

/// Names of random-generator states in a checkpoint: of this rank and device.
std::string random_state_name(int rank, std::string_view device);

class Checkpoints {
 public:
  Checkpoints(Engine::Impl& impl, io::FileSystem& files);
  ~Checkpoints();

  void save(const std::string& folder, const std::string& tag, std::string_view client_state,
            const SaveOptions& options);
  /// This engine has loaded from `folder`: it may save there beside whoever did so far. Local.
  void go_on_in(const std::string& folder);
  /// `tag` is what `folder` has as its latest. Throws CheckpointError when this engine saves there, and that one is
  /// another engine's. Local.
  void check_latest(const std::string& folder, const std::string& tag);
  void wait() { checkpointer_.wait(); }
  const checkpoint::SaveStatistics& statistics() const { return checkpointer_.statistics(); }
  io::FileSystem& files() const { return files_; }
  /// Of its engine.
  const engine::EngineMoments& moments() const;

 private:
  /// By parameter; empty: there is no such optimizer.
  using ProgramStates = std::vector<std::optional<engine::ProgramOptimizer::State>>;

  checkpoint::Contents contents(const ProgramStates& program_states, std::vector<at::Tensor>& keep) const;
  /// What is to be saved of the program's own optimizer. `described`: see SavedState. *Collective.* Throws
  /// CheckpointError on every rank.
  ProgramStates take_program_states(nlohmann::json& described) const;
  /// Throws CheckpointError when only other engines that are alive have saved to `folder` under `tag`. Local.
  void own(const std::string& folder, const std::string& tag);
  std::byte* staging(std::size_t nbytes);

  Engine::Impl& impl_;
  io::FileSystem& files_;
  storage::FlatBuffer staging_;
  checkpoint::Checkpointer checkpointer_;
};

/// The engine's, made at first use.
Checkpoints& checkpoints_of(Engine::Impl& impl);
/// Before the first use: all checkpoint files go through `files`, which outlives the engine. For tests.
void use_files(Engine::Impl& impl, io::FileSystem& files);

}  // namespace zero::persistence
