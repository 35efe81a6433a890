#include "plan/cluster_file.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "text/command_line.h"
#include "text/quantity.h"
#include "zero/errors.h"

namespace zero::app {
namespace {

using nlohmann::json;

/// Keys of an object, and who takes their values.
using Readers = std::map<std::string, std::function<void(const std::string& name, const json& value)>>;

[[noreturn]] void refuse(const std::string& name, const std::string& problem) {
  throw ConfigError(fmt::format("--cluster {}: {}", name, problem));
}

std::string text_of(const std::string& name, const json& value, const char* wanted) {
  if (value.is_string()) return value.get<std::string>();
  refuse(name, fmt::format("got {}, want {}", value.dump(), wanted));
}

/// With the key before the message.
template <class Parse>
auto parsed(const std::string& name, const json& value, const char* wanted, Parse parse) {
  return parse("--cluster " + name, text_of(name, value, wanted));
}

auto count(int& to) {
  return [&to](const std::string& name, const json& value) {
    constexpr std::int64_t kMost = 1'000'000;
    const bool is_whole =
        value.is_number_integer() && value.get<std::int64_t>() >= 1 && value.get<std::int64_t>() <= kMost;
    if (!is_whole) refuse(name, fmt::format("got {}, want a whole number from 1 to {}", value.dump(), kMost));
    to = value.get<int>();
  };
}

auto size(std::int64_t& to) {
  return [&to](const std::string& name, const json& value) {
    to = parsed(name, value, "a size with its unit, such as \"80GB\"", parse_nbytes);
    if (to <= 0) refuse(name, "got 0, want a size such as \"80GB\"");
  };
}

auto rate(double& to) {
  return [&to](const std::string& name, const json& value) {
    to = parsed(name, value, "a rate with its unit, such as \"450GB/s\" or \"400Gbit/s\"", parse_bandwidth);
  };
}

auto seconds(double& to) {
  return [&to](const std::string& name, const json& value) {
    to = parsed(name, value, "a time with its unit, such as \"10us\" or \"12h\"", parse_seconds);
  };
}

auto duplex(bool& is_half) {
  return [&is_half](const std::string& name, const json& value) {
    const std::string text = text_of(name, value, "\"full\" or \"half\"");
    if (text != "full" && text != "half") refuse(name, fmt::format("got '{}', want \"full\" or \"half\"", text));
    is_half = text == "half";
  };
}

auto flops(double& to) {
  return [&to](const std::string& name, const json& value) {
    to = value.is_number() ? value.get<double>()
                           : static_cast<double>(parsed(name, value, "a number such as 4e14 or \"400T\"", parse_count));
    if (!(to > 0) || !std::isfinite(to)) refuse(name, fmt::format("got {}, want more than 0", value.dump()));
  };
}

void read(const std::string& name, const json& object, const Readers& readers) {
  if (!object.is_object())
    refuse(name.substr(0, name.find_last_not_of(':') + 1), fmt::format("got {}, want an object", object.dump()));
  for (const auto& [key, value] : object.items()) {
    const std::string path = fmt::format("{}{}{}", name, name.back() == ':' ? " " : ".", key);
    const auto found = readers.find(key);
    if (found != readers.end()) {
      found->second(path, value);
      continue;
    }
    std::vector<std::string> names;
    for (const auto& [known, reader] : readers) names.push_back(known);
    refuse(path, "unknown key" + did_you_mean(key, names));
  }
}

auto section(const Readers& readers) {
  return [&readers](const std::string& name, const json& value) { read(name, value, readers); };
}

/// Refuses keys that an object has twice: the later one would count without a word.
json::parser_callback_t keys_once(const std::string& path) {
  return [path, open = std::vector<std::set<std::string>>{}](int, json::parse_event_t event, json& parsed) mutable {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second)
      refuse(path, fmt::format("has '{}' twice in one object; remove one", parsed.get<std::string>()));
    return true;
  };
}

}  // namespace

plan::Cluster read_cluster(const std::string& path) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) throw IoError(fmt::format("--cluster {}: cannot be read", path));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  json root;
  try {
    root = json::parse(text, keys_once(path), /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const json::exception& error) {
    refuse(path, fmt::format("is no JSON: {}", error.what()));
  }
  plan::Cluster cluster;
  plan::Speeds& speeds = cluster.speeds;
  int nodes = 1;
  cluster.ranks_per_node = 1;
  const Readers of_node = {{"memory", size(cluster.node_memory_nbytes)},
                           {"memory_bandwidth", rate(speeds.host_memory)},
                           {"network", rate(speeds.between_hosts)},
                           {"duplex", duplex(speeds.half_duplex)},
                           {"latency", seconds(speeds.host_latency)},
                           {"message", seconds(speeds.message_seconds)},
                           {"nvme", rate(speeds.disk)}};
  const Readers of_gpu = {{"memory", size(cluster.gpu_memory_nbytes)},
                          {"memory_bandwidth", rate(speeds.device_memory)},
                          {"nvlink", rate(speeds.between_ranks)},
                          {"latency", seconds(speeds.rank_latency)},
                          {"pcie", rate(speeds.to_device)},
                          {"flops", flops(speeds.flops_per_s)}};
  const Readers of_cpu = {{"shared_memory", rate(speeds.between_ranks)},
                          {"latency", seconds(speeds.rank_latency)},
                          {"moves", rate(speeds.moved_by_core)},
                          {"flops", flops(speeds.flops_per_s)}};
  plan::Failures& failures = cluster.failures;
  const Readers of_failures = {{"host_mtbf", seconds(failures.host_mtbf)},
                               {"detection", seconds(failures.detection)},
                               {"restart", seconds(failures.restart)},
                               {"checkpoint", seconds(failures.checkpoint)},
                               {"interval", seconds(failures.interval)}};
  read(path + ":", root,
       {{"nodes", count(nodes)},
        {"ranks_per_node", count(cluster.ranks_per_node)},
        {"node", section(of_node)},
        {"gpu", section(of_gpu)},
        {"cpu", section(of_cpu)},
        {"failures", section(of_failures)}});
  cluster.gpus = root.contains("gpu");
  if (cluster.gpus && root.contains("cpu"))
    refuse(path, "has 'gpu' and 'cpu', in one of which ranks compute; keep one");
  if (cluster.gpus && cluster.gpu_memory_nbytes == 0)
    refuse(path + ": gpu", "has no 'memory'; give it, such as \"80GB\"");
  if (root.contains("failures") && failures.host_mtbf == 0)
    refuse(path + ": failures",
           "has no 'host_mtbf', the mean time between failures of a host; give it, such as \"90d\"");
  cluster.ranks = nodes * cluster.ranks_per_node;
  return cluster;
}

}  // namespace zero::app
