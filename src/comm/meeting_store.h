#pragma once
// Where the ranks of a job meet before they can send each other messages: keys and values that all of them reach.
#include <chrono>
#include <memory>
#include <string>

namespace zero::comm {

class MeetingStore {
 public:
  virtual ~MeetingStore() = default;
  /// *Local.* Throws CommError.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// *Local.* Waits until some rank has set it. Throws CommError when that takes longer than the store's time-out.
  virtual std::string get(const std::string& key) = 0;
};

/// MASTER_ADDR and MASTER_PORT, as torch.distributed has them.
struct MeetingPlace {
  std::string host;
  int port = 0;
  bool serves = false;  ///< this rank: unless the launcher does, as torchrun's agent
  std::string prefix;   ///< of all keys: of this start of the job
  std::chrono::milliseconds timeout{0};
};

/// *Collective.* libtorch's TCPStore (defined in engine/tcp_store.cpp: this room knows nothing of libtorch). Shares the
/// server of a torch.distributed of the same process. Throws CommError.
std::unique_ptr<MeetingStore> open_meeting_store(const MeetingPlace& place);

}  // namespace zero::comm
