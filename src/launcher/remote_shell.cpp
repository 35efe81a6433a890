#include "launcher/remote_shell.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/clock.h"
#include "comm/memory.h"
#include "comm/process.h"
#include "comm/rendezvous.h"
#include "launcher/processes.h"
#include "zero/errors.h"
#include "zero/hosts.h"

namespace zero {
namespace launcher {
bool is_in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return ::access(program.c_str(), X_OK) == 0;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((std::filesystem::path(folder) / program).c_str(), X_OK) == 0) return true;
  return false;
}

std::vector<std::string> remote_shell() {
  std::string wanted = "ssh";
  for (const char* name : {"OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_rsh_agent"})
    if (const char* const value = std::getenv(name); value && *value) wanted = value;
  std::vector<std::string> words;
  std::istringstream agents(wanted);
  for (std::string agent; std::getline(agents, agent, ':');) {
    std::istringstream text(agent);
    words.clear();
    for (std::string word; text >> word;) words.push_back(word);
    if (!words.empty() && is_in_path(words[0])) break;
  }
  if (words.empty()) words.emplace_back("ssh");
  if (std::filesystem::path(words[0]).filename() == "ssh")
    words.insert(words.end(), {"-o", "BatchMode=yes", "-o", "ConnectTimeout=10"});
  if (const char* const more = std::getenv("OMPI_MCA_plm_rsh_args")) {
    std::istringstream text(more);
    for (std::string word; text >> word;) words.push_back(word);
  }
  return words;
}

bool is_this_host(const std::string& host) {
  const std::string own = comm::host_name();
  const auto shortened = [](const std::string& name) { return name.substr(0, name.find('.')); };
  if (host == own || host == "localhost") return true;
  const bool is_number = host.find_first_not_of("0123456789.:") == std::string::npos;
  if (!is_number && shortened(host) == own) return true;
  return comm::is_of_this_host(host).value_or(false);
}

std::string shell_line(const std::vector<std::string>& command) {
  std::string line;
  for (const std::string& word : command) {
    line += line.empty() ? "'" : " '";
    for (const char c : word) {
      if (c == '\'') {
        line += "'\\''";
      } else {
        line += c;
      }
    }
    line += "'";
  }
  return line;
}

namespace {

/// A command that is under way.
struct Running {
  pid_t pid = 0;
  comm::FileDescriptor out, error;
  std::int64_t begin_ns = 0;
};

Running start(const std::vector<std::string>& command) {
  auto out = make_pipe(), error = make_pipe();
  Running started;
  started.begin_ns = base::monotonic_ns();
  started.pid = ::fork();
  if (started.pid < 0) throw IoError(fmt::format("cannot start '{}': {}", command[0], std::strerror(errno)));
  if (started.pid == 0) {
    ::setsid();  // without a terminal nobody can be asked for a password
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    ::dup2(out.second.get(), STDOUT_FILENO);
    ::dup2(error.second.get(), STDERR_FILENO);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
    const std::string text = fmt::format("{}: {}\n", command[0], std::strerror(errno));
    [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, text.data(), text.size());
    ::_exit(127);
  }
  started.out = std::move(out.first);
  started.error = std::move(error.first);
  for (const int fd : {started.out.get(), started.error.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  return started;
}

/// False at the end of the input.
bool read_some(comm::FileDescriptor& from, std::string& to) {
  char buffer[16 << 10];
  while (from) {
    const ssize_t got = ::read(from.get(), buffer, sizeof(buffer));
    if (got > 0) {
      to.append(buffer, static_cast<std::size_t>(got));
    } else if (got == 0) {
      from = {};
    } else if (errno != EINTR) {
      return true;
    }
  }
  return false;
}

/// Waits for one that is killed, or has closed its output.
void finish(Running& running, HostAnswer& answer) {
  int status = 0;
  while (::waitpid(running.pid, &status, 0) < 0 && errno == EINTR) {
  }
  answer.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  answer.seconds = static_cast<double>(base::monotonic_ns() - running.begin_ns) / base::kNanosPerSecond;
  running.pid = 0;
}

}  // namespace
}  // namespace launcher

std::vector<HostAnswer> run_on_hosts(const std::vector<std::string>& hosts, const std::vector<std::string>& command,
                                     std::chrono::milliseconds timeout) {
  using launcher::Running;
  const std::int64_t deadline_ns = base::monotonic_ns() + timeout.count() * base::kNanosPerMilli;
  std::vector<HostAnswer> answers(hosts.size());
  std::vector<Running> running;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    answers[i].host = hosts[i];
    std::vector<std::string> words = launcher::remote_shell();
    words.insert(words.end(), {hosts[i], launcher::shell_line(command)});
    running.push_back(launcher::start(launcher::is_this_host(hosts[i]) ? command : words));
  }
  for (bool waits = true; waits;) {
    waits = false;
    std::vector<pollfd> polled;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      if (running[i].pid == 0) continue;
      const bool out = launcher::read_some(running[i].out, answers[i].out);
      const bool error = launcher::read_some(running[i].error, answers[i].error);
      if (!out && !error) {
        answers[i].in_time = true;
        launcher::finish(running[i], answers[i]);
        continue;
      }
      waits = true;
      for (const int fd : {running[i].out.get(), running[i].error.get()})
        if (fd >= 0) polled.push_back({fd, POLLIN, 0});
    }
    const std::int64_t left_ns = deadline_ns - base::monotonic_ns();
    if (!waits || left_ns <= 0) break;
    ::poll(polled.data(), polled.size(), static_cast<int>(left_ns / base::kNanosPerMilli) + 1);
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (running[i].pid == 0) continue;
    ::kill(-running[i].pid, SIGKILL);
    launcher::finish(running[i], answers[i]);
  }
  return answers;
}

}  // namespace zero
