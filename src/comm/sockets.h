#pragma once
// TCP sockets of control connections: of the launcher to its agents, and of ranks that watch each other.
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/memory.h"

namespace zero::comm {

/// A socket that listens on all addresses of this host, and its port. Throws IoError. Local.
std::pair<FileDescriptor, int> listen_anywhere();

/// The addresses of this host that others may reach it at, IPv4 first; loopback last. Local.
std::vector<std::string> own_addresses();

/// `address` is a number. Empty where nobody answers within `timeout_ms`. Local.
FileDescriptor connect_to(const std::string& address, int port, int timeout_ms);

/// The number; of an IPv4 address also where IPv6 carries it. Local.
std::string address_text(const sockaddr_storage& address, socklen_t length);

}  // namespace zero::comm
