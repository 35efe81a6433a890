#include "comm/rendezvous.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "comm/process.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

/// The variables of one launcher; the first of each list that is set counts.
struct Variables {
  Launcher launcher;
  std::vector<const char*> rank;
  std::vector<const char*> size;
  std::vector<const char*> local_rank;
  std::vector<const char*> local_size;
};

const std::vector<Variables>& known_launchers() {
  static const std::vector<Variables> launchers = {
      {Launcher::kZero, {"ZERO_RANK"}, {"ZERO_WORLD_SIZE"}, {"ZERO_LOCAL_RANK"}, {"ZERO_LOCAL_WORLD_SIZE"}},
      {Launcher::kTorchrun, {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}},
      {Launcher::kOpenMpi,
       {"OMPI_COMM_WORLD_RANK"},
       {"OMPI_COMM_WORLD_SIZE"},
       {"OMPI_COMM_WORLD_LOCAL_RANK"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {Launcher::kPmi,
       {"PMI_RANK"},
       {"PMI_SIZE"},
       {"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"},
       {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}},
      {Launcher::kSlurm, {"SLURM_PROCID"}, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}, {}},
  };
  return launchers;
}

struct Value {
  const char* name;
  int value;
};

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  const std::string* text(const char* name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() || found->second.empty() ? nullptr : &found->second;
  }

  std::optional<Value> number(const std::vector<const char*>& names) const {
    for (const char* name : names) {
      if (const std::string* value = text(name)) return Value{name, parse(name, *value)};
    }
    return std::nullopt;
  }

 private:
  static int parse(const char* name, const std::string& text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) {
      throw ConfigError(
          fmt::format("environment variable {}: got \"{}\", wanted a whole number of 0 or more. Start the "
                      "ranks with `zero launch`, "
                      "torchrun or mpirun, or unset the variable.",
                      name, text));
    }
    return value;
  }

  const Environment& environment_;
};

/// Slurm's variables are also there in a batch script that srun has not started: one process, no rank.
bool inside_srun(const Reader& reader) { return reader.text("SLURM_STEP_ID") || reader.text("SLURM_STEPID"); }

bool applies(const Variables& variables, const Reader& reader) {
  if (variables.launcher == Launcher::kSlurm) {
    const auto size = reader.number(variables.size);
    return reader.text(variables.rank[0]) && size && size->value > 1 && inside_srun(reader);
  }
  // LOCAL_RANK and WORLD_SIZE alone are set by many tools; rank and size together mean a launcher.
  if (variables.launcher == Launcher::kTorchrun) return reader.text("RANK") && reader.text("WORLD_SIZE");
  return reader.text(variables.rank[0]) || reader.text(variables.size[0]);
}

Value require(const std::optional<Value>& value, const char* name, const char* found, Launcher launcher) {
  if (value) return *value;
  throw ConfigError(
      fmt::format("environment variable {} is not set although {} ({}) is. Set both, or neither to run "
                  "alone, or use `zero launch`.",
                  name, found, launcher_name(launcher)));
}

std::string slurm_local_size(const Reader& reader) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const std::string* text = reader.text(name);
    // "4" or "4(x3)": the same everywhere; "4,2": depends on the node, and nobody says which this is.
    if (text && text->find(',') == std::string::npos) return text->substr(0, text->find('('));
  }
  return {};
}

int local_size_of(const Variables& variables, const Reader& reader, int size) {
  if (const auto value = reader.number(variables.local_size)) return value->value;
  if (variables.launcher == Launcher::kZero) return size;
  if (variables.launcher == Launcher::kSlurm || (variables.launcher == Launcher::kPmi && inside_srun(reader))) {
    const Environment parsed{{"SLURM_STEP_TASKS_PER_NODE", slurm_local_size(reader)}};
    if (const auto value = Reader(parsed).number({"SLURM_STEP_TASKS_PER_NODE"})) return value->value;
  }
  return 0;
}

std::string job_id_of(Launcher launcher, const Reader& reader, const std::string& parent) {
  const auto text_or = [&](const char* name, const char* otherwise) {
    const std::string* text = reader.text(name);
    return text ? *text : std::string(otherwise);
  };
  if (const std::string* id = reader.text("ZERO_JOB_ID")) return *id;
  switch (launcher) {
    case Launcher::kTorchrun:
      // Ranks that were started by hand share no parent but the address and port they would meet at.
      if (!reader.text("TORCHELASTIC_RUN_ID")) return fmt::format("env-{}", text_or("MASTER_PORT", "0"));
      return fmt::format("torchrun-{}-{}-{}-{}", text_or("TORCHELASTIC_RUN_ID", ""), text_or("MASTER_PORT", "0"),
                         text_or("TORCHELASTIC_RESTART_COUNT", "0"), parent);
    case Launcher::kOpenMpi:
      return fmt::format("ompi-{}",
                         text_or("PMIX_NAMESPACE", text_or("OMPI_MCA_ess_base_jobid", parent.c_str()).c_str()));
    case Launcher::kSlurm:
      return fmt::format("slurm-{}-{}", text_or("SLURM_JOB_ID", ""),
                         text_or("SLURM_STEP_ID", text_or("SLURM_STEPID", "").c_str()));
    case Launcher::kNone:
    case Launcher::kZero:
    case Launcher::kPmi:
      break;
  }
  return fmt::format("parent-{}", parent);
}

/// By the text alone, which is the same for all ranks: a name may have a loopback address on its own host.
bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

Spread spread_of(const Discovery& found, const Reader& reader) {
  if (found.local_size > 0) return found.local_size == found.size ? Spread::kOneHost : Spread::kSeveralHosts;
  if (found.launcher != Launcher::kTorchrun) return Spread::kSeveralHosts;  // tasks of nodes that differ
  if (reader.text("LOCAL_RANK") && found.local_rank != found.rank) return Spread::kSeveralHosts;
  const bool one_host = found.master_address.empty() || is_loopback(found.master_address);
  return one_host ? Spread::kOneHost : Spread::kUnknown;
}

bool mpi_can_start(Launcher launcher, const Reader& reader) {
  const auto has = [&](const char* name) { return reader.text(name) != nullptr; };
  return launcher != Launcher::kSlurm || has("PMIX_RANK") || has("PMIX_NAMESPACE") || has("PMI_FD") ||
         has("PMI_RANK") || has("OMPI_COMM_WORLD_RANK");
}

/// "node[07-09,12],other" begins with node07.
std::string first_node(const std::string& nodes) {
  const auto bracket = nodes.find_first_of("[,");
  if (bracket == std::string::npos || nodes[bracket] == ',') return nodes.substr(0, bracket);
  const auto end = nodes.find_first_of("-,]", bracket);
  return nodes.substr(0, bracket) + nodes.substr(bracket + 1, end - bracket - 1);
}

void meet_at_first_node(Discovery& found, const Reader& reader) {
  const std::string* nodes = reader.text("SLURM_STEP_NODELIST");
  const auto job = reader.number({"SLURM_JOB_ID"}), step = reader.number({"SLURM_STEP_ID"});
  if (!nodes || !job || !step) return;
  constexpr int kFirstPort = 20'000, kPorts = 10'000;
  found.master_address = first_node(*nodes);
  if (found.master_port == 0) found.master_port = kFirstPort + (job->value * 31 + step->value) % kPorts;
}

Discovery read(const Variables& variables, const Reader& reader, const std::string& parent) {
  const auto rank = reader.number(variables.rank);
  const auto size = reader.number(variables.size);
  const Value checked_rank = require(rank, variables.rank[0], variables.size[0], variables.launcher);
  const Value checked_size = require(size, variables.size[0], variables.rank[0], variables.launcher);
  if (checked_rank.value >= checked_size.value) {
    throw ConfigError(
        fmt::format("{}={} and {}={} contradict each other: ranks count from 0 and must be below the world "
                    "size. Correct the "
                    "variables or start the ranks with `zero launch`.",
                    checked_rank.name, checked_rank.value, checked_size.name, checked_size.value));
  }
  Discovery found;
  found.launcher = variables.launcher;
  found.rank = checked_rank.value;
  found.size = checked_size.value;
  found.local_size = local_size_of(variables, reader, found.size);
  const auto local_rank = reader.number(variables.local_rank);
  found.local_rank = local_rank ? local_rank->value : found.local_size == found.size ? found.rank : 0;
  if (found.local_size > found.size || (found.local_size > 0 && found.local_rank >= found.local_size)) {
    throw ConfigError(
        fmt::format("{}: local rank {}, local world size {} and world size {} contradict each other: local "
                    "rank < local world size "
                    "<= world size is wanted. Correct the variables or start the ranks with `zero launch`.",
                    launcher_name(found.launcher), found.local_rank, found.local_size, found.size));
  }
  if (const std::string* address = reader.text("MASTER_ADDR")) found.master_address = *address;
  if (const auto port = reader.number({"MASTER_PORT"})) found.master_port = port->value;
  found.spread = spread_of(found, reader);
  found.mpi_can_start = mpi_can_start(found.launcher, reader);
  if (!found.mpi_can_start && found.master_address.empty()) meet_at_first_node(found, reader);
  found.job_id = job_id_of(found.launcher, reader, parent);
  return found;
}

void check_agreement(const Discovery& chosen, const Variables& other, const Reader& reader) {
  if (other.launcher == Launcher::kSlurm || !applies(other, reader)) return;
  const auto size = reader.number(other.size);
  if (!size || size->value == 1 || size->value == chosen.size) return;
  throw ConfigError(
      fmt::format("two launchers disagree about the world size: {} says {}, {} says {}={}. Start the ranks with one "
                  "launcher only, or "
                  "unset the variables of the other.",
                  launcher_name(chosen.launcher), chosen.size, launcher_name(other.launcher), size->name, size->value));
}

/// A program under mpirun or srun that has copied its numbers to RANK and WORLD_SIZE, as torch.distributed reads them,
/// on several hosts: the launcher knows what these do not say.
bool is_copied_from(const Variables& other, const Reader& reader, const Discovery& chosen) {
  if (chosen.launcher != Launcher::kTorchrun || !applies(other, reader)) return false;
  const auto rank = reader.number(other.rank), size = reader.number(other.size);
  if (!rank || !size || rank->value != chosen.rank || size->value != chosen.size || size->value == 1) return false;
  const int local_size = local_size_of(other, reader, size->value);
  return local_size != size->value && (chosen.local_size == 0 || chosen.local_size == local_size);
}

}  // namespace

std::string_view launcher_name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "no launcher";
    case Launcher::kZero:
      return "zero launch";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "Open MPI";
    case Launcher::kPmi:
      return "PMI";
    case Launcher::kSlurm:
      return "Slurm";
  }
  return "?";
}

Discovery discover(const Environment& environment, const std::string& parent) {
  const Reader reader(environment);
  Discovery chosen;
  for (const Variables& variables : known_launchers()) {
    if (!applies(variables, reader)) continue;
    if (chosen.launcher == Launcher::kNone) {
      chosen = read(variables, reader, parent);
    } else if (is_copied_from(variables, reader, chosen)) {
      chosen = read(variables, reader, parent);
    } else {
      check_agreement(chosen, variables, reader);
    }
  }
  if (const std::string* wanted = reader.text("ZERO_BACKEND")) chosen.wanted_backend = *wanted;
  return chosen;
}

namespace {

/// What ranks on several hosts lack, and what to do.
[[noreturn]] void refuse_several_hosts(const Discovery& discovery, const Transports& transports) {
  const std::string started =
      fmt::format("{} started {} ranks, {} on this host", launcher_name(discovery.launcher), discovery.size,
                  discovery.local_size == 0 ? std::string("an unknown number") : std::to_string(discovery.local_size));
  const std::string ucx =
      transports.ucx_problem.empty()
          ? std::string(
                "UCX can connect them once MASTER_ADDR and MASTER_PORT are set, on all ranks, to the address of "
                "rank 0's host and a free port of it.")
          : fmt::format("UCX is not there: {}.", transports.ucx_problem);
  if (!transports.mpi) {
    throw ConfigError(fmt::format(
        "{}: ranks on several hosts need UCX or MPI, and this build has no MPI. {} Or build with -DZERO_WITH_MPI=ON, "
        "and start them with `zero launch --hostfile`, mpirun or `srun --mpi=pmix`.",
        started, ucx));
  }
  if (discovery.launcher == Launcher::kSlurm) {
    throw ConfigError(fmt::format(
        "{}, without a way for MPI to connect them: srun was called without --mpi. Start them with `srun --mpi=pmix` "
        "(`srun --mpi=list` shows what this Slurm has), or set MpiDefault=pmix in slurm.conf. {}",
        started, ucx));
  }
  throw ConfigError(fmt::format(
      "{}: ranks on several hosts need UCX or MPI. {} Or start them with `zero launch --hostfile`, mpirun or "
      "`srun --mpi=pmix` (this build has MPI).",
      started, ucx));
}

}  // namespace

BackendKind choose_backend(const Discovery& discovery, const std::string& requested, const Transports& transports) {
  const bool by_variable = requested == "auto" && !discovery.wanted_backend.empty();
  const std::string wanted = by_variable ? discovery.wanted_backend : requested;
  const auto where = by_variable ? "environment variable ZERO_BACKEND" : "option `backend`";
  if (wanted == "self") {
    if (discovery.size == 1) return BackendKind::kSelf;
    throw ConfigError(fmt::format("{}: got \"self\", but {} started {} ranks; wanted shm, mpi or ucx.", where,
                                  launcher_name(discovery.launcher), discovery.size));
  }
  if (wanted == "mpi") {
    if (transports.mpi) return BackendKind::kMpi;
    throw ConfigError(fmt::format(
        "{}: got \"mpi\", but this build has no MPI. Use shm on one host, or build with -DZERO_WITH_MPI=ON.", where));
  }
  if (wanted == "ucx") return BackendKind::kUcx;  // which says what it lacks
  if (wanted == "shm") {
    if (discovery.spread != Spread::kSeveralHosts || discovery.local_size == 0) return BackendKind::kShm;
    throw ConfigError(fmt::format("{}: got \"shm\", but only {} of {} ranks are on this host; wanted mpi or ucx.",
                                  where, discovery.local_size, discovery.size));
  }
  if (wanted != "auto") {
    throw ConfigError(fmt::format("{}: got \"{}\", wanted auto, self, shm, mpi or ucx.", where, wanted));
  }
  if (discovery.size == 1) return BackendKind::kSelf;
  const bool by_mpirun = discovery.launcher == Launcher::kOpenMpi || discovery.launcher == Launcher::kPmi;
  if (by_mpirun && transports.mpi) return BackendKind::kMpi;
  if (discovery.spread == Spread::kOneHost) return BackendKind::kShm;
  const bool can_meet = transports.ucx_problem.empty() && !discovery.master_address.empty();
  // Ranks that were started by hand are taken to be on one host where nothing says otherwise.
  if (discovery.spread == Spread::kUnknown) return can_meet ? BackendKind::kMeet : BackendKind::kShm;
  if (transports.mpi && discovery.launcher == Launcher::kSlurm && discovery.mpi_can_start) return BackendKind::kMpi;
  if (can_meet) return BackendKind::kUcx;
  refuse_several_hosts(discovery, transports);
}

std::optional<bool> is_of_this_host(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (::getaddrinfo(address.c_str(), nullptr, &hints, &raw) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, &::freeaddrinfo);
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> ours(interfaces, &::freeifaddrs);
  const auto is_same = [](const sockaddr* one, const sockaddr* other) {
    if (!other || one->sa_family != other->sa_family) return false;
    if (one->sa_family == AF_INET)
      return std::memcmp(&reinterpret_cast<const sockaddr_in*>(one)->sin_addr,
                         &reinterpret_cast<const sockaddr_in*>(other)->sin_addr, sizeof(in_addr)) == 0;
    return one->sa_family == AF_INET6 &&
           std::memcmp(&reinterpret_cast<const sockaddr_in6*>(one)->sin6_addr,
                       &reinterpret_cast<const sockaddr_in6*>(other)->sin6_addr, sizeof(in6_addr)) == 0;
  };
  const auto is_loopback_address = [](const sockaddr* one) {
    return one->sa_family == AF_INET &&
           (ntohl(reinterpret_cast<const sockaddr_in*>(one)->sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  };
  for (const addrinfo* one = found.get(); one; one = one->ai_next) {
    if (is_loopback_address(one->ai_addr)) return true;
    for (const ifaddrs* own = ours.get(); own; own = own->ifa_next)
      if (is_same(one->ai_addr, own->ifa_addr)) return true;
  }
  return false;
}

Environment current_environment() {
  Environment environment;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string parent_tag() {
  const pid_t parent = ::getppid();
  return fmt::format("{}-{}", parent, start_time_of(parent));
}

}  // namespace zero::comm
