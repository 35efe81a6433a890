#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/cores.h"
#include "comm/memory.h"
#include "comm/rendezvous.h"
#include "comm/shm/segment.h"
#include "launcher/line_forwarder.h"
#include "launcher/processes.h"
#include "zero/errors.h"
#include "zero/launch.h"

namespace zero {
namespace {

using comm::FileDescriptor;
using launcher::free_port;
using launcher::kOneWishNs;
using launcher::LineForwarder;
using launcher::log_path;
using launcher::make_pipe;
using launcher::new_job_id;
using launcher::open_log;
using launcher::SignalReader;
using launcher::write_line;

/// Children whose parent (a rank) has ended come to this process, which can then reap them.
class SubreaperGuard {
 public:
  SubreaperGuard() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~SubreaperGuard() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }
  SubreaperGuard(const SubreaperGuard&) = delete;
  SubreaperGuard& operator=(const SubreaperGuard&) = delete;

 private:
  int before_ = 0;
};

struct Rank {
  int rank = 0;
  pid_t pid = 0;  ///< also its process group
  bool running = false;
  bool ended_well = false;            ///< and nobody was told yet who may wait for it
  std::int64_t stopped_since_ns = 0;  ///< by a signal, as far as is known; 0: it is not
  FileDescriptor log;
  LineForwarder out;
  LineForwarder err;
};

struct Failure {
  int rank;
  pid_t pid;
  int status;
  std::int64_t at_ns;
};

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> children;
  DIR* const threads = ::opendir("/proc/self/task");
  while (const dirent* entry = threads ? ::readdir(threads) : nullptr) {
    std::ifstream file(fmt::format("/proc/self/task/{}/children", entry->d_name));
    for (pid_t pid = 0; file >> pid;) children.push_back(pid);
  }
  if (threads) ::closedir(threads);
  return children;
}

class Job {
 public:
  /// `restarts`: how often the job was started before.
  Job(const LaunchOptions& options, int restarts);
  ~Job();
  int run();
  /// True once it has failed of itself.
  bool may_start_again() const { return failure_ && stop_signal_ == 0 && !unread_; }

 private:
  void start(int rank, const SignalReader& signals);
  std::vector<std::string> environment_of(int rank) const;
  [[noreturn]] void become_rank(int rank, std::vector<std::string>& environment, const SignalReader& signals, int out,
                                int err, int error_fd);
  bool running() const;
  void poll_once(const SignalReader& signals);
  void handle_signal(int signal);
  void reap();
  void escalate();
  void terminate();
  void fail(const Failure& failure);
  void look_for_stopped();
  void tell_of_ended();
  void end_strays();
  void pause();
  void signal_all(int signal);
  int report() const;
  void say(const std::string& text) const;

  const LaunchOptions& options_;
  const int restarts_;
  const pid_t launcher_ = ::getpid();
  const std::int64_t start_ns_ = base::monotonic_ns();
  const int port_ = free_port();
  std::string job_id_;
  std::vector<Rank> ranks_;
  std::optional<Failure> failure_;
  std::int64_t ending_since_ns_ = 0;  ///< first failure or signal; 0: none
  int stop_signal_ = 0;               ///< the first that was passed on
  bool unread_ = false;               ///< nobody reads what the ranks print
  int interrupts_ = 0;
  std::int64_t interrupted_ns_ = 0;    ///< the first of these
  int ended_by_ = 0;                   ///< the second SIGINT or SIGTERM, which killed the ranks; 0: none
  std::int64_t terminated_at_ns_ = 0;  ///< when the ranks got SIGTERM; 0: not
  bool killed_ = false;
};

Job::Job(const LaunchOptions& options, int restarts)
    : options_(options), restarts_(restarts), ranks_(static_cast<std::size_t>(options.nproc)) {
  const auto wanted = options.environment.find("ZERO_JOB_ID");
  job_id_ = wanted != options.environment.end() ? wanted->second : new_job_id();
}

Job::~Job() {
  signal_all(SIGKILL);
  for (const Rank& rank : ranks_) {
    if (rank.pid == 0) continue;
    ::kill(-rank.pid, SIGKILL);  // what the rank itself has started
    while (::waitpid(-rank.pid, nullptr, 0) > 0 || errno == EINTR) {
    }
  }
  ::shm_unlink(comm::ControlSegment::name_of(job_id_).c_str());  // where ranks had not all met
}

std::vector<std::string> Job::environment_of(int rank) const {
  comm::Environment environment = comm::current_environment();
  const std::string rank_text = std::to_string(rank);
  const std::string size_text = std::to_string(options_.nproc);
  for (const char* name : {"ZERO_RANK", "ZERO_LOCAL_RANK", "RANK", "LOCAL_RANK", "ROLE_RANK"}) {
    environment[name] = rank_text;
  }
  for (const char* name :
       {"ZERO_WORLD_SIZE", "ZERO_LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) {
    environment[name] = size_text;
  }
  environment["GROUP_RANK"] = "0";  // of this host, as torchrun numbers them
  environment["GROUP_WORLD_SIZE"] = "1";
  environment["ZERO_JOB_ID"] = job_id_;
  for (const char* name : {"ZERO_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"}) {
    environment[name] = std::to_string(restarts_);
  }
  environment["MASTER_ADDR"] = "127.0.0.1";
  environment["MASTER_PORT"] = std::to_string(port_);
  const int cores = base::count_cores(base::usable_cpus());
  environment.emplace("OMP_NUM_THREADS", std::to_string(std::max(1, cores / options_.nproc)));
  // Threads that spin while they wait take the core from those they wait for: 20 times slower on a busy
  // machine.
  if (!environment.contains("GOMP_SPINCOUNT")) environment.emplace("OMP_WAIT_POLICY", "passive");
  // Their output goes through pipes to a terminal: programs that look for one would leave colours out.
  const auto is_terminal = [](int descriptor) { return ::isatty(descriptor) == 1; };
  const auto term = environment.find("TERM");
  if (options_.prefix_output && options_.log_dir.empty() && is_terminal(STDOUT_FILENO) && is_terminal(STDERR_FILENO) &&
      !environment.contains("NO_COLOR") && term != environment.end() && term->second != "dumb") {
    for (const char* name : {"FORCE_COLOR", "CLICOLOR_FORCE"}) environment.emplace(name, "1");
  }
  environment.erase("ZERO_LINES_ARE_PREFIXED");
  if (options_.prefix_output) environment["ZERO_LINES_ARE_PREFIXED"] = "1";
  for (const auto& [name, value] : options_.environment) environment[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : environment) lines.push_back(name + "=" + value);
  return lines;
}

void Job::become_rank(int rank, std::vector<std::string>& environment, const SignalReader& signals, int out, int err,
                      int error_fd) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher_) ::_exit(127);                        // it died before the line above
  const bool gets_input = rank == 0 && ::isatty(STDIN_FILENO) == 0;  // a terminal stops who reads in the background
  const int null = gets_input ? -1 : ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  if (out >= 0) ::dup2(out, STDOUT_FILENO);
  if (err >= 0) ::dup2(err, STDERR_FILENO);
  std::vector<char*> arguments, variables;
  for (const std::string& argument : options_.command) arguments.push_back(const_cast<char*>(argument.c_str()));
  for (std::string& variable : environment) variables.push_back(variable.data());
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  signals.restore_for_exec();
  ::execvpe(arguments[0], arguments.data(), variables.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t wrote = ::write(error_fd, &error, sizeof(error));
  ::_exit(127);
}

void Job::start(int rank, const SignalReader& signals) {
  std::vector<std::string> environment = environment_of(rank);
  FileDescriptor log = open_log(options_.log_dir, rank);
  std::pair<FileDescriptor, FileDescriptor> out, err, error = make_pipe();
  const bool forwards = options_.prefix_output || !options_.log_dir.empty();
  if (forwards) {
    out = make_pipe();
    err = make_pipe();
  }
  const pid_t pid = ::fork();
  if (pid < 0) throw IoError(fmt::format("launch: fork of rank {} failed: {}", rank, std::strerror(errno)));
  if (pid == 0) become_rank(rank, environment, signals, out.second.get(), err.second.get(), error.second.get());
  ::setpgid(pid, pid);  // here too: whoever comes first
  Rank& started = ranks_[static_cast<std::size_t>(rank)];
  started.rank = rank;
  started.pid = pid;
  started.running = true;
  if (forwards) {
    const std::string prefix = options_.prefix_output ? fmt::format("[{}] ", rank) : "";
    started.log = std::move(log);
    started.out = LineForwarder(std::move(out.first), STDOUT_FILENO, prefix, started.log.get());
    started.err = LineForwarder(std::move(err.first), STDERR_FILENO, prefix, started.log.get());
  }
  error.second = FileDescriptor();
  int code = 0;
  if (::read(error.first.get(), &code, sizeof(code)) == sizeof(code)) {
    throw ConfigError(
        fmt::format("launch: cannot start \"{}\": {}. Give a program in PATH or a path to an executable file.",
                    options_.command[0], std::strerror(code)));
  }
}

bool Job::running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; });
}

int Job::run() {
  const SignalReader signals;
  for (int rank = 0; rank < options_.nproc; ++rank) start(rank, signals);
  while (running()) {
    poll_once(signals);
    reap();
    tell_of_ended();
    escalate();
  }
  for (Rank& rank : ranks_) {
    ::kill(-rank.pid, SIGKILL);  // its own children may hold the pipes open
    rank.out.forward();
    rank.err.forward();
    rank.out.finish();
    rank.err.finish();
  }
  end_strays();
  return report();
}

/// What ranks have started in sessions of their own came to this process when they ended. Its other children are its
/// own business: the job's id is in the environment of those of the job.
void Job::end_strays() {
  const auto is_of_the_job = [this](pid_t pid) {
    std::ifstream file(fmt::format("/proc/{}/environ", pid), std::ios::binary);
    for (std::string variable; std::getline(file, variable, '\0');)
      if (variable == "ZERO_JOB_ID=" + job_id_) return true;
    return false;
  };
  for (bool found = true; found;) {
    found = false;
    for (const pid_t pid : children_of_this_process()) {
      if (!is_of_the_job(pid) || ::kill(pid, SIGKILL) != 0) continue;
      found |= ::waitpid(pid, nullptr, 0) == pid;
    }
  }
}

void Job::poll_once(const SignalReader& signals) {
  constexpr int kTimeoutMs = 100;
  std::vector<pollfd> polled{{signals.fd(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    if (rank.out.fd() >= 0) polled.push_back({rank.out.fd(), POLLIN, 0});
    if (rank.err.fd() >= 0) polled.push_back({rank.err.fd(), POLLIN, 0});
  }
  ::poll(polled.data(), polled.size(), kTimeoutMs);
  bool unread = false;
  for (Rank& rank : ranks_) {
    rank.out.forward();
    rank.err.forward();
    unread |= rank.out.is_unread();
  }
  if (unread && !std::exchange(unread_, true)) handle_signal(SIGHUP);
  while (const int signal = signals.read()) handle_signal(signal);
}

void Job::handle_signal(int signal) {
  if (signal == SIGCHLD) return;
  if (signal == SIGUSR1 || signal == SIGCONT) return signal_all(signal);
  if (signal == SIGTSTP) return pause();
  const bool ends = signal == SIGINT || signal == SIGTERM;
  if (ends && interrupts_ > 0 && base::monotonic_ns() - interrupted_ns_ < kOneWishNs) return;
  if (stop_signal_ == 0 && options_.on_stop) options_.on_stop(signal);
  if (stop_signal_ == 0) stop_signal_ = signal;
  if (ending_since_ns_ == 0) ending_since_ns_ = base::monotonic_ns();
  if (ends && interrupts_++ == 0) interrupted_ns_ = base::monotonic_ns();
  if ((interrupts_ > 1 || signal == SIGQUIT) && ended_by_ == 0) ended_by_ = signal;
  signal_all(ended_by_ != 0 ? SIGKILL : signal);
  signal_all(SIGCONT);  // one that is stopped would not see it
}

/// Ctrl-Z: nothing of the job runs until the shell lets this process go on.
void Job::pause() {
  const std::int64_t begin_ns = base::monotonic_ns();
  signal_all(SIGSTOP);
  ::raise(SIGSTOP);
  signal_all(SIGCONT);
  if (ending_since_ns_ != 0) ending_since_ns_ += base::monotonic_ns() - begin_ns;
}

void Job::reap() {
  for (Rank& rank : ranks_) {
    int status = 0;
    // The whole group: a rank's own children come here once it has ended.
    for (pid_t pid = 0; rank.running && (pid = ::waitpid(-rank.pid, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;) {
      if (pid != rank.pid) continue;
      rank.stopped_since_ns = WIFSTOPPED(status) ? base::monotonic_ns() : 0;
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) continue;
      rank.running = false;
      const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      rank.ended_well = well;
      if (!well && !failure_) {
        fail({rank.rank, rank.pid, status, base::monotonic_ns()});
      }
    }
  }
}

/// Others may wait for a rank that has ended, or come to wait for it.
void Job::tell_of_ended() {
  for (Rank& rank : ranks_) {
    if (rank.ended_well && running() && comm::ControlSegment::say_ended(job_id_, rank.rank, options_.nproc))
      rank.ended_well = false;
  }
}

void Job::fail(const Failure& failure) {
  failure_ = failure;
  if (ending_since_ns_ == 0) ending_since_ns_ = failure.at_ns;
  const bool stopped_by_user = WIFSIGNALED(failure.status) && WTERMSIG(failure.status) == stop_signal_;
  if (options_.on_failure && !stopped_by_user) options_.on_failure(!WIFEXITED(failure.status));
}

/// A rank that is stopped and will not go on by itself: the others would wait for it.
void Job::look_for_stopped() {
  if (failure_ || stop_signal_ != 0 || options_.stopped_limit_ms == 0) return;
  const std::int64_t now_ns = base::monotonic_ns(), limit_ns = options_.stopped_limit_ms * base::kNanosPerMilli;
  for (const Rank& rank : ranks_) {
    if (!rank.running || rank.stopped_since_ns == 0 || now_ns - rank.stopped_since_ns < limit_ns) continue;
    return fail({rank.rank, rank.pid, W_STOPCODE(SIGSTOP), now_ns});
  }
}

void Job::escalate() {
  look_for_stopped();
  if (ending_since_ns_ == 0) return;
  const std::int64_t now_ns = base::monotonic_ns();
  const auto passed = [now_ns](std::int64_t since_ns, int limit_ms) {
    return since_ns != 0 && now_ns - since_ns >= limit_ms * base::kNanosPerMilli;
  };
  const int failure_grace_ms = std::min(options_.grace_ms, options_.failure_grace_ms);
  const bool waits_in_vain =
      std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.stopped_since_ns != 0; });
  if (passed(ending_since_ns_, unread_ ? failure_grace_ms : options_.grace_ms) ||
      (failure_ && (waits_in_vain || passed(failure_->at_ns, failure_grace_ms)))) {
    terminate();
  }
  if (!killed_ && passed(terminated_at_ns_, options_.kill_after_ms)) {
    killed_ = true;
    signal_all(SIGKILL);
  }
}

void Job::terminate() {
  if (terminated_at_ns_ != 0) return;
  terminated_at_ns_ = base::monotonic_ns();
  signal_all(SIGTERM);
  for (const Rank& rank : ranks_) {
    // It cannot act on anything, and would only say that it is stopping.
    if (rank.running && rank.stopped_since_ns != 0) ::kill(-rank.pid, SIGKILL);
  }
}

void Job::signal_all(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.running) ::kill(-rank.pid, signal);
  }
}

void Job::say(const std::string& text) const { write_line(options_.name, text); }

int Job::report() const {
  if (ended_by_ != 0) {
    say(ended_by_ == SIGQUIT ? "ended at once by SIGQUIT" : "ended at once by the second signal");
    return 128 + ended_by_;
  }
  if (unread_) return 128 + SIGPIPE;
  if (!failure_) {
    for (const Rank& rank : ranks_) {
      const auto first = [](int one, int other) { return one != 0 ? one : other; };
      const int error = first(rank.out.write_error(), rank.err.write_error());
      const int log_error = first(rank.out.log_error(), rank.err.log_error());
      if (error != 0) {
        say(fmt::format("output of rank {} is lost: {}", rank.rank, std::strerror(error)));
      } else if (log_error != 0) {
        say(fmt::format("a part of the log {} is lost: {}", log_path(options_.log_dir, rank.rank),
                        std::strerror(log_error)));
      }
      if (error != 0 || log_error != 0) return 1;
    }
    return 0;
  }
  const int status = failure_->status;
  const bool by_signal = WIFSIGNALED(status);
  const std::string how =
      WIFSTOPPED(status) ? fmt::format("stopped (SIGSTOP or terminal) for {:.1f} s", options_.stopped_limit_ms / 1e3)
      : by_signal        ? fmt::format("killed by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)))
                         : fmt::format("exit code {}", WEXITSTATUS(status));
  // Ended by a signal of ours, since they did not follow the one that was passed on.
  const bool had_to_be_killed = killed_ && WTERMSIG(status) == SIGKILL;
  const bool had_to_be_terminated = terminated_at_ns_ != 0 && WTERMSIG(status) == SIGTERM;
  if (by_signal && stop_signal_ != 0 &&
      (WTERMSIG(status) == stop_signal_ || had_to_be_killed || had_to_be_terminated)) {
    const std::string_view forced = had_to_be_killed                                  ? "killed"
                                    : had_to_be_terminated && stop_signal_ != SIGTERM ? "terminated"
                                                                                      : "";
    say(fmt::format("stopped by SIG{}{}{}", ::sigabbrev_np(stop_signal_),
                    forced.empty() ? "" : "; ranks that did not end had to be ", forced));
    return 128 + stop_signal_;
  }
  const char* const others = killed_                  ? "; the others had to be killed"
                             : terminated_at_ns_ != 0 ? "; the others had to be terminated"
                                                      : "";
  const double seconds = static_cast<double>(failure_->at_ns - start_ns_) / static_cast<double>(base::kNanosPerSecond);
  if (!WIFEXITED(status) || options_.report_exit_codes) {
    say(fmt::format("rank {} of {} (pid {}) failed first: {}, after {:.1f} s{}", failure_->rank, options_.nproc,
                    failure_->pid, how, seconds, others));
  }
  if (WIFSTOPPED(status)) return 1;
  return by_signal ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

std::chrono::seconds RestartPauses::next(std::chrono::steady_clock::duration lasted) {
  constexpr int kMost = 30;
  constexpr std::chrono::minutes kShort{1};
  if (lasted >= kShort) short_starts_ = 0;
  return std::chrono::seconds(std::min(short_starts_++, kMost));
}

int launch(const LaunchOptions& options) {
  constexpr int kMostRanks = 4096;
  if (options.nproc < 1 || options.nproc > kMostRanks) {
    throw ConfigError(fmt::format("launch: got {} ranks, wanted 1 to {}.", options.nproc, kMostRanks));
  }
  if (options.command.empty() || options.command[0].empty()) {
    throw ConfigError("launch: no program given; wanted `zero launch -n N -- program arguments`.");
  }
  if (options.max_restarts < 0) {
    throw ConfigError(fmt::format("launch: got {} restarts, wanted 0 or more.", options.max_restarts));
  }
  const SubreaperGuard subreaper;
  RestartPauses pauses;
  for (int restarts = 0;; ++restarts) {
    comm::ControlSegment::remove_left_behind();
    const auto begin = std::chrono::steady_clock::now();
    Job job(options, restarts);
    const int code = job.run();
    if (restarts == options.max_restarts || !job.may_start_again()) return code;
    write_line(options.name, fmt::format("starting all ranks again ({} of {})", restarts + 1, options.max_restarts));
    std::this_thread::sleep_for(pauses.next(std::chrono::steady_clock::now() - begin));
  }
}

}  // namespace zero
