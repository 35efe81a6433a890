#pragma once
// CommsLog: what the section "comms_logger" of the configuration asks for.
#include <memory>
#include <string>
#include <vector>

#include "comm/call_log.h"
#include "observe/step_observer.h"
#include "zero/config.h"
#include "zero/group.h"
#include "zero/report.h"

namespace zero::observe {

class CommsLog final : public StepObserver {
 public:
  /// A group and what it is called.
  struct Part {
    std::string name;
    Group group;
    std::shared_ptr<comm::CallLog> log = {};
  };

  /// Records what these groups do from here on; `speaks`: of all ranks this one prints. Two parts of one group are one,
  /// and so are the logs of two engines over one group. Local.
  CommsLog(const Config::CommsLogger& options, std::vector<Part> parts, bool speaks);
  /// Logs the table of this rank, where it speaks. Local.
  ~CommsLog() override;
  CommsLog(const CommsLog&) = delete;
  CommsLog& operator=(const CommsLog&) = delete;

  /// Gets the calls of all groups from here on; null: nobody. Local.
  void set_trace(base::Trace* trace);
  /// Of this rank. Local.
  std::vector<CollectiveRecord> records() const;
  /// *Collective.*
  CommsSummary summary();

 private:
  std::vector<StragglerRecord> stragglers(Part& part) const;

  const bool by_label_, speaks_;
  std::vector<Part> parts_;
};

}  // namespace zero::observe
