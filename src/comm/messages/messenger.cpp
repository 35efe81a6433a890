#include "comm/messages/messenger.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

namespace zero::comm {

void Messenger::all_gather(const void* mine, std::size_t nbytes, void* all) {
  auto* const slices = static_cast<std::byte*>(all);
  MessageRequests requests;
  for (int peer = 0; peer < size_; ++peer) {
    std::byte* const slice = slices + static_cast<std::size_t>(peer) * nbytes;
    if (peer == rank_) {
      std::memcpy(slice, mine, nbytes);
      continue;
    }
    requests.receive(*this, Channel::kData, peer, 0, slice, nbytes);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) requests.send(*this, Channel::kData, peer, 0, mine, nbytes);
  }
  while (!requests.test()) ::sched_yield();
}

void MessageRequests::send(Messenger& messenger, Channel channel, int peer, int tag, const void* data,
                           std::size_t nbytes) {
  messenger_ = &messenger;
  const auto* bytes = static_cast<const std::byte*>(data);
  const std::size_t most = messenger.longest_message();
  for (std::size_t done = 0; done < nbytes; done += most) {
    handles_.push_back(messenger.send(channel, peer, tag, bytes + done, std::min(most, nbytes - done)));
  }
}

void MessageRequests::receive(Messenger& messenger, Channel channel, int peer, int tag, void* data,
                              std::size_t nbytes) {
  messenger_ = &messenger;
  auto* bytes = static_cast<std::byte*>(data);
  const std::size_t most = messenger.longest_message();
  for (std::size_t done = 0; done < nbytes; done += most) {
    handles_.push_back(messenger.receive(channel, peer, tag, bytes + done, std::min(most, nbytes - done)));
  }
}

bool MessageRequests::test() {
  for (; completed_ < handles_.size(); ++completed_) {
    MessageHandle& handle = handles_[completed_];
    if (handle != 0 && !messenger_->test(handle)) return false;
  }
  handles_.clear();
  completed_ = 0;
  return true;
}

void MessageRequests::drop_completed() {
  std::erase_if(handles_, [this](MessageHandle& handle) { return handle == 0 || messenger_->test(handle); });
  completed_ = 0;
}

bool MessageRequests::cancel() noexcept {
  bool clean = true;
  for (MessageHandle& handle : handles_) {
    if (handle != 0) clean = messenger_->cancel(handle) && clean;
  }
  if (clean) {
    handles_.clear();
    completed_ = 0;
  }
  return clean;
}

}  // namespace zero::comm
