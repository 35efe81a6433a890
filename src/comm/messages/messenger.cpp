#include "comm/messages/messenger.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

constexpr std::int64_t kShortNs = 5 * base::kNanosPerMilli;
constexpr std::int64_t kMeetingNs = 300 * base::kNanosPerSecond;

}  // namespace

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
  const std::int64_t begin_ns = base::monotonic_ns();
  while (!requests.test()) {
    const std::int64_t waited_ns = base::monotonic_ns() - begin_ns;
    if (waited_ns < kShortNs) {
      ::sched_yield();
      continue;
    }
    for (int peer = 0; peer < size_; ++peer) {
      const std::string problem = peer == rank_ ? std::string() : problem_of(peer);
      if (!problem.empty()) throw CommError(fmt::format("rank {} {} while the group was made", peer, problem));
    }
    if (waited_ns > kMeetingNs) throw CommError("the ranks did not all come while the group was made");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

bool has_rdma() {
  std::error_code error;
  const std::filesystem::path devices = "/sys/class/infiniband";
  return std::filesystem::is_directory(devices, error) && !std::filesystem::is_empty(devices, error);
}

void MessageRequests::send(Messenger& messenger, Channel channel, int peer, int tag, const void* data,
                           std::size_t nbytes) {
  if (nbytes == 0) return;
  messenger_ = &messenger;
  sending_.push_back({.channel = channel,
                      .peer = peer,
                      .tag = tag,
                      .data = static_cast<const std::byte*>(data),
                      .nbytes = nbytes,
                      .pieces = {}});
  advance(sending_.size() - 1);
}

void MessageRequests::receive(Messenger& messenger, Channel channel, int peer, int tag, void* data,
                              std::size_t nbytes) {
  messenger_ = &messenger;
  auto* bytes = static_cast<std::byte*>(data);
  const std::size_t piece = messenger.piece();
  for (std::size_t done = 0; done < nbytes; done += piece)
    receiving_.push_back(messenger.receive(channel, peer, tag, bytes + done, std::min(piece, nbytes - done)));
}

bool MessageRequests::advance(std::size_t index) {
  Sending& sending = sending_[index];
  const auto is_before = [&](const Sending& other) { return other.is_before(sending); };
  if (std::any_of(sending_.begin(), sending_.begin() + static_cast<std::ptrdiff_t>(index), is_before)) return false;
  const std::size_t piece = messenger_->piece();
  while (true) {
    while (sending.count > 0) {
      MessageHandle& oldest = sending.pieces[sending.first];
      if (oldest != 0 && !messenger_->test(oldest)) break;
      sending.first = (sending.first + 1) % kMostUnderWay;
      --sending.count;
    }
    if (sending.begun == sending.nbytes || sending.count == kMostUnderWay) break;
    while (sending.begun < sending.nbytes && sending.count < kMostUnderWay) {
      const std::size_t nbytes = std::min(piece, sending.nbytes - sending.begun);
      sending.pieces[(sending.first + sending.count++) % kMostUnderWay] =
          messenger_->send(sending.channel, sending.peer, sending.tag, sending.data + sending.begun, nbytes);
      sending.begun += nbytes;
    }
  }
  return sending.count == 0 && sending.begun == sending.nbytes;
}

bool MessageRequests::test() {
  drop_completed();
  for (; received_ < receiving_.size(); ++received_) {
    MessageHandle& handle = receiving_[received_];
    if (handle != 0 && !messenger_->test(handle)) return false;
  }
  receiving_.clear();
  received_ = 0;
  return sending_.empty();
}

void MessageRequests::drop_completed() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < sending_.size(); ++i) {
    if (advance(i)) {
      sending_[i].begun = sending_[i].nbytes;  // is_before() nothing
    } else {
      if (kept != i) sending_[kept] = sending_[i];
      ++kept;
    }
  }
  sending_.resize(kept);
}

bool MessageRequests::cancel() noexcept {
  bool clean = true;
  for (MessageHandle& handle : receiving_) {
    if (handle != 0) clean = messenger_->cancel(handle) && clean;
  }
  for (Sending& sending : sending_) {
    for (std::size_t i = 0; i < sending.count; ++i) {
      MessageHandle& handle = sending.pieces[(sending.first + i) % kMostUnderWay];
      if (handle != 0) clean = messenger_->cancel(handle) && clean;
    }
  }
  if (clean) {
    receiving_.clear();
    received_ = 0;
    sending_.clear();
  }
  return clean;
}

}  // namespace zero::comm
