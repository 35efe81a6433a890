#pragma once
// Messages by UCX's tagged calls: TCP, InfiniBand, RoCE, and shared memory between ranks of a host.
//
// A process has one worker, which all its groups share. A message's 64-bit tag says which group it is of, which
// channel, who sent it, and the tag that the group gave it.
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/meeting_store.h"
#include "comm/messages/messenger.h"

namespace zero::comm {

class UcxWorker;

class UcxMessenger final : public Messenger {
 public:
  /// *Collective.* All ranks of the job, which learn each other's addresses from `store`. Throws CommError.
  static std::shared_ptr<UcxMessenger> of_all(int rank, int size, std::unique_ptr<MeetingStore> store);
  ~UcxMessenger() override;

  std::string_view name() const override { return "ucx"; }
  const std::shared_ptr<BackendLock>& lock() const override;
  std::size_t best_piece() const override;
  std::int64_t tags() const override;
  MessageHandle send(Channel channel, int peer, int tag, const void* data, std::size_t nbytes) override;
  MessageHandle receive(Channel channel, int peer, int tag, void* data, std::size_t nbytes) override;
  MessageHandle receive_any(Channel channel, void* data, std::size_t most) override;
  bool test(MessageHandle& handle) override;
  bool test(MessageHandle& handle, Arrival& arrival) override;
  bool cancel(MessageHandle& handle) noexcept override;
  std::shared_ptr<Messenger> subgroup(std::span<const int> members) override;
  void mark_failed(bool clean) noexcept override;
  std::string problem_of(int peer) const override;

 private:
  UcxMessenger(std::shared_ptr<UcxWorker> worker, std::uint64_t context, int rank, std::vector<int> members);
  std::uint64_t tag_of(Channel channel, int source, int tag) const;

  const std::shared_ptr<UcxWorker> worker_;
  const std::uint64_t context_;     ///< the number of this group, which no other that a member is in has
  const std::vector<int> members_;  ///< [size()] ranks in the job
};

}  // namespace zero::comm
