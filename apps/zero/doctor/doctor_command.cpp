// What this machine has of what training needs, found out by trying.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "commands.h"
#include "doctor/hosts_doctor.h"
#include "host/host_facts.h"
#include "host/rank_device.h"
#include "text/colour.h"
#include "text/console.h"
#include "text/options.h"
#include "text/text_format.h"
#include "zero/cpu_products.h"
#include "zero/disk.h"
#include "zero/errors.h"
#include "zero/launch.h"
#include "zero/memory.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

enum class Verdict { kGood, kNote, kMissing };

struct Finding {
  std::string what, found, meaning;
  Verdict verdict = Verdict::kGood;
};

std::string flags_of_cpu() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("flags")) return line + " ";
  }
  return "";
}

Finding cores() {
  const int threads = usable_cpus(), whole = usable_cores();
  return {"cores", fmt::format("{} usable ({} hardware threads), {}", whole, threads, cpu_name()),
          whole == 1 ? "ranks take turns; -n 1 is as fast" : fmt::format("up to {} ranks have a core each", whole),
          whole == 1 ? Verdict::kNote : Verdict::kGood};
}

Finding instructions() {
  const std::string flags = flags_of_cpu();
  const auto has = [&](const char* name) { return flags.find(fmt::format(" {} ", name)) != std::string::npos; };
  std::string found = at::get_cpu_capability(), of_16_bits;
  for (const char* name : {"avx512_bf16", "avx512_fp16", "avx_ne_convert", "amx_bf16", "amx_fp16"})
    if (has(name)) of_16_bits += fmt::format("{}{}", of_16_bits.empty() ? "" : ", ", name);
  return {"instructions", of_16_bits.empty() ? found : found + ", " + of_16_bits,
          of_16_bits.empty() ? "none for 16-bit products" : "some for 16-bit products"};
}

/// Measured: what a processor says of itself does not tell what its libraries make of it.
Finding products() {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  constexpr int kEdge = 256;
  const double fp32 = measure_cpu_products(DType::kFloat32, kEdge).native;
  std::string found = fmt::format("one core, GFLOP/s: fp32 {:.0f}", fp32 / 1e9), meaning;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const ProductSpeed speed = measure_cpu_products(dtype, kEdge);
    const bool in_fp32 = faster_cpu_products(dtype) == CpuProducts::kFp32;
    found += in_fp32 ? fmt::format("; {} {:.0f} (computed in fp32; libtorch alone {:.1f})", dtype_name(dtype),
                                   speed.in_fp32 / 1e9, speed.native / 1e9)
                     : fmt::format("; {} {:.0f}", dtype_name(dtype), speed.native / 1e9);
    if (dtype != DType::kBFloat16) continue;
    meaning = in_fp32                     ? "bf16 has fp32's speed and takes half the memory: use it"
              : speed.native > 1.2 * fp32 ? "bf16 is the fastest, and takes half the memory: use it"
                                          : "bf16 takes half the memory";
  }
  at::set_num_threads(before);
  return {"products", found, meaning};
}

Finding memory() {
  const std::int64_t total = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const std::int64_t free = available_memory_nbytes();
  // bf16 parameters shared by the ranks of a host, gradients, masters and Adam's states.
  constexpr double kNbytesEach = 16;
  return {"memory", fmt::format("{} of {} available", human_nbytes(free), human_nbytes(total)),
          fmt::format("states of about {} parameters with AdamW; see zero plan",
                      human_count(static_cast<double>(free) / kNbytesEach))};
}

Finding shared_memory() {
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) != 0 || ::access("/dev/shm", W_OK) != 0)
    return {"/dev/shm", "not there or not writable", "ranks of one host cannot meet; mount a tmpfs there",
            Verdict::kMissing};
  const auto free = static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
  const bool enough = free >= (1 << 20);
  return {"/dev/shm", fmt::format("{} free", human_nbytes(free)),
          enough ? "ranks of one host meet there; their data need no room in it"
                 : "too little for the ranks of one host to meet: 1 MB is enough",
          enough ? Verdict::kGood : Verdict::kMissing};
}

Finding disk(const std::string& folder) {
  try {
    const DiskSpeed speed = measure_disk(
        folder, {.block_size = 256 << 10, .queue_depth = 8, .ranks = 1, .file_nbytes = 64 << 20, .seconds = 0.05});
    const bool fast = speed.description.find("io_uring") != std::string::npos &&
                      speed.description.find("past the page cache") != std::string::npos;
    return {"disk",
            fmt::format("{} free in {}; {}", human_nbytes(static_cast<std::int64_t>(fs::space(folder).available)),
                        short_path(folder), speed.description),
            fast ? "checkpoints and --nvme at the disk's speed (zero bench io)"
                 : "checkpoints and --nvme, slower than by io_uring and O_DIRECT",
            fast ? Verdict::kGood : Verdict::kNote};
  } catch (const std::exception& error) {
    return {"disk", error.what(), "no checkpoints in this folder", Verdict::kMissing};
  }
}

Finding mpi() {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path found = fs::path(folder) / "mpirun";
    if (::access(found.c_str(), X_OK) == 0) return {"MPI", found.string(), "several hosts: mpirun ... zero train"};
  }
  return {"MPI", "no mpirun in PATH", "one host only", Verdict::kNote};
}

Finding gpu() {
  const int count = visible_gpus();
  if (count == 0) return {"GPU", "none", "training is on the CPU's cores", Verdict::kGood};
  if (!libtorch_has_cuda()) {
    return {"GPU", std::to_string(count), "not for this libtorch, which is for CPUs: build with one for CUDA",
            Verdict::kNote};
  }
  return {"GPU", std::to_string(count), "zero train --device cuda trains there", Verdict::kGood};
}

Finding versions() {
  return {"versions", fmt::format("zerotorch {}, libtorch {}", zerotorch_version(), libtorch_version()),
          "what checkpoints and curves were made with"};
}

ordered_json to_json(const std::vector<Finding>& findings) {
  auto all = ordered_json::array();
  for (const Finding& one : findings) {
    const char* const verdict = one.verdict == Verdict::kGood   ? "good"
                                : one.verdict == Verdict::kNote ? "note"
                                                                : "missing";
    all.push_back({{"what", one.what}, {"found", one.found}, {"meaning", one.meaning}, {"verdict", verdict}});
  }
  return all;
}

int examine(bool json, const std::string& folder) {
  const std::vector<Finding> findings = {versions(),      cores(),      instructions(), products(), memory(),
                                         shared_memory(), disk(folder), mpi(),          gpu()};
  const Console console(true);
  bool well = true;
  if (json) console.print(to_json(findings).dump(2) + "\n");
  for (const Finding& one : findings) {
    well &= one.verdict != Verdict::kMissing;
    if (json) continue;
    const std::string mark = one.verdict == Verdict::kGood   ? painted(Tone::kGood, "ok")
                             : one.verdict == Verdict::kNote ? painted(Tone::kWarning, "--")
                                                             : painted(Tone::kBad, "!!");
    constexpr std::size_t kMark = 2, kIndent = 17;
    const std::string lines =
        wrapped(fmt::format("{:{}} {}", "", kMark, one.what), one.found, kIndent) + wrapped("", one.meaning, kIndent);
    console.print(mark + lines.substr(kMark));
  }
  if (!json) console.print(well ? "\nready to train: zero train\n" : "\nwhat is marked !! is needed\n");
  return well ? 0 : 1;
}

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  struct Arguments {
    bool json = false, facts_of_host = false, links = false;
    std::string folder = ".", device, token;
    HostsDoctorOptions hosts;
  };
  auto arguments = std::make_shared<Arguments>();
  Arguments& to = *arguments;
  CLI::App* command = app.add_subcommand("doctor", "what this machine has, and what that means for training");
  add_options(*command, {{"--json", &to.json, Values{}, "print JSON, for scripts"},
                         {"--dir", &to.folder, Values{"DIR"}, "folder whose disk is looked at"},
                         {"--hosts", &to.hosts.hostfile, not_empty("FILE", "a hostfile"),
                          "look at these hosts, and at the links between them; lines such as 'worker-1 slots=4'"},
                         {"--run-dir", &to.hosts.run_dir, not_empty("DIR", "a folder"),
                          "with --hosts: see whether all of them share this folder"},
                         {"--timeout", &to.hosts.timeout_s, real(1, 3600, "S"),
                          "with --hosts: seconds a host has to answer (default 20)"},
                         {"--free-memory-of", &to.device, device_name("DEVICE"),
                          "print only the free bytes of each such device (cuda, cuda:1), as JSON"},
                         {"--facts-of-host", &to.facts_of_host, Values{}, "what --hosts runs on each host", ""},
                         {"--measure-links", &to.links, Values{}, "what --hosts runs as ranks", ""},
                         {"--token", &to.token, Values{"TEXT"}, "of --facts-of-host", ""}});
  command->callback([arguments, &exit_code] {
    if (arguments->facts_of_host) {
      exit_code = print_facts_for_hosts_doctor(arguments->hosts.run_dir, arguments->token);
    } else if (arguments->links) {
      exit_code = measure_links();
    } else if (!arguments->hosts.hostfile.empty()) {
      arguments->hosts.json = arguments->json;
      exit_code = examine_hosts(arguments->hosts);
    } else if (arguments->device.empty()) {
      exit_code = examine(arguments->json, arguments->folder);
    } else {
      Console(true).print(ordered_json(free_memory(arguments->device)).dump() + "\n");
    }
  });
}

}  // namespace zero::app
