#include "launcher/processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>

#include "zero/errors.h"

namespace zero::launcher {

using comm::FileDescriptor;

namespace {

constexpr int kHandled[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGTSTP, SIGCONT};

}  // namespace

std::string new_job_id() {
  std::random_device random;
  return fmt::format("{}-{:08x}{:08x}", ::getpid(), random(), random());
}

SignalReader::SignalReader() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : kHandled) sigaddset(&mask, signal);
  sigaddset(&mask, SIGCHLD);
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &by_default, &old_child_action_);  // ignored children could not be waited for
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignored, &old_pipe_action_);  // the ranks must be looked after first
  ::sigprocmask(SIG_BLOCK, &mask, &old_mask_);
  fd_ = FileDescriptor(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalReader::~SignalReader() {
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  ::sigaction(SIGCHLD, &old_child_action_, nullptr);
  ::sigaction(SIGPIPE, &old_pipe_action_, nullptr);
}

void SignalReader::restore_for_exec() const {
  ::sigaction(SIGPIPE, &old_pipe_action_, nullptr);
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

int SignalReader::read() const {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

int free_port() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket || ::bind(socket.get(), generic, length) != 0 || ::getsockname(socket.get(), generic, &length) != 0)
    return 29500;
  return ntohs(address.sin_port);
}

void write_line(const std::string& name, const std::string& text) {
  const std::string line = fmt::format("{}: {}\n", name, text);
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, line.data(), line.size());
}

std::pair<FileDescriptor, FileDescriptor> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw IoError(fmt::format("launch: pipe failed: {}", std::strerror(errno)));
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::string log_path(const std::string& folder, int rank) { return fmt::format("{}/rank{}.log", folder, rank); }

FileDescriptor open_log(const std::string& folder, const std::string& path) {
  if (folder.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  // Of a FIFO that nobody reads: an error, not a wait.
  FileDescriptor log(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!log) throw IoError(fmt::format("launch: cannot write the log '{}': {}", path, std::strerror(errno)));
  return log;
}

FileDescriptor open_log(const std::string& folder, int rank) { return open_log(folder, log_path(folder, rank)); }

}  // namespace zero::launcher
