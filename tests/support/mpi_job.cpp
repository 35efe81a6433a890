#include "mpi_job.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace zero::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::string_view kStrike = "@strike ";
constexpr std::string_view kJob = "@job ";

double now_seconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

/// One write, so that lines of ranks do not mix; it arrives even when the rank dies right after.
void write_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', '|');
  text += '\n';
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, text.data(), text.size());
}

/// The rest of the first line that begins with `mark`; empty when there is none.
std::string line_after(const std::string& output, std::string_view mark) {
  const auto at = output.find(mark);
  if (at == std::string::npos) return {};
  const auto begin = at + mark.size();
  return output.substr(begin, output.find('\n', begin) - begin);
}

std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> names;
  if (DIR* open = ::opendir(folder)) {
    while (const dirent* entry = ::readdir(open)) names.emplace_back(entry->d_name);
    ::closedir(open);
  }
  return names;
}

/// Processes with `mark` in their command line, zombies apart: theirs is empty.
std::vector<pid_t> processes_with(const std::string& mark) {
  std::vector<pid_t> pids;
  for (const std::string& name : names_in("/proc")) {
    const pid_t pid = std::atoi(name.c_str());
    if (pid <= 0 || pid == ::getpid()) continue;
    std::ifstream file("/proc/" + name + "/cmdline", std::ios::binary);
    const std::string command{std::istreambuf_iterator<char>(file), {}};
    if (command.find(mark) != std::string::npos) pids.push_back(pid);
  }
  return pids;
}

/// What a process does, for a report: its command, its state and where its threads wait in the kernel.
std::string state_of(pid_t pid) {
  const std::string folder = fmt::format("/proc/{}", pid);
  std::string text;
  for (const std::string& task : names_in((folder + "/task").c_str())) {
    if (task.starts_with('.')) continue;
    std::ifstream stat(folder + "/task/" + task + "/stat"), wchan(folder + "/task/" + task + "/wchan");
    std::string line, where;
    std::getline(stat, line);
    std::getline(wchan, where);
    text += fmt::format(" [{} in {}]", line.substr(0, line.find(' ', line.rfind(')') + 2)), where);
  }
  return text;
}

/// `job`: Open MPI's number of the job, which its files in /dev/shm carry in hexadecimal and ours as it is.
std::vector<std::string> shm_files_of(const std::string& job) {
  if (job.empty()) return {};
  const std::string hex = fmt::format("{:x}", std::strtoul(job.c_str(), nullptr, 10));
  std::vector<std::string> files;
  for (const std::string& name : names_in("/dev/shm")) {
    const bool of_mpi = name.find(hex) != std::string::npos;
    if (of_mpi || name.find(job) != std::string::npos) files.push_back("/dev/shm/" + name);
  }
  return files;
}

/// Reads until everybody has closed the pipe or the deadline; false: the deadline.
bool read_all(int fd, Clock::time_point deadline, std::string& text) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd polled{fd, POLLIN, 0};
    if (left <= 0 || ::poll(&polled, 1, static_cast<int>(left)) == 0) return false;
    char buffer[4096];
    const ssize_t got = ::read(fd, buffer, sizeof(buffer));
    if (got <= 0) return true;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

[[noreturn]] void become_mpirun(const std::vector<std::string>& command, int output) {
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

std::optional<std::string> mpirun_path() {
  const char* path = std::getenv("ZERO_MPIRUN");
  return path && *path ? std::optional<std::string>(path) : std::nullopt;
}

MpiJobResult run_under_mpirun(int ranks, const std::vector<std::string>& arguments, std::chrono::seconds timeout) {
  static std::atomic<int> counter{0};
  const std::string mark = fmt::format("--mark=zero-mpi-{}-{}", ::getpid(), counter++);
  std::vector<std::string> command = {mpirun_path().value(), "-n",
                                      std::to_string(ranks), "--oversubscribe",
                                      "--allow-run-as-root", fmt::format("/proc/{}/exe", ::getpid())};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.push_back(mark);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  const double begin = now_seconds();
  const pid_t pid = ::fork();
  if (pid == 0) become_mpirun(command, ends[1]);
  ::close(ends[1]);
  MpiJobResult result;
  result.timed_out = !read_all(ends[0], Clock::now() + timeout, result.output);
  ::close(ends[0]);
  if (result.timed_out) {
    for (const pid_t left : processes_with(mark)) {
      result.output += fmt::format("\n@left process {}: {}", left, state_of(left));
      ::kill(left, SIGKILL);
    }
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  const std::string strike = line_after(result.output, kStrike);
  result.end_seconds = now_seconds() - (strike.empty() ? begin : std::strtod(strike.c_str(), nullptr));

  std::vector<pid_t> living = processes_with(mark);
  for (int i = 0; i < 20 && !living.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    living = processes_with(mark);
  }
  for (const pid_t left : living) {
    result.leftovers.push_back(fmt::format("process {}", left));
    ::kill(left, SIGKILL);
  }
  for (const std::string& file : shm_files_of(line_after(result.output, kJob))) {
    result.leftovers.push_back(file);
    ::unlink(file.c_str());
  }
  return result;
}

Group join_mpi_job() {
  Group group = init_distributed({.backend = "mpi"});
  if (const char* job = std::getenv("OMPI_MCA_ess_base_jobid"); job && group.rank() == 0)
    write_line(std::string(kJob) + job);
  return group;
}

void announce_strike() { write_line(fmt::format("{}{:.6f}", kStrike, now_seconds())); }

void report_error(int rank, const std::string& text) { write_line(fmt::format("@error {}: {}", rank, text)); }

std::string error_of_rank(const MpiJobResult& result, int rank) {
  return line_after(result.output, fmt::format("@error {}: ", rank));
}

}  // namespace zero::testing
