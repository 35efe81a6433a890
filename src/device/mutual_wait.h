#pragma once
// MutualWait: tells ranks that wait for one another from ranks that wait for a slow one.
//
// What all ranks must ask for comes never if each waits for something else. Where ranks see of each other that they
// wait (shared memory) that is soon known. Elsewhere a rank that has waited for long says so in memory that the others
// read, and reads theirs: ranks of which every one stays in the same wait make no more calls.
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/transport.h"

namespace zero::device {

class MutualWait {
 public:
  /// *Collective.* Throws as comm::make_shard_window().
  explicit MutualWait(Group group);
  /// *Collective*, unless the group has failed or an exception unwinds the stack.
  ~MutualWait();
  MutualWait(const MutualWait&) = delete;
  MutualWait& operator=(const MutualWait&) = delete;

  /// *Local.* Waits for `post`, this rank's last one of `parcel`. False: it is not complete and never will be, as every
  /// rank has been in such a wait, or in one that the board sees, for 10 to 20 s. Throws as Work::wait().
  bool wait(comm::ExchangeBoard& board, int parcel, Work& post);

 private:
  bool wait_and_look(comm::ExchangeBoard& board, int parcel, Work& post);
  bool wait_and_ask(Work& post);
  void say(std::int64_t wait);

  Group group_;
  std::int64_t long_waits_ = 0;
  const int process_, exceptions_at_start_;
  SharedMemory mine_;                          ///< the number of the long wait that the rank is in; 0: in none
  std::vector<std::int64_t> everyones_;        ///< [N] the same of all ranks
  std::shared_ptr<comm::ShardWindow> window_;  ///< null where ranks see each other wait
  Work read_;                                  ///< of everyones_
};

}  // namespace zero::device
