// The process next to a rank on some host: starts it, forwards its output and signals, reports how it ends.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "comm/process.h"
#include "comm/sockets.h"
#include "launcher/agent_protocol.h"
#include "launcher/channel.h"
#include "launcher/processes.h"
#include "zero/errors.h"
#include "zero/hosts.h"
#include "zero/launch.h"

namespace zero::launcher {
namespace {

using comm::FileDescriptor;
using nlohmann::json;

constexpr int kAgentPollMs = 50;
constexpr std::size_t kMostUnsent = 1 << 20;  ///< then the rank waits with its output
/// A launcher that shows no sign of life for so long is gone: a rank without one must not go on.
constexpr std::int64_t kLauncherLimitNs = 10 * base::kNanosPerSecond;

volatile sig_atomic_t g_ended_by_mpirun = 0;

void note_end(int) { g_ended_by_mpirun = 1; }

int number_of(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

class Agent {
 public:
  explicit Agent(std::vector<std::string> command) : command_(std::move(command)) {}
  int run();

 private:
  void connect();
  bool greet(Channel& channel) const;
  void wait_for_start();
  void start(const json& variables);
  [[noreturn]] void become_rank(int out, int error, int failure) const;
  void poll_once();
  void forward(FileDescriptor& from, MessageKind kind);
  void handle(const Message& message);
  void reap();
  void report(json status);
  void drain();
  void kill_rank(int signal) const;
  bool launcher_is_gone() const;

  std::vector<std::string> command_;
  const pid_t own_pid_ = ::getpid();
  const pid_t parent_ = ::getppid();  ///< mpirun's part on this host
  const int rank_ = number_of("OMPI_COMM_WORLD_RANK", -1), size_ = number_of("OMPI_COMM_WORLD_SIZE", 0);
  const int local_rank_ = number_of("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  const int local_size_ = std::max(1, number_of("OMPI_COMM_WORLD_LOCAL_SIZE", 1));
  std::unique_ptr<Channel> channel_;
  FileDescriptor out_, error_;
  pid_t pid_ = 0;  ///< of the rank, and its process group; 0: none
  bool ended_ = false, leaves_ = false, paused_ = false;
  std::optional<json> start_;
  std::int64_t heard_ns_ = base::monotonic_ns(), told_ns_ = 0;
};

bool Agent::greet(Channel& channel) const {
  const json hello = {{"secret", std::getenv(kSecretOfAgents)},
                      {"rank", rank_},
                      {"size", size_},
                      {"local_size", local_size_},
                      {"host", comm::host_name()},
                      {"port", free_port()}};
  channel.queue(MessageKind::kHello, hello.dump());
  const std::int64_t deadline_ns = base::monotonic_ns() + 5 * base::kNanosPerSecond;
  while (base::monotonic_ns() < deadline_ns && !channel.is_gone()) {
    pollfd readable{channel.fd(), POLLIN, 0};
    ::poll(&readable, 1, kAgentPollMs);
    channel.receive();
    channel.flush();
    if (const auto answer = channel.next())
      return answer->kind == MessageKind::kWelcome && answer->body == std::getenv(kSecretOfLauncher);
  }
  return false;
}

void Agent::connect() {
  std::istringstream meeting(std::getenv(kMeeting));  // "port address address ..."
  int port = 0;
  meeting >> port;
  std::vector<std::string> addresses;
  for (std::string address; meeting >> address;) addresses.push_back(address);
  constexpr int kAttempts = 3, kTimeoutMs = 3'000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    for (const std::string& address : addresses) {
      FileDescriptor socket = comm::connect_to(address, port, kTimeoutMs);
      if (!socket) continue;
      auto channel = std::make_unique<Channel>(std::move(socket));
      if (!greet(*channel)) continue;
      channel_ = std::move(channel);
      return;
    }
  }
  throw CommError(fmt::format(
      "rank {} on {} cannot reach the launcher at TCP port {} of {}. Allow connections between the hosts, in "
      "particular to the one that the job is started on.",
      rank_, comm::host_name(), port, fmt::join(addresses, ", ")));
}

void Agent::wait_for_start() {
  while (!start_ && !leaves_ && !launcher_is_gone() && g_ended_by_mpirun == 0) poll_once();
}

void Agent::become_rank(int out, int error, int failure) const {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != own_pid_) ::_exit(127);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(error, STDERR_FILENO);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal, SIG_DFL);
  std::vector<char*> words;
  for (const std::string& word : command_) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  const int code = errno;
  [[maybe_unused]] const ssize_t wrote = ::write(failure, &code, sizeof(code));
  ::_exit(127);
}

void Agent::start(const json& variables) {
  ::setenv("OMP_NUM_THREADS", std::to_string(std::max(1, usable_cores() / local_size_)).c_str(), /*overwrite=*/0);
  if (!std::getenv("GOMP_SPINCOUNT")) ::setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  for (const char* secret : {kSecretOfAgents, kSecretOfLauncher, kMeeting}) ::unsetenv(secret);
  for (const auto& [name, value] : variables.items()) ::setenv(name.c_str(), value.get<std::string>().c_str(), 1);
  auto out = make_pipe(), error = make_pipe(), failure = make_pipe();
  pid_ = ::fork();
  if (pid_ < 0) throw IoError(fmt::format("fork of rank {} failed: {}", rank_, std::strerror(errno)));
  if (pid_ == 0) become_rank(out.second.get(), error.second.get(), failure.second.get());
  ::setpgid(pid_, pid_);
  out_ = std::move(out.first);
  error_ = std::move(error.first);
  for (const int fd : {out_.get(), error_.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  failure.second = FileDescriptor();
  int code = 0;
  if (::read(failure.first.get(), &code, sizeof(code)) == sizeof(code)) {
    report({{"problem", fmt::format("cannot start \"{}\": {}. Give a program that is on every host, in PATH or by its "
                                    "path",
                                    command_[0], std::strerror(code))}});
  }
}

void Agent::forward(FileDescriptor& from, MessageKind kind) {
  char buffer[32 << 10];
  while (from && channel_->unsent() < kMostUnsent) {
    const ssize_t got = ::read(from.get(), buffer, sizeof(buffer));
    if (got > 0) {
      channel_->queue(kind, {buffer, static_cast<std::size_t>(got)});
    } else if (got == 0) {
      from = FileDescriptor();
    } else if (errno != EINTR) {
      return;
    }
  }
}

void Agent::poll_once() {
  std::vector<pollfd> polled = {{channel_->fd(), POLLIN, 0}};
  if (channel_->unsent() > 0) polled[0].events |= POLLOUT;
  if (channel_->unsent() < kMostUnsent) {
    for (const int fd : {out_.get(), error_.get()})
      if (fd >= 0) polled.push_back({fd, POLLIN, 0});
  }
  ::poll(polled.data(), polled.size(), kAgentPollMs);
  channel_->receive();
  while (const auto message = channel_->next()) handle(*message);
  if (const std::int64_t now_ns = base::monotonic_ns(); now_ns - told_ns_ >= kAliveMs * base::kNanosPerMilli) {
    told_ns_ = now_ns;
    if (channel_->unsent() == 0) channel_->queue(MessageKind::kAlive);
  }
  forward(out_, MessageKind::kOut);
  forward(error_, MessageKind::kErr);
  channel_->flush();
}

void Agent::handle(const Message& message) {
  heard_ns_ = base::monotonic_ns();
  paused_ = message.kind == MessageKind::kPause;
  if (message.kind == MessageKind::kStart) start_ = json::parse(message.body);
  if (message.kind == MessageKind::kSignal) kill_rank(std::atoi(message.body.c_str()));
  if (message.kind == MessageKind::kLeave) leaves_ = true;
}

void Agent::kill_rank(int signal) const {
  if (pid_ > 0 && !ended_) ::kill(-pid_, signal);
}

/// Or mpirun's part here is. (It may start ranks from a thread that ends, so the kernel is not asked to tell.)
bool Agent::launcher_is_gone() const {
  return channel_->is_gone() || ::getppid() != parent_ ||
         (!paused_ && base::monotonic_ns() - heard_ns_ > kLauncherLimitNs);
}

void Agent::report(json status) {
  ended_ = !status.contains("stopped");
  status["pid"] = pid_;
  channel_->queue(MessageKind::kStatus, status.dump());
}

void Agent::reap() {
  int status = 0;
  while (!ended_ && ::waitpid(pid_, &status, WNOHANG | WUNTRACED | WCONTINUED) > 0) {
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
      report({{"stopped", WIFSTOPPED(status)}});
      continue;
    }
    ::kill(-pid_, SIGKILL);  // its own children may hold the pipes open
    drain();
    report({{"status", status}});
  }
}

/// What the rank has written is read to its end, as far as the launcher takes it.
void Agent::drain() {
  const std::int64_t deadline_ns = base::monotonic_ns() + base::kNanosPerSecond;
  while ((out_ || error_) && !launcher_is_gone() && base::monotonic_ns() < deadline_ns) poll_once();
}

int Agent::run() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction action {};
    action.sa_handler = note_end;
    ::sigaction(signal, &action, nullptr);
  }
  connect();
  wait_for_start();
  if (!start_) return 1;
  start(*start_);
  while (!leaves_ && !launcher_is_gone() && g_ended_by_mpirun == 0) {
    poll_once();
    reap();
  }
  const bool well = leaves_;
  if (!ended_) {
    kill_rank(SIGKILL);
    if (!launcher_is_gone()) report({{"ended_by_mpirun", true}});
  }
  if (pid_ > 0) ::kill(-pid_, SIGKILL);
  for (int i = 0; i < 10 && channel_->unsent() > 0 && !channel_->is_gone(); ++i) poll_once();
  return well ? 0 : 1;
}

}  // namespace
}  // namespace zero::launcher

namespace zero {

int run_rank_of_host(const std::vector<std::string>& command) {
  const auto has = [](const char* name) { return std::getenv(name) != nullptr; };
  if (!has("OMPI_COMM_WORLD_RANK") || !has(launcher::kMeeting) || !has(launcher::kSecretOfAgents) ||
      !has(launcher::kSecretOfLauncher)) {
    throw ConfigError(
        "this is what mpirun starts for a job on several hosts: start that with `zero launch --hostfile FILE PROGRAM`");
  }
  if (command.empty()) throw ConfigError("zero launch: no program given; want `zero launch -n N PROGRAM ...`");
  return launcher::Agent(command).run();
}

}  // namespace zero
