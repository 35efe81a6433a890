#pragma once
// StepTrace: what the section "zerotorch.trace" of the configuration asks for: some steps of this rank, in a file for
// Perfetto.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "io/file_system.h"
#include "io/traced_files.h"
#include "observe/comms_log.h"
#include "observe/step_observer.h"
#include "storage/ledger.h"
#include "zero/config.h"
#include "zero/group.h"

namespace zero::observe {

class StepTrace final : public StepObserver {
 public:
  /// `name` of the file, without its folder. `ledger` outlives it.
  StepTrace(const Config::Zerotorch::Trace& options, std::string name, const storage::Ledger& ledger);
  /// Writes what there is.
  ~StepTrace() override;
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  base::Trace& recorder() { return recorder_; }
  /// The result is this one's.
  io::FileSystem& watch(io::FileSystem& files) override;

  /// *Collective* over `all`. From here on: the first step begins, and the calls of these groups are told.
  void begin(Group all, std::vector<CommsLog::Part> parts);
  void end_training() override;

  // What the training thread does; these throw nothing.
  void use_parameter() override;  ///< with gradients on: forward has begun
  void begin_backward(bool announced) override;
  void end_backward() override;
  void begin_step() override;
  void end_step(std::int64_t global_steps, bool ends_accumulation) override;

 private:
  void add_span(std::string_view name, std::string_view what, std::int64_t begin_ns);
  void begin_of_step();  ///< starts recording, where the next one is the first to record
  void finish() noexcept;
  std::string text() const;

  const Config::Zerotorch::Trace options_;
  const std::string name_;
  const storage::Ledger& ledger_;
  base::Trace recorder_;
  std::vector<std::unique_ptr<io::FileSystem>> traced_files_;
  std::unique_ptr<CommsLog> calls_;
  const int process_;
  int rank_ = -1, ranks_ = 1;      ///< rank: since begin()
  std::int64_t to_common_ns_ = 0;  ///< from monotonic_ns() of this rank to nanoseconds since rank 0 began
  std::int64_t steps_ = 0;         ///< since begin()
  bool finished_ = false;
  // 0: not in one.
  std::int64_t forward_began_ns_ = 0, backward_began_ns_ = 0, step_began_ns_ = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> resident_;  ///< when, bytes of the process
};

}  // namespace zero::observe
