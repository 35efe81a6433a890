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

/// *Collective.* Throws CommError, also where nobody has registered a store.
std::unique_ptr<MeetingStore> open_meeting_store(const MeetingPlace& place);

/// This room knows nothing of libtorch, whose TCPStore it is: engine/tcp_store.cpp registers it when the library is
/// loaded. Local.
using MeetingStoreMaker = std::unique_ptr<MeetingStore> (*)(const MeetingPlace& place);
void set_meeting_store(MeetingStoreMaker maker);

}  // namespace zero::comm
