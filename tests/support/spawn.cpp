#include "spawn.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "comm/shm/backend.h"
#include "comm/shm/segment.h"
#include "doubles/local_groups.h"

namespace zero::testing {
namespace {

constexpr int kExitException = 1;
constexpr int kExitAssertion = 2;
constexpr char kStartedMark = '\1';  ///< first byte on the pipe: the rank has its group

void write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote <= 0) return;
    done += static_cast<std::size_t>(wrote);
  }
}

/// Sends failed assertions to the parent at once: the rank may be killed later.
class PipeListener : public ::testing::EmptyTestEventListener {
 public:
  explicit PipeListener(int fd) : fd_(fd) {}
  /// Here: the rank inherits the failures that its parent has seen.
  bool heard_failure() const { return heard_failure_; }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    heard_failure_ = true;
    const std::string file = result.file_name() ? result.file_name() : "?";
    write_all(fd_, file + ":" + std::to_string(result.line_number()) + ": " + result.message() + "\n");
  }

 private:
  int fd_;
  bool heard_failure_ = false;
};

[[noreturn]] void run_child(int rank, int n, int fd, const std::string& job_id, const std::function<void(Group)>& fn,
                            const SpawnOptions& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  auto* const listener = new PipeListener(fd);
  listeners.Append(listener);
  int code = 0;
  try {
    auto segment = comm::ControlSegment::rendezvous(job_id, rank, n, options.rendezvous_timeout);
    Group group(std::make_shared<comm::ShmBackend>(std::move(segment), rank, comm::ranks_beside(rank, n)));
    if (options.group_timeout.count() > 0) group.set_timeout(options.group_timeout);
    write_all(fd, std::string(1, kStartedMark));
    fn(std::exchange(group, Group()));
    if (listener->heard_failure()) code = kExitAssertion;
  } catch (const std::exception& error) {
    write_all(fd, error.what());
    code = kExitException;
  } catch (...) {
    write_all(fd, "exception of an unknown type");
    code = kExitException;
  }
  std::fflush(nullptr);
  ::_exit(code);
}

struct Child {
  RankResult result;
  int fd = -1;
  bool started = false;
  bool ended = false;
};

/// Drains the pipe; true when something came.
void read_pipe(Child& child) {
  char buffer[4096];
  ssize_t got = 0;
  while ((got = ::read(child.fd, buffer, sizeof(buffer))) > 0) {
    for (ssize_t i = 0; i < got; ++i) {
      if (!child.started && buffer[i] == kStartedMark) {
        child.started = true;
      } else {
        child.result.error += buffer[i];
      }
    }
  }
}

void reap(Child& child, double seconds) {
  int status = 0;
  if (child.ended || ::waitpid(child.result.pid, &status, WNOHANG) != child.result.pid) return;
  child.ended = true;
  child.result.seconds = seconds;
  if (WIFEXITED(status)) {
    child.result.exit_code = WEXITSTATUS(status);
  } else {
    child.result.signal = WTERMSIG(status);
  }
  read_pipe(child);
  child.result.ok = child.result.exit_code == 0;
}

std::string unique_job_id() {
  static std::atomic<int> counter{0};
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
}

}  // namespace

std::vector<RankResult> spawn(int n, const std::function<void(Group)>& fn, const SpawnOptions& options) {
  const std::string job_id = unique_job_id();
  std::vector<Child> children(static_cast<std::size_t>(n));
  std::fflush(nullptr);  // or the children would print what is buffered once more
  for (int rank = 0; rank < n; ++rank) {
    Child& child = children[static_cast<std::size_t>(rank)];
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
    if (pid == 0) {
      ::close(ends[0]);
      run_child(rank, n, ends[1], job_id, fn, options);
    }
    ::close(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    child.fd = ends[0];
    child.result.rank = rank;
    child.result.pid = pid;
  }
  const auto begin = std::chrono::steady_clock::now();
  bool told = !options.on_started;
  std::size_t ended = 0;
  while (ended < children.size()) {
    std::vector<pollfd> polled;
    for (const Child& child : children) polled.push_back({child.ended ? -1 : child.fd, POLLIN, 0});
    ::poll(polled.data(), polled.size(), 5);
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    std::size_t started = 0;
    ended = 0;
    for (Child& child : children) {
      if (!child.ended) read_pipe(child);
      reap(child, std::chrono::duration<double>(elapsed).count());
      if (!child.ended && elapsed > options.timeout && !child.result.timed_out) {
        child.result.timed_out = true;
        ::kill(child.result.pid, SIGKILL);
      }
      started += child.started;
      ended += child.ended;
    }
    if (options.expendable_rank >= 0 && ended + 1 == children.size()) {
      const Child& expendable = children[static_cast<std::size_t>(options.expendable_rank)];
      if (!expendable.ended) ::kill(expendable.result.pid, SIGKILL);
    }
    if (!told && started == children.size()) {
      told = true;
      std::vector<pid_t> pids;
      for (const Child& child : children) pids.push_back(child.result.pid);
      options.on_started(pids);
    }
  }
  std::vector<RankResult> results;
  for (Child& child : children) {
    ::close(child.fd);
    results.push_back(std::move(child.result));
  }
  return results;
}

std::vector<RankResult> spawn_threads(int n, const std::function<void(Group)>& fn) {
  std::vector<Group> groups = comm::make_local_groups(n);
  std::vector<RankResult> results(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank, group = std::exchange(groups[static_cast<std::size_t>(rank)], Group())]() mutable {
      RankResult& result = results[static_cast<std::size_t>(rank)];
      result.rank = rank;
      result.pid = ::getpid();
      try {
        fn(std::exchange(group, Group()));
        result.ok = true;
        result.exit_code = 0;
      } catch (const std::exception& error) {
        result.error = error.what();
        result.exit_code = kExitException;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

void expect_all_ok(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.ok) << "rank " << result.rank << " (pid " << result.pid << ") exit code " << result.exit_code
                           << ", signal " << result.signal << (result.timed_out ? ", timed out" : "") << ": "
                           << result.error;
  }
}

std::vector<std::string> leftover_shm_names() {
  const std::string pid = "-" + std::to_string(::getpid());
  std::vector<std::string> names;
  if (DIR* folder = ::opendir("/dev/shm")) {
    while (const dirent* entry = ::readdir(folder)) {
      const std::string_view name(entry->d_name);
      if (name.starts_with("zerotorch-") && name.find(pid) != std::string_view::npos) names.emplace_back(name);
    }
    ::closedir(folder);
  }
  return names;
}

}  // namespace zero::testing
