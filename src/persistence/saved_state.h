#pragma once
// The `state` of a checkpoint as a value: written and read here alone (docs/checkpoint_format.md).
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine_impl.h"

namespace zero::persistence {

struct SavedState {
  engine::TrainingState training;  ///< of `lr_overrides` only one where all groups have the same

  // The accumulation window.
  std::int64_t window_micro_batches = 0;  ///< of training.micro_batches, in the window that is not over
  std::int64_t gradient_accumulation_steps = 1;
  std::int64_t data_parallel_size = 1;
  std::vector<std::string> unused_in_window;  ///< parameters, where the window is not over

  // The optimizer.
  std::int64_t optimizer_steps = 0;
  std::map<std::string, std::int64_t> parameter_steps;  ///< of parameters that have another number of them
  nlohmann::json program_optimizer;                     ///< engine::ProgramOptimizer::to_json(); null: there is none
  std::vector<std::string> frozen;  ///< parameters that are frozen for now, with states in the checkpoint

  // Of islands that train apart; 1 where there are none.
  int islands = 1;
  bool in_round = false;                      ///< their weights differ
  std::vector<nlohmann::json> other_islands;  ///< the states of all but the first, which is this one

  // For whoever reads the file, and for warnings: null where the file does not say.
  nlohmann::json model_parallel_size, stage, precision, threads_per_rank, cpu_capability, cpu_products;
  nlohmann::json optimizer;  ///< its name; states of one name may be another's

  /// Micro-batches of all data-parallel ranks that made a step.
  std::int64_t window() const { return gradient_accumulation_steps * data_parallel_size; }

  /// What is saved as `optimizer`: Adam for its 8-bit form, too.
  static std::string optimizer_name(const sharding::ShardedOptimizer& optimizer);
  /// Of an engine between two steps. Local.
  static SavedState of(const Engine::Impl& impl);

  /// Brings those of all islands together. *Collective.*
  void add_islands(Engine::Impl& impl);

  std::string to_json() const;
  /// What a load takes. The rest keeps its default, whatever the file says.
  struct Parts {
    bool optimizer = true;  ///< optimizer, optimizer_steps, parameter_steps, program_optimizer, frozen,
                            ///< unused_in_window
    bool training = true;   ///< all others
  };
  /// `text` is JSON of any version that is read, in which everything may be missing or nonsense: then it throws
  /// CheckpointError, which names the checkpoint's `folder`.
  /// Of one of `islands`, where the checkpoint is of as many, else of the first.
  static SavedState from_json(const std::string& text, Parts parts, const std::string& folder, int island = 0,
                              int islands = 1);
};

/// How many threads and which instructions this process computes with, as they are in SavedState.
nlohmann::json threads_per_rank();
nlohmann::json cpu_capability();
/// How 16-bit products are computed; null: there are none, or not on the CPU.
nlohmann::json cpu_products(const Engine::Impl& impl);

}  // namespace zero::persistence
