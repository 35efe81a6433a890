#pragma once
// Messages by MPI's point-to-point calls: a communicator for each channel.
#include <mpi.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/messages/messenger.h"

namespace zero::comm {

class MpiMessenger final : public Messenger {
 public:
  /// *Collective* over the ranks of `comm`, which it copies. Throws CommError.
  MpiMessenger(MPI_Comm comm, int rank, int size);
  ~MpiMessenger() override;

  std::string_view name() const override { return "mpi"; }
  const std::shared_ptr<BackendLock>& lock() const override;
  std::string progress_thread_problem() const override;
  std::size_t best_piece() const override;
  std::int64_t tags() const override { return tags_; }
  void open(Channel channel) override;
  MessageHandle send(Channel channel, int peer, int tag, const void* data, std::size_t nbytes) override;
  MessageHandle receive(Channel channel, int peer, int tag, void* data, std::size_t nbytes) override;
  MessageHandle receive_any(Channel channel, void* data, std::size_t most) override;
  bool test(MessageHandle& handle) override;
  bool test(MessageHandle& handle, Arrival& arrival) override;
  bool cancel(MessageHandle& handle) noexcept override;
  void all_gather(const void* mine, std::size_t nbytes, void* all) override;
  std::shared_ptr<Messenger> subgroup(std::span<const int> members) override;
  void mark_failed(bool clean) noexcept override;

 private:
  MPI_Comm comm_of(Channel channel) const { return comms_[static_cast<std::size_t>(channel)]; }

  std::array<MPI_Comm, kChannels> comms_;
  std::int64_t tags_ = 0;
  bool failed_ = false;
  const pid_t pid_;
};

}  // namespace zero::comm
