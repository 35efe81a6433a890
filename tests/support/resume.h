#pragma once
// Training runs of the odd model that are saved, loaded elsewhere and continued.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "zero/engine.h"

namespace zero::testing {

inline constexpr int kResumeWindow = 24;  ///< micro-batches of a step: divisible by 1, 2, 3, 4 and 8
inline constexpr int kResumeSteps = 4;

/// Where a run trains. Any two with the same precision must continue each other's checkpoints bit for bit.
struct ResumePlace {
  int ranks = 1;
  int stage = 0;
  bool node_shared = false;
  bool bf16 = false;
  std::int64_t window = kResumeWindow;  ///< micro-batches of a step
  std::int64_t steps = kResumeSteps;    ///< of a run to its end
  std::string name() const;
};

/// What must not depend on interruptions.
struct Trajectory {
  std::map<std::int64_t, double> losses;  ///< by global micro-batch
  std::map<std::int64_t, double> norms;   ///< by step
  std::uint64_t final_hash = 0;           ///< all full weights and optimizer states

  /// The first difference of the part that `later` has from this one; empty: none.
  std::string difference(const Trajectory& later) const;
};

/// Trains from the first micro-batch to `end` (all ranks' count), and saves to folder/tag unless that is
/// empty. *Collective.*
Trajectory train_and_save(const ResumePlace& place, Group group, std::int64_t end, const std::string& folder,
                          const std::string& tag, const SaveOptions& options = {});

/// Loads and trains to the end of the place's steps. *Collective.*
Trajectory load_and_train(const ResumePlace& place, Group group, const std::string& folder, const std::string& tag,
                          const LoadOptions& options = {});

/// The JSON of a place.
std::string resume_json(const ResumePlace& place);

}  // namespace zero::testing
