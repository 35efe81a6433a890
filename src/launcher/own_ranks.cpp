// What a program needs that starts its own ranks.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/cores.h"
#include "comm/process.h"
#include "comm/rendezvous.h"
#include "zero/errors.h"
#include "zero/launch.h"

namespace zero {

std::optional<LaunchedRank> launched_rank() {
  const comm::Discovery found = comm::discover(comm::current_environment(), comm::parent_tag());
  if (found.launcher == comm::Launcher::kNone) return std::nullopt;
  return LaunchedRank{std::string(comm::launcher_name(found.launcher)), found.rank, found.size};
}

std::vector<std::string> own_command() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error)
    throw IoError(fmt::format(
        "cannot find this program in /proc/self/exe: {}; /proc has to be mounted (mount -t proc proc /proc)",
        error.message()));
  std::vector<std::string> command = {program.string()};
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string argument;
  std::getline(file, argument, '\0');  // the program as it was called
  while (std::getline(file, argument, '\0')) command.push_back(argument);
  return command;
}

int run_on_ranks(int nproc, const std::function<int()>& run_rank, LaunchOptions options) {
  if (nproc == 1 || launched_rank()) return run_rank();
  options.nproc = nproc;
  if (options.command.empty()) options.command = own_command();
  return launch(options);
}

int usable_cpus() { return comm::available_cpus(); }

int usable_cores() { return base::count_cores(base::usable_cpus()); }

}  // namespace zero
