#include "launcher/channel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "zero/errors.h"

namespace zero::launcher {

using comm::FileDescriptor;

namespace {

constexpr std::size_t kHeader = 5;  ///< kind and length
constexpr std::size_t kLongestBody = 64 << 20;

std::string text_of(const sockaddr_storage& address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  const std::string_view mapped = "::ffff:";
  const std::string_view found = text;
  return std::string(found.starts_with(mapped) ? found.substr(mapped.size()) : found);
}

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
  return text_of(address, length);
}

std::string Channel::peer_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  ::getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return text_of(address, length);
}

std::pair<FileDescriptor, int> listen_anywhere() {
  for (const int family : {AF_INET6, AF_INET}) {
    FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    const int off = 0;
    if (family == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (!socket || ::bind(socket.get(), generic, length) != 0 || ::listen(socket.get(), SOMAXCONN) != 0 ||
        ::getsockname(socket.get(), generic, &length) != 0)
      continue;
    const auto port = family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(generic)->sin6_port
                                         : reinterpret_cast<sockaddr_in*>(generic)->sin_port;
    return {std::move(socket), ntohs(port)};
  }
  throw IoError(fmt::format("launch: cannot listen on a TCP port of this host: {}", std::strerror(errno)));
}

std::vector<std::string> own_addresses() {
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return {"127.0.0.1"};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(interfaces, &::freeifaddrs);
  std::vector<std::string> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = interfaces; one; one = one->ifa_next) {
      const bool is_up = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
      if (!one->ifa_addr || one->ifa_addr->sa_family != family || !is_up) continue;
      const auto* const ipv6 = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr)) continue;
      sockaddr_storage address{};
      const socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
      std::memcpy(&address, one->ifa_addr, length);
      found.push_back(text_of(address, length));
    }
  }
  found.emplace_back("127.0.0.1");
  return found;
}

FileDescriptor connect_to(const std::string& address, int port, int timeout_ms) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* raw = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &raw) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, &::freeaddrinfo);
  FileDescriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  if (::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return {};
  pollfd ready{socket.get(), POLLOUT, 0};
  int error = 0;
  socklen_t length = sizeof(error);
  const bool connected = ::poll(&ready, 1, timeout_ms) == 1 &&
                         ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
  return connected ? std::move(socket) : FileDescriptor();
}

}  // namespace zero::launcher
