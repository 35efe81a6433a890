#include "comm/messages/host_watch.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/environment.h"
#include "base/log.h"
#include "comm/memory.h"
#include "comm/messages/messenger.h"
#include "comm/messages/watch_line.h"
#include "comm/process.h"
#include "comm/sockets.h"
#include "comm/wait_policy.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

constexpr std::int64_t kBeatNs = base::kNanosPerSecond / 4;
/// A link that was away for 5 s carries TCP's next attempt after 6.2 s: they are 0.2, 0.4, 0.8, ... s apart.
constexpr double kLostHostS = 7;
/// What ranks that compute may go on for after a host is lost: their launcher may be unable to end them.
constexpr std::int64_t kGraceNs = base::kNanosPerSecond;
constexpr std::int64_t kConnectNs = 5 * base::kNanosPerSecond;
constexpr std::int64_t kLingerNs = base::kNanosPerSecond / 2;
constexpr int kAddresses = 8;

/// What a rank says of itself before anything else.
struct Card {
  char machine[320];   ///< this_host(): a machine may count as several hosts
  std::uint16_t port;  ///< where it listens
  std::array<std::uint8_t, 16> token;
  char addresses[kAddresses][INET6_ADDRSTRLEN];  ///< that other hosts may reach it at
  char problem[160];                             ///< empty: none
};

void fill_addresses(Card& card) {
  int found = 0;
  for (const std::string& address : own_addresses()) {
    if (found == kAddresses || address == "127.0.0.1") continue;
    std::snprintf(card.addresses[found++], INET6_ADDRSTRLEN, "%s", address.c_str());
  }
}

class TcpHostWatch;

/// A forked child must not hold the connections open when its parent dies.
std::mutex g_watches_mutex;
std::vector<TcpHostWatch*> g_watches;

class TcpHostWatch final : public HostWatch {
 public:
  TcpHostWatch(int rank, std::vector<WatchedRank> ranks, std::vector<Card> cards, FileDescriptor listener,
               double limit_s);
  ~TcpHostWatch() override;

  std::string failure() override;
  void told() override { known_ = true; }
  bool lost_a_host() const override { return lost_host_.load(); }
  std::string problem_of(int world_rank) const override;
  void report(const std::string& failure) noexcept override;
  /// In a forked child.
  void close_in_child();
  /// At the end of the process, where no group is left to do it.
  void say_farewell() noexcept;

 private:
  enum class Life : std::uint8_t { kThere, kLeft, kEnded };
  const Card& card(int rank) const { return cards_[static_cast<std::size_t>(rank)]; }
  bool is_root() const { return rank_ == 0; }
  const ProcessId& process(int rank) const { return ranks_[static_cast<std::size_t>(rank)].process; }
  int leader_of(int rank) const { return ranks_[static_cast<std::size_t>(rank)].first_of_host; }
  bool on_my_host(int rank) const { return leader_of(rank) == leader_of(rank_); }
  std::string host_of(int rank) const;
  std::string ranks_of_host(int rank) const;
  std::string who(int rank) const {
    return fmt::format("rank {} (pid {} on {})", rank, process(rank).pid, host_of(rank));
  }
  bool connect_to_parent();
  bool greet_parent(const char* address);
  void run();
  void pass_reports_on();
  void accept_lines();
  void linger();
  void take(int from, const WatchFrame& frame, const std::string& text);
  void on_closed(int peer);
  void judge(std::int64_t now_ns);
  void judge_line(int peer, WatchLine& line, std::int64_t now_ns);
  void spread_life(int from, int rank, Life life);
  void fail(const std::string& text, bool lost_host);
  void end_process_if_due(std::int64_t now_ns);
  void end_mpirun_later() const;
  WatchLine* line_to(int peer);
  template <class Use>
  void for_each_line(const Use& use) {
    if (parent_ >= 0 && parent_line_.fd() >= 0) use(parent_, parent_line_);
    for (auto& [peer, line] : children_)
      if (line.fd() >= 0) use(peer, line);
  }

  const int rank_;
  const std::vector<WatchedRank> ranks_;
  const std::vector<Card> cards_;
  const std::int64_t limit_ns_;
  const std::int64_t stopped_limit_ns_;
  const pid_t pid_ = ::getpid();
  int parent_ = -1;
  // What follows is the thread's own, unless mutex_ says otherwise.
  FileDescriptor listener_;
  WatchLine parent_line_;
  std::map<int, WatchLine> children_;
  std::vector<WatchLine> strangers_;  ///< that have not said who they are
  std::int64_t failed_ns_ = 0;

  FileDescriptor wake_;
  std::mutex mutex_;                    ///< guards the next
  std::string failure_;                 ///< empty: none
  std::vector<std::string> to_report_;  ///< by other threads
  std::atomic<bool> lost_host_{false}, known_{false}, ending_{false};
  std::vector<std::atomic<Life>> lives_;
  std::unique_ptr<std::thread> thread_;
};

TcpHostWatch::TcpHostWatch(int rank, std::vector<WatchedRank> ranks, std::vector<Card> cards, FileDescriptor listener,
                           double limit_s)
    : rank_(rank),
      ranks_(std::move(ranks)),
      cards_(std::move(cards)),
      limit_ns_(static_cast<std::int64_t>(limit_s * 1e9)),
      stopped_limit_ns_(WaitPolicy::for_local_ranks({}).stopped_limit_ns),
      listener_(std::move(listener)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      lives_(cards_.size()) {
  for (auto& life : lives_) life = Life::kThere;
  if (!is_root()) parent_ = leader_of(rank_) == rank_ ? 0 : leader_of(rank_);
  if (leader_of(rank_) != rank_) listener_ = FileDescriptor();  // nobody's parent
  if (!is_root() && !connect_to_parent()) {
    base::log_warning(
        "no connection for heartbeats to {}, port {}: that a host is lost is noticed late (a firewall? "
        "ZERO_LOST_HOST_S=0 goes without)",
        who(parent_), card(parent_).port);
    parent_ = -1;
  }
  {
    const std::lock_guard lock(g_watches_mutex);
    static const bool once = [] {
      ::pthread_atfork([] { g_watches_mutex.lock(); }, [] { g_watches_mutex.unlock(); },
                       [] {
                         for (TcpHostWatch* watch : g_watches) watch->close_in_child();
                         g_watches.clear();
                         g_watches_mutex.unlock();
                       });
      std::atexit([] {
        std::vector<TcpHostWatch*> watches;
        {
          const std::lock_guard guard(g_watches_mutex);
          watches.swap(g_watches);
        }
        for (TcpHostWatch* watch : watches) watch->say_farewell();
      });
      return true;
    }();
    static_cast<void>(once);
  }
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the process's signals are for its other threads
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (const std::system_error& error) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw CommError(fmt::format("no thread for heartbeats between hosts could be started: {}", error.what()));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const std::lock_guard lock(g_watches_mutex);
  g_watches.push_back(this);
}

TcpHostWatch::~TcpHostWatch() {
  if (::getpid() != pid_) {
    static_cast<void>(thread_.release());  // only its owner's process has it
    return;
  }
  {
    const std::lock_guard lock(g_watches_mutex);
    std::erase(g_watches, this);
  }
  say_farewell();
}

void TcpHostWatch::say_farewell() noexcept {
  if (ending_.exchange(true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(wake_.get(), &one, sizeof(one));
  thread_->join();
}

void TcpHostWatch::close_in_child() {
  listener_ = FileDescriptor();
  for_each_line([](int, WatchLine& line) { line.close(); });
  for (WatchLine& line : strangers_) line.close();
}

std::string TcpHostWatch::host_of(int rank) const {
  const std::string_view machine = card(rank).machine;
  return std::string(machine.substr(0, machine.find(' ')));
}

std::string TcpHostWatch::ranks_of_host(int rank) const {
  std::vector<int> ranks;
  for (int other = 0; other < static_cast<int>(ranks_.size()); ++other)
    if (leader_of(other) == leader_of(rank)) ranks.push_back(other);
  return fmt::format("host {} (rank{} {})", host_of(rank), ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
}

bool TcpHostWatch::connect_to_parent() {
  const Card& to = card(parent_);
  if (std::strcmp(to.machine, card(rank_).machine) == 0) return greet_parent("127.0.0.1") || greet_parent("::1");
  for (int i = 0; i < kAddresses && to.addresses[i][0] != '\0'; ++i)
    if (greet_parent(to.addresses[i])) return true;
  return false;
}

/// False if it is not there: hosts may have the same address, as of a bridge of containers, that leads to themselves.
bool TcpHostWatch::greet_parent(const char* address) {
  const Card& to = card(parent_);
  FileDescriptor socket = connect_to(address, to.port, static_cast<int>(kConnectNs / base::kNanosPerMilli));
  if (!socket) return false;
  parent_line_ = WatchLine(std::move(socket));
  const std::string token(to.token.begin(), to.token.end());
  parent_line_.send(WatchType::kHello, rank_, token);
  // One of this host may be looking for rank 0 itself, at several addresses.
  const std::int64_t limit_ns = on_my_host(parent_) ? kAddresses * 2 * kConnectNs : kConnectNs;
  const std::int64_t deadline_ns = base::monotonic_ns() + limit_ns;
  bool greeted = false, open = true;
  std::vector<std::pair<WatchFrame, std::string>> more;
  while (!greeted && open && base::monotonic_ns() < deadline_ns) {
    pollfd waiting{parent_line_.fd(), POLLIN, 0};
    ::poll(&waiting, 1, 100);
    open = parent_line_.receive([&](const WatchFrame& frame, const std::string& text) {
      if (greeted) more.emplace_back(frame, text);
      greeted |= frame.type == WatchType::kHello && frame.rank == parent_ && text == token;
    });
  }
  if (!greeted || !open) parent_line_.close();
  for (const auto& [frame, text] : more) take(parent_, frame, text);
  return greeted && open;
}

std::string TcpHostWatch::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::string TcpHostWatch::problem_of(int world_rank) const {
  switch (lives_[static_cast<std::size_t>(world_rank)].load()) {
    case Life::kThere:
      return {};
    case Life::kLeft:
      return "has left the job";
    case Life::kEnded:
      return "ended without leaving the job (exited or died; see its own output; killed for lack of memory? see dmesg)";
  }
  return {};
}

void TcpHostWatch::report(const std::string& failure) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (failed() || ::getpid() != pid_) return;
    to_report_.push_back(failure);
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = ::write(wake_.get(), &one, sizeof(one));
  } catch (...) {
    // The others will notice by themselves.
  }
}

WatchLine* TcpHostWatch::line_to(int peer) {
  if (peer == parent_) return parent_line_.fd() >= 0 ? &parent_line_ : nullptr;
  const auto found = children_.find(peer);
  return found != children_.end() && found->second.fd() >= 0 ? &found->second : nullptr;
}

void TcpHostWatch::run() {
  std::int64_t last_beat_ns = 0, last_look_ns = base::monotonic_ns();
  while (!ending_) {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    if (listener_) polled.push_back({listener_.get(), POLLIN, 0});
    for_each_line([&](int, WatchLine& line) { polled.push_back({line.fd(), POLLIN, 0}); });
    for (const WatchLine& line : strangers_) polled.push_back({line.fd(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), 100);
    std::uint64_t woken = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &woken, sizeof(woken));
    accept_lines();
    std::vector<int> closed;
    for_each_line([&](int peer, WatchLine& line) {
      if (!line.receive([&](const WatchFrame& frame, const std::string& text) { take(peer, frame, text); }))
        closed.push_back(peer);
    });
    for (const int peer : closed) on_closed(peer);
    pass_reports_on();
    const std::int64_t now_ns = base::monotonic_ns();
    // This process was stopped itself: what the others did meanwhile is in its sockets.
    if (now_ns - last_look_ns > 2 * base::kNanosPerSecond)
      for_each_line([&](int, WatchLine& line) { line.forgive(now_ns); });
    last_look_ns = now_ns;
    if (now_ns - last_beat_ns >= kBeatNs) {
      last_beat_ns = now_ns;
      for_each_line([&](int, WatchLine& line) { line.send(WatchType::kBeat, rank_); });
    }
    if (!failed()) judge(now_ns);
    end_process_if_due(now_ns);
  }
  pass_reports_on();
  if (!failed() || !lost_host_) {
    for_each_line([&](int, WatchLine& line) { line.send(WatchType::kFarewell, rank_); });
    linger();
  }
}

void TcpHostWatch::pass_reports_on() {
  std::vector<std::string> reports;
  {
    const std::lock_guard lock(mutex_);
    reports.swap(to_report_);
  }
  for (const std::string& text : reports) fail(text, /*lost_host=*/false);
}

/// Until the others have closed their ends: closing a socket with unread data resets it, and the farewell may be lost.
void TcpHostWatch::linger() {
  for_each_line([](int, WatchLine& line) { ::shutdown(line.fd(), SHUT_WR); });
  const std::int64_t deadline_ns = base::monotonic_ns() + kLingerNs;
  while (base::monotonic_ns() < deadline_ns) {
    std::vector<pollfd> polled;
    for_each_line([&](int, WatchLine& line) {
      if (!line.receive([](const WatchFrame&, const std::string&) {})) {
        line.close();
      } else {
        polled.push_back({line.fd(), POLLIN, 0});
      }
    });
    if (polled.empty()) return;
    ::poll(polled.data(), polled.size(), 10);
  }
}

void TcpHostWatch::accept_lines() {
  while (listener_) {
    FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) break;
    strangers_.emplace_back(std::move(socket));
  }
  for (std::size_t i = 0; i < strangers_.size();) {
    int rank = -1;
    std::vector<std::pair<WatchFrame, std::string>> more;
    const bool open = strangers_[i].receive([&](const WatchFrame& frame, const std::string& text) {
      const auto& token = card(rank_).token;
      const bool is_ours = frame.type == WatchType::kHello && text == std::string(token.begin(), token.end());
      if (rank >= 0) {
        more.emplace_back(frame, text);
      } else if (is_ours && frame.rank > 0 && frame.rank < static_cast<int>(cards_.size())) {
        rank = frame.rank;
      }
    });
    const bool too_late = strangers_[i].age_ns(base::monotonic_ns()) > kConnectNs;
    if (rank >= 0 && open) {  // one that has given up is none that has ended
      const auto& token = card(rank_).token;
      children_[rank] = std::move(strangers_[i]);
      children_[rank].send(WatchType::kHello, rank_, std::string(token.begin(), token.end()));
    }
    if (rank >= 0 || !open || too_late) {
      strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
    if (open) {
      for (const auto& [frame, text] : more) take(rank, frame, text);
    }
  }
}

void TcpHostWatch::take(int from, const WatchFrame& frame, const std::string& text) {
  const bool has_rank = frame.rank >= 0 && frame.rank < static_cast<int>(cards_.size());
  switch (frame.type) {
    case WatchType::kHello:
    case WatchType::kBeat:
      return;
    case WatchType::kFarewell:
    case WatchType::kEnded:
      if (has_rank) spread_life(from, frame.rank, frame.type == WatchType::kFarewell ? Life::kLeft : Life::kEnded);
      return;
    case WatchType::kReport:
      return fail(text, frame.lost_host != 0);
    case WatchType::kFailure: {
      const bool lost_host = frame.lost_host != 0;
      {
        const std::lock_guard lock(mutex_);
        if (failure_.empty()) failure_ = text;
      }
      if (lost_host && !lost_host_.exchange(true)) end_mpirun_later();
      if (!failed()) failed_ns_ = base::monotonic_ns();
      failed_.store(true, std::memory_order_release);
      for (auto& [peer, line] : children_) line.send(WatchType::kFailure, 0, text, lost_host);
      return;
    }
  }
}

void TcpHostWatch::spread_life(int from, int rank, Life life) {
  std::atomic<Life>& known = lives_[static_cast<std::size_t>(rank)];
  if (known.load() != Life::kThere) return;
  known = life;
  const WatchType type = life == Life::kLeft ? WatchType::kFarewell : WatchType::kEnded;
  for_each_line([&](int peer, WatchLine& line) {
    if (peer != from && peer != rank) line.send(type, rank);
  });
}

void TcpHostWatch::on_closed(int peer) {
  if (WatchLine* const line = line_to(peer)) line->close();
  if (lives_[static_cast<std::size_t>(peer)].load() != Life::kThere || failed()) return;
  spread_life(peer, peer, Life::kEnded);  // who waits for it fails: a program may end a rank that nobody needs any more
}

void TcpHostWatch::judge(std::int64_t now_ns) {
  std::vector<std::pair<int, WatchLine*>> lines;
  for_each_line([&](int peer, WatchLine& line) { lines.emplace_back(peer, &line); });
  for (const auto& [peer, line] : lines) judge_line(peer, *line, now_ns);
}

void TcpHostWatch::judge_line(int peer, WatchLine& line, std::int64_t now_ns) {
  const std::int64_t silent_ns = line.silent_ns(now_ns);
  if (lives_[static_cast<std::size_t>(peer)].load() != Life::kThere || silent_ns < 2 * kBeatNs) return;
  if (on_my_host(peer)) {
    // One that a debugger looks at is not stopped.
    if (process_state(process(peer)) != ProcessState::kStopped) return;
    if (silent_ns >= stopped_limit_ns_) {
      fail(fmt::format("{} is stopped (SIGSTOP or terminal) for {:.1f} s (ZERO_STOPPED_LIMIT_S allows more)", who(peer),
                       to_seconds(silent_ns)),
           /*lost_host=*/true);
    }
    return;
  }
  if (silent_ns < limit_ns_) return;
  // Its kernel answers at once, or after a time-out of TCP.
  if (line.unacknowledged_ns() > limit_ns_ * 2 / 3) {
    return fail(fmt::format("{} has not answered {} for {:.1f} s: it is cut off, without power or stopped as a whole "
                            "(ZERO_LOST_HOST_S allows more)",
                            ranks_of_host(peer), host_of(rank_), to_seconds(silent_ns)),
                /*lost_host=*/true);
  }
  if (silent_ns < std::max(limit_ns_, stopped_limit_ns_)) return;
  fail(fmt::format("{} is stopped or frozen for {:.1f} s: its host answers, it does not (ZERO_LOST_HOST_S and "
                   "ZERO_STOPPED_LIMIT_S allow more)",
                   who(peer), to_seconds(silent_ns)),
       /*lost_host=*/true);
}

void TcpHostWatch::fail(const std::string& text, bool lost_host) {
  if (failed()) return;
  const WatchLine* const to_parent = line_to(parent_);
  const bool parent_answers = to_parent && to_parent->silent_ns(base::monotonic_ns()) < 2 * base::kNanosPerSecond;
  if (parent_answers)
    return parent_line_.send(WatchType::kReport, rank_, text, lost_host);  // it tells all, this rank too
  WatchFrame frame;
  frame.type = WatchType::kFailure;
  frame.lost_host = lost_host ? 1 : 0;
  take(rank_, frame, text);
}

/// mpirun waits for its daemon on a host that does not answer, also when all ranks that do have ended. A process of its
/// own ends it after this one.
void TcpHostWatch::end_mpirun_later() const {
  const pid_t parent = ::getppid();
  std::string name;
  std::ifstream(fmt::format("/proc/{}/comm", parent)) >> name;
  if (name != "mpirun" && name != "orterun" && name != "mpiexec" && name != "prterun") return;
  constexpr useconds_t kNapUs = 50'000;
  constexpr int kNapsForRank = 60, kNapsForTerm = 10;  // 3 s, 0.5 s
  const pid_t child = ::fork();
  if (child != 0) return;
  // Only what is safe in a child of a process with threads.
  ::setsid();
  for (int i = 0; i < kNapsForRank && ::getppid() == pid_; ++i) ::usleep(kNapUs);
  ::kill(parent, SIGTERM);
  for (int i = 0; i < kNapsForTerm; ++i) {
    ::usleep(kNapUs);
    if (::kill(parent, 0) != 0) ::_exit(0);
  }
  ::kill(parent, SIGKILL);
  ::_exit(0);
}

/// A program that computes for long would outlive its job, and its launcher may not be able to end it.
void TcpHostWatch::end_process_if_due(std::int64_t now_ns) {
  if (!failed() || !lost_host_ || known_ || now_ns - failed_ns_ < kGraceNs) return;
  const std::string line = fmt::format("zerotorch: rank {} ends: {}\n", rank_, failure());
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, line.data(), line.size());
  if (::ftrylockfile(stdout) == 0) {
    ::fflush_unlocked(stdout);
    ::funlockfile(stdout);
  }
  ::_exit(1);
}

}  // namespace

std::shared_ptr<HostWatch> HostWatch::begin(Messenger& messenger, std::vector<WatchedRank> ranks) {
  Card mine{};
  double limit_s = 0;
  FileDescriptor listener;
  try {
    limit_s = base::seconds_from("ZERO_LOST_HOST_S", kLostHostS, 0, 1e9,
                                 "seconds after which a silent host counts as lost, or 0 for never.");
    auto [socket, port] = listen_anywhere();
    listener = std::move(socket);
    mine.port = static_cast<std::uint16_t>(port);
  } catch (const std::exception& error) {
    std::snprintf(mine.problem, sizeof(mine.problem), "%s", error.what());
  }
  std::snprintf(mine.machine, sizeof(mine.machine), "%s", this_host().c_str());
  std::random_device random;
  for (std::uint8_t& byte : mine.token) byte = static_cast<std::uint8_t>(random());
  fill_addresses(mine);
  std::vector<Card> cards(ranks.size());
  messenger.all_gather(&mine, sizeof(mine), cards.data());
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].problem[0] != '\0') throw ConfigError(fmt::format("rank {}: {}", rank, cards[rank].problem));
  }
  if (limit_s == 0) return nullptr;
  return std::make_shared<TcpHostWatch>(messenger.rank(), std::move(ranks), std::move(cards), std::move(listener),
                                        limit_s);
}

}  // namespace zero::comm
