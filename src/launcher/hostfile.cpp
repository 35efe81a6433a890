#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "zero/errors.h"
#include "zero/hosts.h"

namespace zero {
namespace {

constexpr int kMostSlots = 4096;
constexpr std::string_view kSlots = "slots=";

HostSlots read_host(const std::string& line, const std::string& where) {
  std::istringstream words(line);
  HostSlots found;
  std::string slots, more;
  words >> found.host >> slots;
  const std::string_view digits = std::string_view(slots).substr(std::min(kSlots.size(), slots.size()));
  const auto [stop, error] = std::from_chars(digits.begin(), digits.end(), found.slots);
  const bool whole = slots.starts_with(kSlots) && error == std::errc() && stop == digits.end();
  if (!whole || found.host.starts_with('-') || found.slots < 1 || found.slots > kMostSlots || words >> more) {
    throw ConfigError(
        fmt::format("{}: got '{}', want a host and its number of ranks, such as 'worker-1 slots=4'", where, line));
  }
  return found;
}

}  // namespace

std::vector<HostSlots> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw IoError(fmt::format("--hostfile {}: {}", path, std::strerror(errno)));
  std::vector<HostSlots> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    const auto begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos) continue;
    line = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
    const std::string where = fmt::format("{}:{}", path, number);
    hosts.push_back(read_host(line, where));
    const auto is_same = [&](const HostSlots& other) { return other.host == hosts.back().host; };
    if (std::count_if(hosts.begin(), hosts.end(), is_same) > 1) {
      throw ConfigError(fmt::format("{}: host '{}' is there twice", where, hosts.back().host));
    }
  }
  if (file.bad()) throw IoError(fmt::format("--hostfile {}: cannot be read", path));
  if (hosts.empty()) throw ConfigError(fmt::format("--hostfile {}: no hosts in it", path));
  return hosts;
}

std::vector<HostSlots> first_slots(std::vector<HostSlots> hosts, int ranks) {
  if (ranks == 0) return hosts;
  int left = ranks;
  std::vector<HostSlots> taken;
  for (HostSlots& host : hosts) {
    if (left == 0) break;
    host.slots = std::min(host.slots, left);
    left -= host.slots;
    taken.push_back(std::move(host));
  }
  if (left > 0) throw ConfigError(fmt::format("-n {}: the hosts have {} slots", ranks, ranks - left));
  return taken;
}

}  // namespace zero
