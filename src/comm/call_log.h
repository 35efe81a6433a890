#pragma once
// CallLog: what the calls of a group move and how long they take, for whoever wants to know. A backend has none until
// it is given one.
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/trace.h"
#include "comm/call_record.h"

namespace zero::comm {

struct CallLogOptions {
  std::string group;        ///< its name, in lines
  int ranks = 1;            ///< of it
  std::uint32_t kinds = 0;  ///< bit k: the CollectiveKind of value k
  bool verbose = false;     ///< a line for every call that ends
};

/// Calls of one kind, label and size.
struct LoggedCalls {
  static constexpr std::int64_t kKept = 256;  ///< so many last calls one by one

  CollectiveKind kind = CollectiveKind::kBarrier;
  bool one_sided = false;  ///< the other ranks have no call for it
  std::string label;
  std::uint64_t label_hash = 0;
  std::int64_t nbytes = 0;  ///< of all ranks' slices, or the tensor
  std::int64_t begun = 0, ended = 0;
  std::int64_t ns = 0;  ///< of those that have ended: from call to end
  std::int64_t moving_ns = 0;
  std::vector<float> seconds;  ///< [kKept]: of call i, from 0, at i % kKept; negative: it has not ended
};

/// Bytes a second of calls that move `nbytes` in `seconds`, as nccl-tests count them. Local.
double algorithm_bandwidth(std::int64_t nbytes, double seconds);
/// What of it a link between `ranks` carries.
double bus_bandwidth(CollectiveKind kind, int ranks, double algorithm_bandwidth);

/// Thread-safe.
class CallLog {
 public:
  /// A call that was begun.
  struct Ticket {
    std::int32_t entry = -1;  ///< -1: nobody wants to know
    std::int64_t number = 0, begin_ns = 0;
  };

  explicit CallLog(CallLogOptions options) : options_(std::move(options)) {}
  const CallLogOptions& options() const { return options_; }

  Ticket begin(CollectiveKind kind, std::int64_t nbytes, std::string_view label, bool one_sided, std::int64_t begin_ns);
  /// Never throws: it is told in the middle of progress.
  void end(const Ticket& ticket, std::int64_t moving_ns) noexcept;
  std::vector<LoggedCalls> calls() const;
  /// What is begun while it pauses is not recorded.
  void pause(bool on);
  /// Gets the calls that end from here on; null: nobody. It outlives the log, or is taken away before it goes.
  void set_trace(base::Trace* trace);

 private:
  const CallLogOptions options_;
  mutable std::mutex mutex_;
  bool paused_ = false;
  base::Trace* trace_ = nullptr;
  std::map<std::tuple<CollectiveKind, bool, std::uint64_t, std::int64_t>, std::int32_t> index_;
  std::vector<LoggedCalls> entries_;
};

}  // namespace zero::comm
