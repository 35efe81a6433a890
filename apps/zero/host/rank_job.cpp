#include "host/rank_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "host/rank_setup.h"
#include "zero/errors.h"
#include "zero/launch.h"
#include "zero/train.h"

namespace zero::app {
namespace {

constexpr const char* kJobVariable = "ZERO_COMMAND_JOB";

int run_as_rank(const RankJob& job) {
  const char* const path = std::getenv(kJobVariable);
  if (!path) throw ConfigError(fmt::format("--as-rank is for zero {} itself", job.command));
  const auto launched = launched_rank();
  return rank_exit_code(launched ? launched->rank : 0, [&] {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return job.run(text, init_distributed());
  });
}

int run_under_launcher(const RankJob& job, int rank) {
  return rank_exit_code(rank, [&] {
    Group group = init_distributed();
    const ScratchFolder scratch;
    const std::string text = from_rank_0(group, [&] { return job.prepare(scratch.path()); });
    return job.run(text, group);
  });
}

int run_locally(const RankJob& job) {
  check_ranks_of_host(job.ranks);
  const ScratchFolder scratch;
  const std::filesystem::path path = scratch.path() / "job.json";
  const std::string text = job.prepare(scratch.path());
  if (!(std::ofstream(path, std::ios::binary) << text << std::flush))
    throw IoError(fmt::format("{}: cannot be written", path.string()));
  LaunchOptions local;
  local.nproc = job.ranks;
  local.command = {own_command()[0], job.command, "--as-rank"};
  local.environment = {{kJobVariable, path.string()}};
  local.grace_ms = 60'000;  // for what is computed at a time
  return launch_own_ranks("zero " + job.command, local);
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) {
    const char* const named = std::getenv("TMPDIR");
    throw IoError(
        fmt::format("there is no folder for temporary files: TMPDIR is '{}'; set it to one", named ? named : ""));
  }
  std::string pattern = (parent / "zero-XXXXXX").string();
  if (!::mkdtemp(pattern.data()))
    throw IoError(fmt::format("cannot make a folder {}: {}; set TMPDIR", pattern, std::strerror(errno)));
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

void remove_scratch() {
  const char* const path = std::getenv(kJobVariable);
  std::error_code error;
  if (path) std::filesystem::remove_all(std::filesystem::path(path).parent_path(), error);
}

int run_job(const RankJob& job) {
  if (job.as_rank) return run_as_rank(job);
  const auto launched = launched_rank();
  return launched ? run_under_launcher(job, launched->rank) : run_locally(job);
}

}  // namespace zero::app
