#include "doctor/hosts_doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <system_error>
#include <vector>

#include "host/host_facts.h"
#include "text/colour.h"
#include "text/console.h"
#include "text/text_format.h"
#include "zero/errors.h"
#include "zero/group.h"
#include "zero/hosts.h"
#include "zero/launch.h"
#include "zero/memory.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

/// Time stamps of files and logs, and tokens that expire, want no more.
constexpr double kMostClockOffsetS = 1.0;
constexpr const char* kLineMark = "zero_doctor: ";  ///< before a line of JSON, among what shells and ssh print

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

fs::path probe_file(const std::string& run_dir, const std::string& token, const std::string& host) {
  return fs::path(run_dir) / fmt::format(".zero_doctor_{}_{}", token, host);
}

/// Empty: written.
std::string write_probe(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  errno = 0;
  std::ofstream file(path);
  file << "zero doctor" << std::flush;
  return file ? "" : std::strerror(errno != 0 ? errno : EIO);
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::optional<json> marked_json(const std::string& text) {
  const auto begin = text.find(kLineMark);
  if (begin == std::string::npos) return std::nullopt;
  const auto from = begin + std::strlen(kLineMark);
  json found = json::parse(text.substr(from, text.find('\n', from) - from), nullptr, /*allow_exceptions=*/false);
  if (found.is_discarded()) return std::nullopt;
  return found;
}

std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

/// What was found out of a host.
struct Host {
  std::string name;
  int slots = 0;
  std::optional<json> facts;  ///< none: it does not answer
  double offset_s = 0;        ///< of its clock, at least; 0: none that can be told
  double seconds = 0;         ///< until it had answered
  std::optional<json> link;   ///< from the first host
  std::vector<std::string> problems;
  std::vector<std::string> remedies;

  void complain(std::string problem, std::string remedy) {
    problems.push_back(std::move(problem));
    remedies.push_back(std::move(remedy));
  }
  std::string fact(const char* name) const { return facts ? facts->value(name, "") : ""; }
  std::int64_t number(const char* name) const { return facts ? facts->value(name, std::int64_t{0}) : 0; }
};

void take_answer(Host& host, const HostAnswer& answer, double begin_s) {
  host.seconds = answer.seconds;
  host.facts = answer.in_time ? marked_json(answer.out) : std::nullopt;
  if (host.facts) {
    const double its_s = host.facts->value("time_s", 0.0), end_s = begin_s + answer.seconds;
    host.offset_s = its_s > end_s ? its_s - end_s : its_s < begin_s ? its_s - begin_s : 0;
  } else if (!answer.in_time) {
    host.complain(fmt::format("no answer within {:.0f} s", answer.seconds),
                  fmt::format("see that `ssh {} true` works without a password", host.name));
  } else if (answer.exit_code == 127 || answer.exit_code == 126) {
    host.complain(fmt::format("there is no {}", own_command()[0]),
                  "install zerotorch there at the same path, or in a folder that all hosts see");
  } else {
    const std::string said = last_line(answer.error.empty() ? answer.out : answer.error);
    host.complain(fmt::format("exit code {}{}", answer.exit_code, said.empty() ? "" : ": " + said),
                  answer.exit_code == 255 ? fmt::format("see that `ssh {} true` works without a password", host.name)
                                          : "the first line of its output says what fails there");
  }
}

/// Hosts that compute with different programs train different curves, or not at all.
void compare_with_first(std::vector<Host>& hosts) {
  const auto first = std::find_if(hosts.begin(), hosts.end(), [](const Host& host) { return host.facts.has_value(); });
  if (first == hosts.end()) return;
  for (Host& host : hosts) {
    if (!host.facts) continue;
    for (const char* what : {"zerotorch", "libtorch"}) {
      if (host.fact(what) == first->fact(what)) continue;
      host.complain(fmt::format("{} {}, and {} on {}", what, host.fact(what), first->fact(what), first->name),
                    fmt::format("install the same {} on all hosts", what));
    }
    if (host.fact("instructions") != first->fact("instructions")) {
      host.complain(fmt::format("computes with {}, and {} with {}", host.fact("instructions"), first->name,
                                first->fact("instructions")),
                    "its results differ in their last bits: set ATEN_CPU_CAPABILITY and ZERO_ISA to the lesser on all");
    }
    if (std::abs(host.offset_s) > kMostClockOffsetS)
      host.complain(
          fmt::format("its clock is {:.1f} s {}", std::abs(host.offset_s), host.offset_s > 0 ? "ahead" : "behind"),
          "set the clocks by NTP (chrony)");
    if (host.number("cores") < host.slots)
      host.complain(fmt::format("{} slots, and {} cores", host.slots, host.number("cores")),
                    "give the host no more slots than it has cores or GPUs");
    if (!host.facts->value("shm", false))
      host.complain("/dev/shm is not there or not writable", "mount a tmpfs there: ranks of one host meet in it");
  }
}

void check_run_dir(std::vector<Host>& hosts, const std::string& run_dir, const std::string& token) {
  for (Host& host : hosts) {
    if (!host.facts) continue;
    std::error_code error;
    const std::string problem = host.fact("run_dir_error");
    if (!problem.empty()) {
      host.complain(fmt::format("cannot write {}: {}", short_path(run_dir), problem),
                    "give this user the right to write there, or choose another --run-dir");
    } else if (!host.facts->value("run_dir_shared", false) ||
               !fs::exists(probe_file(run_dir, token, host.fact("host")), error)) {
      host.complain(fmt::format("{} is another folder there", short_path(run_dir)),
                    "put the run folder where all hosts see the same (NFS, Lustre, ...): checkpoints need it");
    }
    fs::remove(probe_file(run_dir, token, host.fact("host")), error);
  }
}

/// One rank on each host that answers, and no more.
void measure_between(std::vector<Host>& hosts, double timeout_s) {
  std::vector<Host*> meet;
  for (Host& host : hosts)
    if (host.facts) meet.push_back(&host);
  if (meet.size() < 2) return;
  const fs::path file = fs::temp_directory_path() / fmt::format("zero_doctor_hosts_{}", ::getpid());
  {
    std::ofstream lines(file);
    for (const Host* host : meet) lines << host->name << " slots=1\n";
  }
  const std::string own = own_command()[0];
  const auto timeout =
      std::chrono::milliseconds(static_cast<int>(1000 * (timeout_s + 5.0 * static_cast<double>(meet.size()))));
  const auto answers = run_on_hosts(
      {"localhost"}, {own, "launch", "--hostfile", file.string(), "--no-prefix", own, "doctor", "--measure-links"},
      timeout);
  std::error_code error;
  fs::remove(file, error);
  const auto found = marked_json(answers[0].out);
  if (!found) {
    const std::string said = last_line(answers[0].error);
    for (std::size_t i = 1; i < meet.size(); ++i)
      meet[i]->complain(fmt::format("ranks on {} hosts do not meet{}{}", meet.size(), said.empty() ? "" : ": ", said),
                        "allow TCP connections between the hosts; OMPI_MCA_btl_tcp_if_include and "
                        "OMPI_MCA_oob_tcp_if_include name the network");
    return;
  }
  for (std::size_t i = 1; i < meet.size() && i - 1 < found->size(); ++i) meet[i]->link = (*found)[i - 1];
}

std::string bits_per_second(double nbytes_per_s) {
  const double bits = nbytes_per_s * 8;
  return bits >= 1e9 ? fmt::format("{:.1f} Gbit/s", bits / 1e9) : fmt::format("{:.0f} Mbit/s", bits / 1e6);
}

void print_host(const Host& host, const std::string& first, bool looks_at_folder) {
  constexpr std::size_t kIndent = 17;
  const std::string mark = host.problems.empty() ? painted(Tone::kGood, "ok") : painted(Tone::kBad, "!!");
  std::vector<std::string> lines;
  if (host.facts) {
    lines.push_back(fmt::format("zerotorch {}, libtorch {}, {}", host.fact("zerotorch"), host.fact("libtorch"),
                                host.fact("instructions")));
    lines.push_back(fmt::format("{} cores for {} ranks, {}", host.number("cores"), host.slots, host.fact("cpu")));
    lines.push_back(fmt::format("{} of {} available; clock {}{}", human_nbytes(host.number("memory_available")),
                                human_nbytes(host.number("memory_total")),
                                host.offset_s == 0 ? "in time" : fmt::format("{:+.1f} s", host.offset_s),
                                looks_at_folder && host.problems.empty() ? "; run folder is shared" : ""));
  }
  if (host.link)
    lines.push_back(fmt::format("{} from {}, {:.0f} us there and back",
                                bits_per_second(host.link->value("nbytes_per_s", 0.0)), first,
                                1e6 * host.link->value("round_trip_s", 0.0)));
  for (std::size_t i = 0; i < host.problems.size(); ++i) lines.push_back(host.problems[i] + ": " + host.remedies[i]);
  std::string text;
  for (const std::string& line : lines) text += wrapped(text.empty() ? "   " + host.name : "", line, kIndent);
  Console(true).print(mark + text.substr(2));
}

ordered_json to_json(const std::vector<Host>& hosts) {
  auto all = ordered_json::array();
  for (const Host& host : hosts) {
    ordered_json one = {{"host", host.name},
                        {"slots", host.slots},
                        {"answers", host.facts.has_value()},
                        {"seconds", host.seconds},
                        {"clock_offset_s", host.offset_s},
                        {"problems", host.problems},
                        {"remedies", host.remedies}};
    if (host.facts) one["facts"] = *host.facts;
    if (host.link) one["link"] = *host.link;
    all.push_back(one);
  }
  return all;
}

}  // namespace

int examine_hosts(const HostsDoctorOptions& options) {
  std::vector<Host> hosts;
  std::vector<std::string> names;
  for (const auto& [name, slots] : read_hostfile(options.hostfile)) {
    hosts.push_back({.name = name, .slots = slots});
    names.push_back(name);
  }
  const std::string run_dir = options.run_dir.empty() ? "" : fs::absolute(options.run_dir).string();
  const std::string token = fmt::format("{:08x}", std::random_device()());
  std::vector<std::string> command = {own_command()[0], "doctor", "--facts-of-host"};
  if (!run_dir.empty()) {
    if (const std::string problem = write_probe(probe_file(run_dir, token, "here")); !problem.empty())
      throw IoError(fmt::format("--run-dir {}: {}", run_dir, problem));
    command.insert(command.end(), {"--run-dir", run_dir, "--token", token});
  }
  const double begin_s = now_s();
  const auto answers =
      run_on_hosts(names, command, std::chrono::milliseconds(static_cast<int>(options.timeout_s * 1000)));
  for (std::size_t i = 0; i < hosts.size(); ++i) take_answer(hosts[i], answers[i], begin_s);
  compare_with_first(hosts);
  if (!run_dir.empty()) {
    check_run_dir(hosts, run_dir, token);
    std::error_code error;
    fs::remove(probe_file(run_dir, token, "here"), error);
  }
  measure_between(hosts, options.timeout_s);
  const bool well = std::all_of(hosts.begin(), hosts.end(), [](const Host& host) { return host.problems.empty(); });
  if (options.json) {
    Console(true).print(to_json(hosts).dump(2) + "\n");
  } else {
    for (const Host& host : hosts) print_host(host, hosts.front().name, !run_dir.empty());
    Console(true).print(well ? "\nready to train:\n  zero launch --hostfile " + for_shell(options.hostfile) +
                                   " zero train\n"
                             : "\nwhat is marked !! needs mending\n");
  }
  return well ? 0 : 1;
}

int print_facts_for_hosts_doctor(const std::string& run_dir, const std::string& token) {
  json facts = {{"time_s", now_s()}};
  const ordered_json all = host_facts();
  facts["host"] = host_name();
  facts["zerotorch"] = zerotorch_version();
  facts["libtorch"] = libtorch_version();
  facts["cpu"] = cpu_name();
  facts["instructions"] = all.at("host").at("libtorch_instruction_set");
  facts["cores"] = usable_cores();
  facts["memory_total"] = all.at("host").at("memory_total_nbytes");
  facts["memory_available"] = available_memory_nbytes();
  facts["shm"] = ::access("/dev/shm", W_OK) == 0;
  if (!run_dir.empty()) {
    std::error_code error;
    facts["run_dir_shared"] = fs::exists(probe_file(run_dir, token, "here"), error);
    facts["run_dir_error"] = write_probe(probe_file(run_dir, token, host_name()));
    // Not shared: nobody else would remove it.
    if (!facts["run_dir_shared"].get<bool>()) fs::remove(probe_file(run_dir, token, host_name()), error);
  }
  Console(true).print(kLineMark + facts.dump() + "\n");
  return 0;
}

int measure_links() {
  const Group world = init_distributed();
  const auto seconds_of = [](auto&& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  auto found = json::array();
  for (int other = 1; other < world.size(); ++other) {
    const bool takes_part = world.rank() == 0 || world.rank() == other;
    Group pair = world.split(takes_part ? 0 : world.rank());
    if (!takes_part) continue;
    std::vector<std::byte> data(1);
    const auto there_and_back = [&](std::size_t nbytes) {
      data.resize(nbytes);
      for (const int root : {0, 1})
        pair.broadcast(data.data(), static_cast<std::int64_t>(nbytes), DType::kByte, root).wait();
    };
    constexpr int kRounds = 50;
    there_and_back(1);
    const double round_trip_s = seconds_of([&] {
                                  for (int i = 0; i < kRounds; ++i) there_and_back(1);
                                }) /
                                kRounds;
    double nbytes_per_s = 0;
    constexpr double kLongEnoughS = 0.2;
    constexpr std::size_t kLeast = 1 << 16, kMost = 256 << 20;
    std::uint8_t goes_on = 1;
    for (std::size_t nbytes = kLeast; goes_on != 0; nbytes *= 2) {
      const double seconds = seconds_of([&] { there_and_back(nbytes); });
      nbytes_per_s = 2.0 * static_cast<double>(nbytes) / seconds;  // of the longest: networks let a burst pass
      goes_on = seconds < kLongEnoughS && nbytes < kMost ? 1 : 0;
      pair.broadcast(&goes_on, 1, DType::kByte, 0).wait();
    }
    found.push_back({{"round_trip_s", round_trip_s}, {"nbytes_per_s", nbytes_per_s}});
  }
  if (world.rank() == 0) Console(true).print(kLineMark + found.dump() + "\n");
  return 0;
}

}  // namespace zero::app
