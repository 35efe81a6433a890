#include "launcher/hosts_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/environment.h"
#include "launcher/agent_protocol.h"
#include "zero/errors.h"
#include "zero/launch.h"

namespace zero::launcher {
namespace {

using comm::FileDescriptor;
using nlohmann::json;

constexpr int kPollMs = 100;
constexpr std::int64_t kStartLimitNs = 180 * base::kNanosPerSecond;
/// What is left of a job that has lost a host waits for it in vain.
constexpr int kLostGraceMs = 500, kLostKillAfterMs = 1'000;
constexpr std::int64_t kLeaveLimitNs = 2 * base::kNanosPerSecond;   ///< for mpirun to end once all ranks have
constexpr std::int64_t kMpirunKillNs = 700 * base::kNanosPerMilli;  ///< from its SIGTERM to its SIGKILL

/// Variables of this process that a rank needs to find its program and its settings.
bool is_passed_on(std::string_view name) {
  for (const std::string_view whole : {"PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV"})
    if (name == whole) return true;
  for (const std::string_view start : {"ZERO_", "ZEROTORCH_", "OMP_", "GOMP_", "PYTHON", "UCX_", "MLFLOW"})
    if (name.starts_with(start)) return true;
  return false;
}

int host_timeout_ms(const HostsOptions& options) {
  constexpr int kDefaultS = 6;
  if (options.host_timeout_ms > 0) return options.host_timeout_ms;
  return static_cast<int>(base::seconds_from("ZERO_HOST_TIMEOUT_S", kDefaultS, 1, 3600, "1 to 3600") * 1000);
}

std::string text_of_numbers(const std::vector<int>& numbers) {
  return fmt::format("rank{} {}", numbers.size() == 1 ? "" : "s", fmt::join(numbers, ", "));
}

}  // namespace

Heartbeat::Heartbeat() {
  // Signals are for the thread that supervises the job.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    while (!ends_) run();
  });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Heartbeat::~Heartbeat() {
  ends_ = true;
  thread_.join();
}

void Heartbeat::add(std::shared_ptr<Channel> channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(std::move(channel));
}

void Heartbeat::run() {
  std::this_thread::sleep_for(std::chrono::milliseconds(kAliveMs));
  const std::lock_guard lock(mutex_);
  for (const auto& channel : channels_)
    if (channel->unsent() == 0) channel->queue(MessageKind::kAlive);
}

HostsJob::HostsJob(const HostsOptions& options, std::vector<HostSlots> hosts, int restarts, EventLog& events)
    : options_(options),
      hosts_(std::move(hosts)),
      restarts_(restarts),
      events_(events),
      host_limit_ns_(host_timeout_ms(options) * base::kNanosPerMilli) {
  int ranks = 0;
  for (const HostSlots& host : hosts_) ranks += host.slots;
  // A connection and a log for each rank.
  if (::getrlimit(RLIMIT_NOFILE, &files_before_) == 0) {
    const rlimit files{files_before_.rlim_max, files_before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  ranks_.resize(static_cast<std::size_t>(ranks));
  for (int number = 0; number < ranks; ++number) {
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    const std::string prefix = options_.prefix_output ? fmt::format("[{}] ", number) : "";
    rank.log = open_log(options_.log_dir, number);
    rank.out = LineForwarder(STDOUT_FILENO, prefix, rank.log.get());
    rank.error = LineForwarder(STDERR_FILENO, prefix, rank.log.get());
  }
}

HostsJob::~HostsJob() {
  if (mpirun_ == 0) return;
  ::kill(-mpirun_, SIGKILL);
  while (::waitpid(mpirun_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::vector<std::string> HostsJob::mpirun_command() const {
  std::string hosts;
  for (const auto& [host, slots] : hosts_) hosts += fmt::format("{}{}:{}", hosts.empty() ? "" : ",", host, slots);
  // Our library pins ranks itself.
  std::vector<std::string> command = {"mpirun",    "-np", std::to_string(ranks_.size()), "--host", hosts,
                                      "--bind-to", "none"};
  // mpirun takes eight minutes by default to notice a link that is cut.
  for (const auto& [name, value] : {std::pair("oob_tcp_keepalive_time", "6"),
                                    {"oob_tcp_keepalive_intvl", "1"},
                                    {"oob_tcp_keepalive_probes", "3"}}) {
    if (!std::getenv(fmt::format("OMPI_MCA_{}", name).c_str())) command.insert(command.end(), {"--mca", name, value});
  }
  std::set<std::string> passed_on = {kMeeting, kSecretOfAgents, kSecretOfLauncher};
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view name = std::string_view(*variable).substr(0, std::string_view(*variable).find('='));
    if (is_passed_on(name)) passed_on.emplace(name);
  }
  for (const std::string& name : passed_on) command.insert(command.end(), {"-x", name});
  command.insert(command.end(), options_.agent.begin(), options_.agent.end());
  command.insert(command.end(), options_.command.begin(), options_.command.end());
  return command;
}

void HostsJob::start_mpirun(const SignalReader& signals) {
  const std::vector<std::string> command = mpirun_command();
  auto out = make_pipe(), error = make_pipe();
  const pid_t launcher = ::getpid();
  mpirun_ = ::fork();
  if (mpirun_ < 0) throw IoError(fmt::format("launch: fork of mpirun failed: {}", std::strerror(errno)));
  if (mpirun_ == 0) {
    ::setpgid(0, 0);  // the terminal's signals come from us
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != launcher) ::_exit(127);
    ::setrlimit(RLIMIT_NOFILE, &files_before_);
    if (::isatty(STDIN_FILENO) == 1) ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(out.second.get(), STDOUT_FILENO);
    ::dup2(error.second.get(), STDERR_FILENO);
    ::setenv(kSecretOfAgents, agent_secret_.c_str(), 1);
    ::setenv(kSecretOfLauncher, launcher_secret_.c_str(), 1);
    ::setenv(kMeeting, fmt::format("{} {}", listener_.second, fmt::join(comm::own_addresses(), " ")).c_str(), 1);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    signals.restore_for_exec();
    ::execvp(words[0], words.data());
    ::_exit(127);
  }
  ::setpgid(mpirun_, mpirun_);
  mpirun_out_ = std::move(out.first);
  mpirun_error_ = std::move(error.first);
  for (const int fd : {mpirun_out_.get(), mpirun_error_.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
}

int HostsJob::run() {
  const SignalReader signals;
  json hosts = json::array();
  for (const auto& [host, slots] : hosts_) hosts.push_back({{"host", host}, {"ranks", slots}});
  events_.add("start", {{"restarts", restarts_}, {"ranks", ranks_.size()}, {"hosts", hosts}});
  start_mpirun(signals);
  while (mpirun_ != 0) {
    poll_once(signals);
    reap_mpirun();
    look_for_lost();
    look_for_stopped();
    look_for_late_start();
    escalate();
    leave();
  }
  for (Rank& rank : ranks_) {
    rank.out.finish();
    rank.error.finish();
  }
  return report();
}

void HostsJob::poll_once(const SignalReader& signals) {
  std::vector<pollfd> polled = {{signals.fd(), POLLIN, 0}, {listener_.first.get(), POLLIN, 0}};
  const auto add = [&](int fd, short events) {
    if (fd >= 0) polled.push_back({fd, events, 0});
  };
  add(mpirun_out_.get(), POLLIN);
  add(mpirun_error_.get(), POLLIN);
  for (const auto& stranger : strangers_) add(stranger->fd(), POLLIN);
  std::vector<int> numbers;
  const std::size_t first = polled.size();
  for (int number = 0; number < static_cast<int>(ranks_.size()); ++number) {
    const Rank& rank = ranks_[static_cast<std::size_t>(number)];
    if (!rank.channel || rank.channel->is_gone()) continue;
    add(rank.channel->fd(), static_cast<short>(rank.channel->unsent() > 0 ? POLLIN | POLLOUT : POLLIN));
    numbers.push_back(number);
  }
  ::poll(polled.data(), polled.size(), kPollMs);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (polled[first + i].revents != 0) read_rank(numbers[i]);
  accept_agents();
  forward_mpirun();
  bool unread = false;
  for (const Rank& rank : ranks_) unread |= rank.out.is_unread();
  if (unread && !std::exchange(unread_, true)) handle_signal(SIGHUP);
  while (const int signal = signals.read()) handle_signal(signal);
}

void HostsJob::accept_agents() {
  while (true) {
    FileDescriptor socket(::accept4(listener_.first.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) break;
    strangers_.push_back(std::make_shared<Channel>(std::move(socket)));
  }
  std::erase_if(strangers_, [this](std::shared_ptr<Channel>& stranger) {
    stranger->receive();
    return take_in(stranger) || stranger->is_gone();
  });
  const auto has_come = [](const Rank& rank) { return rank.channel != nullptr; };
  if (!started_ && !failure_ && stop_signal_ == 0 && std::all_of(ranks_.begin(), ranks_.end(), has_come)) start_ranks();
}

/// Whether `stranger` needs no more looking at: it is an agent of this job now, or certainly none.
bool HostsJob::take_in(std::shared_ptr<Channel>& stranger) {
  const auto message = stranger->next();
  if (!message) return false;
  const json hello = json::parse(message->body, nullptr, /*allow_exceptions=*/false);
  // Anybody may connect: what has not shown the secret may be of any type.
  const bool is_ours = message->kind == MessageKind::kHello && hello.is_object() && hello.contains("secret") &&
                       hello["secret"].is_string() && hello["secret"] == agent_secret_;
  if (!is_ours) return true;
  const int number = hello.value("rank", -1);
  if (number < 0 || number >= static_cast<int>(ranks_.size()) ||
      hello.value("size", 0) != static_cast<int>(ranks_.size()))
    return true;
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  if (rank.channel && !rank.channel->is_gone()) return true;
  rank.channel = stranger;
  rank.host = hello.value("host", "?");
  rank.local_size = hello.value("local_size", 1);
  rank.port = hello.value("port", 0);
  rank.heard_ns = base::monotonic_ns();
  rank.channel->queue(MessageKind::kWelcome, launcher_secret_);
  heartbeat_.add(rank.channel);
  return true;
}

void HostsJob::start_ranks() {
  started_ = true;
  // Where torch.distributed's ranks meet: rank 0's host, by an address that others know.
  const auto is_remote = [](const Rank& rank) { return rank.channel->own_address() != rank.channel->peer_address(); };
  std::string address = ranks_[0].channel->peer_address();
  if (!is_remote(ranks_[0])) {
    const auto remote = std::find_if(ranks_.begin(), ranks_.end(), is_remote);
    if (remote != ranks_.end()) address = remote->channel->own_address();
  }
  std::vector<std::string> groups;
  std::map<std::string, int> local_ranks;
  for (const Rank& rank : ranks_)
    if (std::find(groups.begin(), groups.end(), rank.host) == groups.end()) groups.push_back(rank.host);
  for (std::size_t number = 0; number < ranks_.size(); ++number) {
    Rank& rank = ranks_[number];
    const auto group = std::find(groups.begin(), groups.end(), rank.host) - groups.begin();
    const auto text = [](auto value) { return std::to_string(value); };
    json variables = {{"RANK", text(number)},
                      {"ROLE_RANK", text(number)},
                      {"WORLD_SIZE", text(ranks_.size())},
                      {"ROLE_WORLD_SIZE", text(ranks_.size())},
                      {"LOCAL_RANK", text(local_ranks[rank.host]++)},
                      {"LOCAL_WORLD_SIZE", text(rank.local_size)},
                      {"GROUP_RANK", text(group)},
                      {"GROUP_WORLD_SIZE", text(groups.size())},
                      {"MASTER_ADDR", address},
                      {"MASTER_PORT", text(ranks_[0].port)},
                      {"ZERO_JOB_ID", job_id_},
                      {"ZERO_RESTART_COUNT", text(restarts_)},
                      {"TORCHELASTIC_RESTART_COUNT", text(restarts_)}};
    if (options_.prefix_output) variables["ZERO_LINES_ARE_PREFIXED"] = "1";
    for (const auto& [name, value] : options_.environment) variables[name] = value;
    rank.channel->queue(MessageKind::kStart, variables.dump());
  }
}

void HostsJob::read_rank(int number) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  if (!rank.channel) return;
  const bool was_gone = rank.channel->is_gone();
  rank.channel->flush();
  rank.channel->receive();
  while (const auto message = rank.channel->next()) {
    rank.heard_ns = base::monotonic_ns();
    if (message->kind == MessageKind::kOut) rank.out.take(message->body);
    if (message->kind == MessageKind::kErr) rank.error.take(message->body);
    if (message->kind == MessageKind::kStatus) take_status(number, message->body);
  }
  if (!was_gone && rank.channel->is_gone() && !rank.ended) lose(number, "connection_closed", /*frozen=*/false);
}

void HostsJob::take_status(int number, const std::string& body) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  const json found = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!found.is_object()) return;
  rank.pid = found.value("pid", 0);
  if (found.contains("stopped")) {
    rank.stopped_since_ns = found.value("stopped", false) ? base::monotonic_ns() : 0;
    return;
  }
  rank.ended = true;
  Failure failure{.rank = number, .at_ns = base::monotonic_ns()};
  json facts = {{"rank", number}, {"host", rank.host}, {"pid", rank.pid}};
  if (found.contains("problem")) {
    failure.text = found.value("problem", "");
    failure.exit_code = 127;
    facts["problem"] = failure.text;
  } else if (found.contains("ended_by_mpirun")) {
    // Because a rank called MPI_Abort, or it has lost a host, which may be known here in a moment.
    failure.exit_code = 0;
    ended_by_mpirun_ = true;
    facts["ended_by"] = "mpirun";
  } else {
    const int status = found.value("status", 0);
    const bool by_signal = WIFSIGNALED(status);
    const int code = by_signal ? WTERMSIG(status) : WEXITSTATUS(status);
    facts[by_signal ? "signal" : "exit_code"] = code;
    failure.exit_code = by_signal ? 128 + code : code;
    failure.text = by_signal ? fmt::format("killed by signal {} ({})", code, ::strsignal(code))
                             : fmt::format("exit code {}", code);
    if (!by_signal && code == 0) failure.exit_code = 0;
  }
  events_.add("rank_ended", facts);
  if (failure.exit_code != 0) fail(std::move(failure));
}

/// What mpirun and the MPI library say is passed on while all is well: later it is about what we have ended.
void HostsJob::forward_mpirun() {
  const auto forward = [this](FileDescriptor& from, int to) {
    char buffer[16 << 10];
    while (from) {
      const ssize_t got = ::read(from.get(), buffer, sizeof(buffer));
      if (got == 0) from = FileDescriptor();
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return;
      if (ending_since_ns_ == 0 && left_at_ns_ == 0) {
        [[maybe_unused]] const ssize_t wrote = ::write(to, buffer, static_cast<std::size_t>(got));
      }
    }
  };
  forward(mpirun_out_, STDOUT_FILENO);
  forward(mpirun_error_, STDERR_FILENO);
}

void HostsJob::reap_mpirun() {
  int status = 0;
  if (mpirun_ == 0 || ::waitpid(mpirun_, &status, WNOHANG) != mpirun_) return;
  mpirun_ = 0;
  mpirun_status_ = status;
  for (int number = 0; number < static_cast<int>(ranks_.size()); ++number) read_rank(number);
  forward_mpirun();
  if (failure_ || stop_signal_ != 0 || left_at_ns_ != 0) return;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  Failure failure{.exit_code = code != 0 ? code : 1, .at_ns = base::monotonic_ns()};
  failure.text =
      WIFEXITED(status) && WEXITSTATUS(status) == 127 && !started_ ? std::string("mpirun cannot be started")
      : ended_by_mpirun_
          ? fmt::format("mpirun ended the job with exit code {}: a rank called MPI_Abort, or mpirun was asked to", code)
      : started_ ? fmt::format("mpirun ended with exit code {}", code)
                 : fmt::format("mpirun ended with exit code {} before the ranks had started", code);
  fail(std::move(failure));
}

void HostsJob::handle_signal(int signal) {
  if (signal == SIGCHLD) return;
  if (signal == SIGUSR1 || signal == SIGCONT) return signal_all(signal);
  if (signal == SIGTSTP) return pause();
  const bool ends = signal == SIGINT || signal == SIGTERM;
  if (ends && interrupts_ > 0 && base::monotonic_ns() - interrupted_ns_ < kOneWishNs) return;
  events_.add("signal", {{"signal", fmt::format("SIG{}", ::sigabbrev_np(signal))}});
  if (stop_signal_ == 0) stop_signal_ = signal;
  if (ending_since_ns_ == 0) ending_since_ns_ = base::monotonic_ns();
  if (ends && interrupts_++ == 0) interrupted_ns_ = base::monotonic_ns();
  if ((interrupts_ > 1 || signal == SIGQUIT) && ended_by_ == 0) ended_by_ = signal;
  if (!started_) tell_all(MessageKind::kLeave);
  signal_all(ended_by_ != 0 ? SIGKILL : signal);
  signal_all(SIGCONT);  // one that is stopped would not see it
}

/// Ctrl-Z: nothing of the job runs until the shell lets this process go on.
void HostsJob::pause() {
  const std::int64_t begin_ns = base::monotonic_ns();
  signal_all(SIGSTOP);
  tell_all(MessageKind::kPause);
  ::raise(SIGSTOP);
  tell_all(MessageKind::kAlive);
  signal_all(SIGCONT);
  const std::int64_t passed_ns = base::monotonic_ns() - begin_ns;
  if (ending_since_ns_ != 0) ending_since_ns_ += passed_ns;
  for (Rank& rank : ranks_) rank.heard_ns += passed_ns;
}

void HostsJob::lose(int number, const std::string& why, bool frozen) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  rank.ended = rank.lost = true;
  rank.frozen = frozen;
  events_.add("rank_lost", {{"rank", number}, {"host", rank.host}, {"why", why}});
  Failure failure{.rank = number, .text = "lost", .at_ns = base::monotonic_ns()};
  failure.lost_host = true;
  fail(std::move(failure));
}

void HostsJob::look_for_lost() {
  const std::int64_t now_ns = base::monotonic_ns();
  for (int number = 0; number < static_cast<int>(ranks_.size()); ++number) {
    const Rank& rank = ranks_[static_cast<std::size_t>(number)];
    if (rank.channel && !rank.ended && now_ns - rank.heard_ns > host_limit_ns_) lose(number, "no_sign_of_life", true);
  }
}

/// A rank that is stopped and will not go on by itself: the others would wait for it.
void HostsJob::look_for_stopped() {
  if (failure_ || stop_signal_ != 0 || options_.stopped_limit_ms == 0) return;
  const std::int64_t now_ns = base::monotonic_ns();
  for (int number = 0; number < static_cast<int>(ranks_.size()); ++number) {
    const Rank& rank = ranks_[static_cast<std::size_t>(number)];
    if (rank.ended || rank.stopped_since_ns == 0 ||
        now_ns - rank.stopped_since_ns < options_.stopped_limit_ms * base::kNanosPerMilli)
      continue;
    return fail({.rank = number,
                 .text = fmt::format("stopped (SIGSTOP or terminal) for {:.1f} s", options_.stopped_limit_ms / 1e3),
                 .at_ns = now_ns});
  }
}

void HostsJob::look_for_late_start() {
  if (started_ || failure_ || base::monotonic_ns() - start_ns_ < kStartLimitNs) return;
  std::vector<int> missing;
  for (int number = 0; number < static_cast<int>(ranks_.size()); ++number)
    if (!ranks_[static_cast<std::size_t>(number)].channel) missing.push_back(number);
  fail({.text = fmt::format("{} did not start within {} s; `zero doctor --hosts FILE` looks at the hosts",
                            text_of_numbers(missing), kStartLimitNs / base::kNanosPerSecond),
        .at_ns = base::monotonic_ns()});
}

void HostsJob::fail(Failure failure) {
  if (failure_) return;
  if (ending_since_ns_ == 0) ending_since_ns_ = failure.at_ns;
  failure_ = std::move(failure);
}

void HostsJob::escalate() {
  if (ending_since_ns_ == 0) return;
  const std::int64_t now_ns = base::monotonic_ns();
  const auto passed = [now_ns](std::int64_t since_ns, int limit_ms) {
    return since_ns != 0 && now_ns - since_ns >= limit_ms * base::kNanosPerMilli;
  };
  const int failure_grace_ms = std::min(options_.grace_ms, options_.failure_grace_ms);
  const auto is_stopped = [](const Rank& rank) { return !rank.ended && rank.stopped_since_ns != 0; };
  const bool waits_in_vain = failure_ && std::any_of(ranks_.begin(), ranks_.end(), is_stopped);
  const bool host_lost = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.lost; });
  const bool is_over =
      passed(ending_since_ns_, unread_ ? failure_grace_ms : options_.grace_ms) || waits_in_vain ||
      (failure_ && passed(failure_->at_ns, host_lost ? std::min(kLostGraceMs, failure_grace_ms) : failure_grace_ms));
  if (is_over && terminated_at_ns_ == 0) {
    terminated_at_ns_ = now_ns;
    signal_all(SIGTERM);
  }
  const int kill_after_ms = host_lost ? std::min(kLostKillAfterMs, options_.kill_after_ms) : options_.kill_after_ms;
  if (!killed_ && (passed(terminated_at_ns_, kill_after_ms) || (waits_in_vain && terminated_at_ns_ != 0))) {
    killed_ = true;
    signal_all(SIGKILL);
  }
}

bool HostsJob::all_have_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended || !rank.channel; });
}

/// Once no rank runs, agents are let go, and mpirun with them.
void HostsJob::leave() {
  if (mpirun_ == 0) return;
  const std::int64_t now_ns = base::monotonic_ns();
  const bool is_over = started_ ? all_have_ended() && !(ended_by_mpirun_ && !failure_) : failure_ || stop_signal_ != 0;
  if (left_at_ns_ == 0 && is_over) {
    left_at_ns_ = now_ns;
    tell_all(MessageKind::kLeave);
  }
  if (left_at_ns_ == 0) return;
  // It would wait for agents that will never come, or for a host that is lost.
  const bool waits_in_vain = !started_ || (failure_ && failure_->lost_host);
  const std::int64_t left_ns = now_ns - left_at_ns_, limit_ns = waits_in_vain ? 0 : kLeaveLimitNs;
  if (left_ns > limit_ns + kMpirunKillNs) {
    ::kill(-mpirun_, SIGKILL);
  } else if (left_ns >= limit_ns && !std::exchange(mpirun_terminated_, true)) {
    ::kill(mpirun_, SIGTERM);
  }
}

void HostsJob::signal_all(int signal) { tell_all(MessageKind::kSignal, std::to_string(signal)); }

void HostsJob::tell_all(MessageKind kind, std::string_view body) {
  for (const Rank& rank : ranks_)
    if (rank.channel && !rank.channel->is_gone()) rank.channel->queue(kind, body);
}

double HostsJob::seconds_since_start(std::int64_t at_ns) const {
  return static_cast<double>(at_ns - start_ns_) / static_cast<double>(base::kNanosPerSecond);
}

void HostsJob::say(const std::string& text) const { write_line(options_.name, text); }

/// "host h2 (ranks 2, 3) was lost: no sign of life for 6.0 s".
std::string HostsJob::describe_lost() const {
  const Rank& first = ranks_[static_cast<std::size_t>(failure_->rank)];
  std::vector<int> lost;
  int of_host = 0;
  for (int number = 0; number < static_cast<int>(ranks_.size()); ++number) {
    const Rank& rank = ranks_[static_cast<std::size_t>(number)];
    of_host += rank.host == first.host ? 1 : 0;
    if (rank.host == first.host && rank.lost) lost.push_back(number);
  }
  const std::string why = first.frozen
                              ? fmt::format("no sign of life for {:.1f} s: its link is cut, or it is down or frozen",
                                            static_cast<double>(host_limit_ns_) / base::kNanosPerSecond)
                              : "its processes were ended at once";
  return static_cast<int>(lost.size()) == of_host
             ? fmt::format("host {} ({}) was lost: {}", first.host, text_of_numbers(lost), why)
             : fmt::format("{} on {} was lost: {}", text_of_numbers(lost), first.host, why);
}

int HostsJob::report() {
  const auto end = [this](int code, const std::string& text) {
    if (!text.empty()) say(text);
    events_.add("end", {{"exit_code", code}, {"text", text}});
    return code;
  };
  if (ended_by_ != 0)
    return end(128 + ended_by_,
               ended_by_ == SIGQUIT ? "ended at once by SIGQUIT" : "ended at once by the second signal");
  if (unread_) return end(128 + SIGPIPE, "");
  if (!failure_ && stop_signal_ != 0 && !started_)
    return end(128 + stop_signal_, fmt::format("stopped by SIG{}", ::sigabbrev_np(stop_signal_)));
  if (!failure_) {
    for (const Rank& rank : ranks_) {
      const int number = static_cast<int>(&rank - ranks_.data());
      for (const LineForwarder* const output : {&rank.out, &rank.error}) {
        if (output->write_error() != 0)
          return end(1, fmt::format("output of rank {} is lost: {}", number, std::strerror(output->write_error())));
        if (output->log_error() != 0)
          return end(1, fmt::format("a part of the log {} is lost: {}", log_path(options_.log_dir, number),
                                    std::strerror(output->log_error())));
      }
    }
    return end(0, "");
  }
  const int signal = failure_->exit_code - 128;
  const bool forced = (killed_ && signal == SIGKILL) || (terminated_at_ns_ != 0 && signal == SIGTERM);
  if (stop_signal_ != 0 && (signal == stop_signal_ || forced)) {
    const char* const how = killed_ && signal == SIGKILL ? "; ranks that did not end had to be killed"
                            : signal == SIGTERM && stop_signal_ != SIGTERM
                                ? "; ranks that did not end had to be terminated"
                                : "";
    return end(128 + stop_signal_, fmt::format("stopped by SIG{}{}", ::sigabbrev_np(stop_signal_), how));
  }
  const double seconds = seconds_since_start(failure_->at_ns);
  const char* const others = ranks_.size() == 1       ? ""
                             : killed_                ? "; the others had to be killed"
                             : terminated_at_ns_ != 0 ? "; the others had to be terminated"
                                                      : "";
  if (failure_->lost_host) return end(failure_->exit_code, fmt::format("{}, after {:.1f} s", describe_lost(), seconds));
  if (failure_->rank < 0) return end(failure_->exit_code, fmt::format("{}, after {:.1f} s", failure_->text, seconds));
  const Rank& rank = ranks_[static_cast<std::size_t>(failure_->rank)];
  return end(failure_->exit_code,
             fmt::format("rank {} of {} (pid {} on {}) failed first: {}, after {:.1f} s{}", failure_->rank,
                         ranks_.size(), rank.pid, rank.host, failure_->text, seconds, others));
}

}  // namespace zero::launcher
