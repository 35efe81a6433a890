#include "comm/sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "zero/errors.h"

namespace zero::comm {

std::string address_text(const sockaddr_storage& address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  const std::string_view mapped = "::ffff:";
  const std::string_view found = text;
  return std::string(found.starts_with(mapped) ? found.substr(mapped.size()) : found);
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
  throw IoError(fmt::format("cannot listen on a TCP port of this host: {}", std::strerror(errno)));
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
      found.push_back(address_text(address, length));
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
  int answers = 0;
  do {
    answers = ::poll(&ready, 1, timeout_ms);
  } while (answers < 0 && errno == EINTR);
  const bool connected =
      answers == 1 && ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
  return connected ? std::move(socket) : FileDescriptor();
}

}  // namespace zero::comm
