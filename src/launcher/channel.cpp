#include "launcher/channel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "comm/sockets.h"

namespace zero::launcher {

using comm::FileDescriptor;

namespace {

constexpr std::size_t kHeader = 5;  ///< kind and length
constexpr std::size_t kLongestBody = 64 << 20;

}  // namespace

Channel::Channel(FileDescriptor socket) : socket_(std::move(socket)) {
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
}

void Channel::queue(MessageKind kind, std::string_view body) {
  const std::lock_guard lock(mutex_);
  const auto length = htonl(static_cast<std::uint32_t>(body.size()));
  char header[kHeader] = {static_cast<char>(kind)};
  std::memcpy(header + 1, &length, sizeof(length));
  unsent_.append(header, kHeader);
  unsent_ += body;
  flush_locked();
}

void Channel::flush() {
  const std::lock_guard lock(mutex_);
  flush_locked();
}

void Channel::flush_locked() {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      unsent_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      unsent_.clear();  // receive() finds out
      return;
    }
  }
}

std::size_t Channel::unsent() const {
  const std::lock_guard lock(mutex_);
  return unsent_.size();
}

void Channel::receive() {
  char buffer[64 << 10];
  while (!gone_) {
    const ssize_t got = ::recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got > 0) {
      unread_.append(buffer, static_cast<std::size_t>(got));
    } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      gone_ = true;
    } else if (errno != EINTR) {
      return;
    }
  }
}

std::optional<Message> Channel::next() {
  if (unread_.size() < kHeader) return std::nullopt;
  std::uint32_t length = 0;
  std::memcpy(&length, unread_.data() + 1, sizeof(length));
  length = ntohl(length);
  if (length > kLongestBody) {  // somebody else, who has found the port
    gone_ = true;
    unread_.clear();
    return std::nullopt;
  }
  if (unread_.size() < kHeader + length) return std::nullopt;
  Message message{static_cast<MessageKind>(unread_[0]), unread_.substr(kHeader, length)};
  unread_.erase(0, kHeader + length);
  return message;
}

std::string Channel::own_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return comm::address_text(address, length);
}

std::string Channel::peer_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  ::getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return comm::address_text(address, length);
}

}  // namespace zero::launcher
