// The launcher: exit codes, prefixes, signals, no orphans. Ranks are shell scripts, or this program itself
// with --as-rank=<what>.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>

#include "comm/process.h"
#include "comm/shm/segment.h"
#include "support/temporary_folder.h"
#include "zero/errors.h"
#include "zero/group.h"
#include "zero/launch.h"

namespace zero::testing::launcher_test {

std::string g_program;  ///< path of this test

namespace {

using namespace std::chrono_literals;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Outcome {
  int exit_code = -1;  ///< 128 + signal when the launcher itself was killed
  std::string out, err;
  double seconds = 0;
};

/// launch() in a child process; `meanwhile` runs here with its pid.
Outcome run_launcher(const LaunchOptions& options, const std::function<void(pid_t)>& meanwhile = {}) {
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(::open(folder.file("out").c_str(), O_CREAT | O_WRONLY, 0600), STDOUT_FILENO);
    ::dup2(::open(folder.file("err").c_str(), O_CREAT | O_WRONLY, 0600), STDERR_FILENO);
    int code = 99;
    try {
      code = launch(options);
    } catch (const ConfigError& error) {
      std::fprintf(stderr, "ConfigError: %s\n", error.what());
    }
    std::fflush(nullptr);
    ::_exit(code);
  }
  if (meanwhile) meanwhile(pid);
  int status = 0;
  ::waitpid(pid, &status, 0);
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  outcome.out = read_file(folder.file("out"));
  outcome.err = read_file(folder.file("err"));
  return outcome;
}

LaunchOptions script(int nproc, const std::string& text) {
  LaunchOptions options;
  options.nproc = nproc;
  options.command = {"sh", "-c", text};
  options.grace_ms = 1000;
  options.kill_after_ms = 500;
  return options;
}

LaunchOptions as_rank(int nproc, const std::string& what) {
  LaunchOptions options;
  options.nproc = nproc;
  options.command = {g_program, "--as-rank=" + what};
  return options;
}

std::multiset<std::string> lines_of(const std::string& text) {
  std::multiset<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

void wait_for_file(const std::string& path) {
  for (int i = 0; i < 1000 && !exists(path); ++i) ::usleep(5000);
  ASSERT_TRUE(exists(path)) << path;
}

bool is_alive(const std::string& pid_file) {
  const int pid = std::atoi(read_file(pid_file).c_str());
  for (int i = 0; i < 100; ++i) {
    // A zombie that nobody reaps in a container counts as gone.
    if (pid <= 0 || comm::process_state({pid, 0}) == comm::ProcessState::kGone) return false;
    ::usleep(10'000);
  }
  return true;
}

TEST(Launcher, OutputIsPrefixedLineByLineAndKeptApart) {
  const Outcome outcome =
      run_launcher(script(3, "printf 'one\\ntwo'; sleep 0.05; printf ' more\\nlast'; echo wrong >&2"));
  EXPECT_EQ(outcome.exit_code, 0);
  std::multiset<std::string> out, err;
  for (const char* rank : {"[0] ", "[1] ", "[2] "}) {
    for (const char* line : {"one", "two more", "last"}) out.insert(std::string(rank) + line);
    err.insert(std::string(rank) + "wrong");
  }
  EXPECT_EQ(lines_of(outcome.out), out);
  EXPECT_EQ(lines_of(outcome.err), err);
}

TEST(Launcher, LongOutputArrivesWhole) {
  const Outcome outcome =
      run_launcher(script(2, "i=0; while [ $i -lt 5000 ]; do echo line $i of rank $ZERO_RANK; i=$((i+1)); done"));
  EXPECT_EQ(outcome.exit_code, 0);
  const auto lines = lines_of(outcome.out);
  EXPECT_EQ(lines.size(), 10'000u);
  EXPECT_EQ(lines.count("[1] line 4999 of rank 1"), 1u);
  EXPECT_EQ(lines.count("[0] line 17 of rank 0"), 1u);
}

TEST(Launcher, StartsThatFailSoonWaitLongerEachTime) {
  RestartPauses pauses;
  for (int i = 0; i < 40; ++i) EXPECT_EQ(pauses.next(2s), std::chrono::seconds(std::min(i, 30)));
  EXPECT_EQ(pauses.next(60s), 0s);
  EXPECT_EQ(pauses.next(59s), 1s);
}

TEST(Launcher, AJobThatFailsStartsAgainAsOftenAsItMay) {
  const TemporaryFolder folder;
  // Rank 1 fails twice; each start has another job and another port, and no rank of an earlier one is left.
  LaunchOptions options =
      script(2, "echo $ZERO_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT $ZERO_JOB_ID >> " + folder.file("starts") +
                    "; if [ $ZERO_RANK = 1 ] && [ $ZERO_RESTART_COUNT -lt 2 ]; then exit 7; fi; "
                    "if [ $ZERO_RESTART_COUNT -lt 2 ]; then echo $$ > " +
                    folder.file("waits.$ZERO_RESTART_COUNT") + "; exec sleep 60; fi");
  options.failure_grace_ms = 200;
  options.max_restarts = 3;
  const Outcome outcome = run_launcher(options);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("rank 1 of 2"), std::string::npos);
  EXPECT_NE(outcome.err.find("starting all ranks again (1 of 3)"), std::string::npos);
  EXPECT_NE(outcome.err.find("starting all ranks again (2 of 3)"), std::string::npos);
  EXPECT_EQ(outcome.err.find("(3 of 3)"), std::string::npos);
  std::set<std::string> jobs;
  std::istringstream starts(read_file(folder.file("starts")));
  int count = 0;
  for (std::string restarts, torch, job; starts >> restarts >> torch >> job; ++count) {
    EXPECT_EQ(restarts, torch);
    jobs.insert(restarts + job);
  }
  EXPECT_EQ(count, 6);
  EXPECT_EQ(jobs.size(), 3u);
  for (const char* name : {"waits.0", "waits.1"}) EXPECT_FALSE(is_alive(folder.file(name))) << name;
}

TEST(Launcher, RestartsEnd) {
  LaunchOptions options = script(2, "exit 5");
  options.max_restarts = 2;
  const Outcome outcome = run_launcher(options);
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_NE(outcome.err.find("(2 of 2)"), std::string::npos);
  options.max_restarts = -1;
  EXPECT_EQ(run_launcher(options).exit_code, 99);
}

TEST(Launcher, AJobThatWasAskedToStopDoesNotStartAgain) {
  const TemporaryFolder folder;
  LaunchOptions options =
      script(2, "trap 'exit 3' TERM; touch " + folder.file("up.$ZERO_RANK") + "; while :; do sleep 0.05; done");
  options.max_restarts = 5;
  const Outcome outcome = run_launcher(options, [&](pid_t pid) {
    wait_for_file(folder.file("up.0"));
    wait_for_file(folder.file("up.1"));
    ::kill(pid, SIGTERM);
  });
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.err.find("again"), std::string::npos) << outcome.err;
}

TEST(Launcher, AStopWhileAJobFailsIsAStop) {
  const TemporaryFolder folder;
  // Rank 1 fails; rank 0 takes its time to end, and meanwhile somebody presses Ctrl-C.
  LaunchOptions options = script(2, "if [ $ZERO_RANK = 1 ]; then sleep 0.2; touch " + folder.file("failed") +
                                        "; exit 9; fi; trap '' INT TERM; touch " + folder.file("up") +
                                        "; i=0; while [ $i -lt 60 ]; do sleep 0.05; i=$((i+1)); done");
  options.failure_grace_ms = 2000;
  options.max_restarts = 5;
  int stopped = 0;
  options.on_stop = [&](int signal) {
    stopped = signal;
    std::ofstream(folder.file("stopped")) << stopped;
  };
  const Outcome outcome = run_launcher(options, [&](pid_t pid) {
    wait_for_file(folder.file("failed"));
    ::usleep(300'000);
    ::kill(pid, SIGINT);
  });
  EXPECT_EQ(outcome.exit_code, 9);
  EXPECT_EQ(outcome.err.find("again"), std::string::npos) << outcome.err;
  EXPECT_EQ(read_file(folder.file("stopped")), std::to_string(SIGINT));
}

TEST(Launcher, WithoutPrefixTheRanksWriteThemselves) {
  LaunchOptions options = script(2, "echo $ZERO_RANK");
  options.prefix_output = false;
  EXPECT_EQ(lines_of(run_launcher(options).out), (std::multiset<std::string>{"0", "1"}));
}

TEST(Launcher, ProgressBarsMoveOnAndEndAsALine) {
  const Outcome outcome =
      run_launcher(script(1, "printf '\\r10%%'; printf '\\r20%%\\r30%%'; printf ' done\\r\\nnext\\n'"));
  EXPECT_EQ(outcome.out, "[0] 10%\r[0] 20%\r[0] 30% done\r\n[0] next\n");
}

TEST(Launcher, LogsOfTheRanksAreAppendedTo) {
  const TemporaryFolder folder;
  for (const bool prefix : {true, false}) {
    LaunchOptions options = script(2, "echo out of $ZERO_RANK; sleep 0.2; echo wrong >&2");
    options.prefix_output = prefix;
    options.log_dir = folder.file("a/logs");
    const Outcome outcome = run_launcher(options);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(lines_of(outcome.out).count(prefix ? "[1] out of 1" : "out of 1"), 1u) << outcome.out;
  }
  EXPECT_EQ(read_file(folder.file("a/logs/rank1.log")), "out of 1\nwrong\nout of 1\nwrong\n");
  LaunchOptions refused = script(1, "true");
  refused.log_dir = "/proc/nowhere";
  EXPECT_THROW(launch(refused), IoError);
}

TEST(Launcher, EnvironmentOfTheRanks) {
  ::unsetenv("OMP_NUM_THREADS");
  LaunchOptions options = script(2,
                                 "echo $ZERO_RANK $ZERO_WORLD_SIZE $ZERO_LOCAL_RANK "
                                 "$ZERO_LOCAL_WORLD_SIZE $RANK $WORLD_SIZE $LOCAL_RANK "
                                 "$LOCAL_WORLD_SIZE $MASTER_ADDR $EXTRA; test $MASTER_PORT -gt 0 && "
                                 "test -n $ZERO_JOB_ID && test $OMP_NUM_THREADS -ge 1 "
                                 "&& ! read line");
  options.environment["EXTRA"] = "more";
  const Outcome outcome = run_launcher(options);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(lines_of(outcome.out),
            (std::multiset<std::string>{"[0] 0 2 0 2 0 2 0 2 127.0.0.1 more", "[1] 1 2 1 2 1 2 1 2 127.0.0.1 more"}));
  LaunchOptions threads = script(2, "echo $OMP_NUM_THREADS");
  threads.environment["OMP_NUM_THREADS"] = "7";
  EXPECT_EQ(lines_of(run_launcher(threads).out), (std::multiset<std::string>{"[0] 7", "[1] 7"}));
  ::unsetenv("OMP_WAIT_POLICY");
  ::unsetenv("GOMP_SPINCOUNT");
  LaunchOptions waiting = script(1, "echo ${OMP_WAIT_POLICY:-none}");
  EXPECT_EQ(lines_of(run_launcher(waiting).out), (std::multiset<std::string>{"[0] passive"}));
  waiting.environment["OMP_WAIT_POLICY"] = "active";
  EXPECT_EQ(lines_of(run_launcher(waiting).out), (std::multiset<std::string>{"[0] active"}));
}

TEST(Launcher, FirstFailureGivesTheExitCode) {
  const Outcome outcome = run_launcher(script(3, "if [ $ZERO_RANK = 1 ]; then exit 42; fi; sleep 0.3; exit 3"));
  EXPECT_EQ(outcome.exit_code, 42);
  EXPECT_NE(outcome.err.find("zero launch: rank 1 of 3 (pid "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("failed first: exit code 42"), std::string::npos) << outcome.err;
  EXPECT_EQ(run_launcher(script(3, "true")).exit_code, 0);
}

TEST(Launcher, SignalOfARankGivesTheExitCode) {
  const Outcome outcome = run_launcher(script(2, "if [ $ZERO_RANK = 1 ]; then kill -9 $$; fi; sleep 0.2"));
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_NE(outcome.err.find("rank 1 of 2"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("killed by signal 9"), std::string::npos) << outcome.err;
}

TEST(Launcher, HangingRanksAreTerminatedAfterTheGrace) {
  const Outcome outcome = run_launcher(script(3, "if [ $ZERO_RANK = 2 ]; then exit 5; fi; exec sleep 60"));
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_GT(outcome.seconds, 0.9);
  EXPECT_LT(outcome.seconds, 5);
  EXPECT_NE(outcome.err.find("had to be terminated"), std::string::npos) << outcome.err;
}

TEST(Launcher, StubbornAndStoppedRanksAreKilled) {
  const Outcome outcome = run_launcher(script(3,
                                              "if [ $ZERO_RANK = 2 ]; then exit 5; fi; trap '' TERM INT; if "
                                              "[ $ZERO_RANK = 1 ]; then kill -STOP $$; fi; "
                                              "while true; do sleep 0.05; done"));
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_LT(outcome.seconds, 6);
  EXPECT_NE(outcome.err.find("had to be killed"), std::string::npos) << outcome.err;
}

TEST(Launcher, SignalsArePassedOn) {
  for (const auto& [signal, name] :
       std::map<int, std::string>{{SIGTERM, "TERM"}, {SIGINT, "INT"}, {SIGHUP, "HUP"}, {SIGUSR1, "USR1"}}) {
    const TemporaryFolder folder;
    const std::string text = "trap 'echo got " + name + "; exit 0' " + name + "; touch " + folder.file("ready") +
                             "$ZERO_RANK; while true; do sleep 0.02; done";
    const Outcome outcome = run_launcher(script(2, text), [&, number = signal](pid_t pid) {
      wait_for_file(folder.file("ready0"));
      wait_for_file(folder.file("ready1"));
      ::kill(pid, number);
    });
    EXPECT_EQ(outcome.exit_code, 0) << name;
    EXPECT_EQ(lines_of(outcome.out), (std::multiset<std::string>{"[0] got " + name, "[1] got " + name}));
  }
}

TEST(Launcher, ASignalThatRanksIgnoreIsStillTheReason) {
  for (const auto& [ignored, sent, forced] : {std::tuple("TERM", SIGTERM, "killed"), {"INT", SIGINT, "terminated"}}) {
    const TemporaryFolder folder;
    LaunchOptions options = script(2, fmt::format("trap '' {}; touch {}$ZERO_RANK; while true; do sleep 0.02; done",
                                                  ignored, folder.file("ready")));
    options.grace_ms = 200;
    options.kill_after_ms = 400;
    const Outcome outcome = run_launcher(options, [&, number = sent](pid_t pid) {
      wait_for_file(folder.file("ready0"));
      wait_for_file(folder.file("ready1"));
      ::kill(pid, number);
    });
    EXPECT_EQ(outcome.exit_code, 128 + sent);
    EXPECT_EQ(outcome.err,
              fmt::format("zero launch: stopped by SIG{}; ranks that did not end had to be {}\n", ignored, forced));
  }
}

TEST(Launcher, AnInterruptOfProgramsThatDoNotHandleItIsNoFailure) {
  const TemporaryFolder folder;
  const Outcome outcome =
      run_launcher(script(2, "touch " + folder.file("ready") + "$ZERO_RANK; exec sleep 60"), [&](pid_t pid) {
        wait_for_file(folder.file("ready0"));
        wait_for_file(folder.file("ready1"));
        ::kill(pid, SIGINT);
      });
  EXPECT_EQ(outcome.exit_code, 128 + SIGINT);
  EXPECT_EQ(outcome.err, "zero launch: stopped by SIGINT\n");
}

/// Waits until the process is in one of the states ("T": stopped).
bool is_in_state(int pid, const std::string& states) {
  for (int i = 0; i < 300; ++i) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t at = stat.rfind(')');
    if (at != std::string::npos && states.find(stat[at + 2]) != std::string::npos) return true;
    ::usleep(10'000);
  }
  return false;
}

TEST(Launcher, CtrlZPausesAllRanksAndTheyGoOnTogether) {
  const TemporaryFolder folder;
  LaunchOptions options = as_rank(2, "slow-sums");
  options.environment["ZERO_TIMEOUT_S"] = "2";  // less than the pause
  options.environment["ZERO_TEST_FOLDER"] = folder.path();
  const Outcome outcome = run_launcher(options, [&](pid_t pid) {
    for (const char* rank : {"0", "1"}) wait_for_file(folder.file(std::string("pid") + rank));
    const int ranks[] = {std::atoi(read_file(folder.file("pid0")).c_str()),
                         std::atoi(read_file(folder.file("pid1")).c_str())};
    ::kill(pid, SIGTSTP);
    EXPECT_TRUE(is_in_state(pid, "T"));
    for (const int rank : ranks) EXPECT_TRUE(is_in_state(rank, "T"));
    ::sleep(5);  // longer than a stopped peer is waited for
    ::kill(pid, SIGCONT);
    for (const int rank : ranks) EXPECT_TRUE(is_in_state(rank, "RSD"));
  });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(lines_of(outcome.out), (std::multiset<std::string>{"[0] sums are right", "[1] sums are right"}));
}

TEST(Launcher, AStoppedRankDoesNotDelayTheEnd) {
  const Outcome outcome = run_launcher([] {
    LaunchOptions options = script(2, "test $ZERO_RANK = 0 && kill -STOP $$; sleep 0.5; exit 3");
    options.grace_ms = 60'000;
    options.kill_after_ms = 500;
    return options;
  }());
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_LT(outcome.seconds, 5);
}

TEST(Launcher, AFailureAllowsLessTimeThanAStopSignal) {
  LaunchOptions options = script(2, "trap '' TERM; test $ZERO_RANK = 0 && exit 3; sleep 60");
  options.grace_ms = 60'000;
  options.failure_grace_ms = 300;
  const Outcome outcome = run_launcher(options);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_LT(outcome.seconds, 5);
}

TEST(Launcher, Rank0GetsTheInput) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "word\n", 5), 5);
  ::close(ends[1]);
  const int before = ::dup(STDIN_FILENO);
  ::dup2(ends[0], STDIN_FILENO);
  const Outcome outcome = run_launcher(script(2, "read line; echo got $line"));
  ::dup2(before, STDIN_FILENO);
  EXPECT_EQ(lines_of(outcome.out), (std::multiset<std::string>{"[0] got word", "[1] got"}));
}

TEST(Launcher, EndsWhenNobodyReadsTheOutput) {
  const TemporaryFolder folder;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[0]);
    ::dup2(ends[1], STDOUT_FILENO);
    const std::string text = "trap 'touch " + folder.file("hup") +
                             "$ZERO_RANK; exit 0' HUP; while true; do echo line; "
                             "sleep 0.02; done";
    ::_exit(launch(script(2, text)));
  }
  ::close(ends[1]);
  char first = 0;
  EXPECT_EQ(::read(ends[0], &first, 1), 1);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGPIPE);
  EXPECT_TRUE(exists(folder.file("hup0")) && exists(folder.file("hup1")));
}

TEST(Launcher, RemovesWhatKilledJobsLeftInDevShm) {
  // Rank 0 of a job that nobody launched, killed while it waits for the others.
  const std::string id = "left-behind-" + std::to_string(::getpid());
  const std::string name = "/dev/shm" + comm::ControlSegment::name_of(id);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv("ZERO_JOB_ID", id.c_str(), 1);
    for (const char* variable : {"ZERO_RANK", "ZERO_LOCAL_RANK"}) ::setenv(variable, "0", 1);
    for (const char* variable : {"ZERO_WORLD_SIZE", "ZERO_LOCAL_WORLD_SIZE"}) ::setenv(variable, "2", 1);
    try {
      init_distributed();
    } catch (const std::exception&) {
    }
    ::_exit(0);
  }
  wait_for_file(name);
  EXPECT_EQ(run_launcher(script(1, "exit 0")).exit_code, 0);
  EXPECT_TRUE(exists(name)) << "its owner lives";
  ::usleep(100'000);  // it has said who it is
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(run_launcher(script(1, "exit 0")).exit_code, 0);
  EXPECT_FALSE(exists(name));
}

TEST(Launcher, SecondInterruptKills) {
  const TemporaryFolder folder;
  LaunchOptions options =
      script(2, "trap '' INT TERM; touch " + folder.file("ready") + "$ZERO_RANK; while true; do sleep 0.02; done");
  options.grace_ms = 30'000;
  const Outcome outcome = run_launcher(options, [&](pid_t pid) {
    wait_for_file(folder.file("ready0"));
    wait_for_file(folder.file("ready1"));
    ::kill(pid, SIGINT);
    ::usleep(700'000);
    ::kill(pid, SIGINT);
  });
  EXPECT_EQ(outcome.exit_code, 128 + SIGINT);
  EXPECT_LT(outcome.seconds, 10);
}

TEST(Launcher, ASignalThatComesTwiceAtOnceIsOne) {
  // timeout(1) signals its child and then the group that the child is in.
  const TemporaryFolder folder;
  const std::string saved = folder.file("saved");
  LaunchOptions options = script(2, "trap 'sleep 0.8; touch " + saved + "$ZERO_RANK; exit 0' INT; touch " +
                                        folder.file("ready") + "$ZERO_RANK; while true; do sleep 0.02; done");
  options.grace_ms = 30'000;
  run_launcher(options, [&](pid_t pid) {
    wait_for_file(folder.file("ready0"));
    wait_for_file(folder.file("ready1"));
    ::kill(pid, SIGINT);
    ::usleep(1'000);
    ::kill(pid, SIGINT);
  });
  EXPECT_TRUE(exists(saved + "0") && exists(saved + "1"));
}

TEST(Launcher, RanksDieWithTheLauncher) {
  const TemporaryFolder folder;
  const Outcome outcome =
      run_launcher(script(1, "echo $$ > " + folder.file("pid.tmp") + "; mv " + folder.file("pid.tmp") + " " +
                                 folder.file("pid") + "; exec sleep 60"),
                   [&](pid_t pid) {
                     wait_for_file(folder.file("pid"));
                     ::kill(pid, SIGKILL);
                   });
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_FALSE(is_alive(folder.file("pid")));
}

TEST(Launcher, LeavesNoOrphans) {
  const TemporaryFolder folder;
  const Outcome outcome = run_launcher(script(2, "sleep 60 & echo $! > " + folder.file("pid") + "$ZERO_RANK; exit 0"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_LT(outcome.seconds, 5);
  EXPECT_FALSE(is_alive(folder.file("pid0")));
  EXPECT_FALSE(is_alive(folder.file("pid1")));
}

TEST(Launcher, EndsSessionsOfRanksAndLeavesOtherChildrenAlone) {
  const TemporaryFolder folder;
  const pid_t own = ::fork();
  if (own == 0) {
    ::pause();
    ::_exit(0);
  }
  LaunchOptions options = script(1, "setsid sleep 60 & echo $! > " + folder.file("pid") + "; sleep 0.2; exit 0");
  EXPECT_EQ(launch(options), 0);  // here: the child above is this process's
  EXPECT_FALSE(is_alive(folder.file("pid")));
  EXPECT_EQ(::waitpid(own, nullptr, WNOHANG), 0) << "it was ended";
  ::kill(own, SIGKILL);
  ::waitpid(own, nullptr, 0);
}

TEST(Launcher, ProgramThatCannotStartIsAConfigError) {
  LaunchOptions options;
  options.nproc = 2;
  options.command = {"./no_such_program"};
  const Outcome missing = run_launcher(options);
  EXPECT_EQ(missing.exit_code, 99);
  EXPECT_NE(missing.err.find("cannot start \"./no_such_program\": No such file"), std::string::npos) << missing.err;
  options.command.clear();
  EXPECT_THROW(launch(options), ConfigError);
  options.command = {"true"};
  options.nproc = 0;
  EXPECT_THROW(launch(options), ConfigError);
}

TEST(Launcher, RemovesWhatTheJobLeftInDevShm) {
  const std::string id = "launcher-test-" + std::to_string(::getpid());
  LaunchOptions options = as_rank(2, "die-before-rendezvous");
  options.environment["ZERO_JOB_ID"] = id;
  EXPECT_EQ(run_launcher(options).exit_code, 128 + SIGKILL);
  EXPECT_FALSE(exists("/dev/shm" + comm::ControlSegment::name_of(id)));
}

TEST(Launcher, RanksFormAGroup) {
  const Outcome outcome = run_launcher(as_rank(3, "sum"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(lines_of(outcome.out),
            (std::multiset<std::string>{"[0] sum 3 on shm", "[1] sum 3 on shm", "[2] sum 3 on shm"}));
}

TEST(Launcher, DeadRankIsExplainedByTheOthers) {
  const Outcome outcome = run_launcher(as_rank(3, "die"));
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_LT(outcome.seconds, 6);
  EXPECT_NE(outcome.err.find("[0] CommError: rank 1 (pid"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("[2] CommError: rank 1 (pid"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("zero launch: rank 1 of 3"), std::string::npos) << outcome.err;
}

/// What the command prints and ends with; it is no rank of a launcher.
Outcome run_unlaunched(const std::string& command) {
  const TemporaryFolder folder;
  const std::string line = "env -u ZERO_RANK -u ZERO_WORLD_SIZE " + command + " > " + folder.file("out");
  Outcome outcome;
  const int status = std::system(line.c_str());
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = read_file(folder.file("out"));
  return outcome;
}

TEST(OwnRanks, AProgramStartsItself) {
  const Outcome three = run_unlaunched(g_program + " --as-rank=own-ranks 3 'an argument'");
  EXPECT_EQ(three.exit_code, 7);
  EXPECT_EQ(lines_of(three.out), (std::multiset<std::string>{"[0] rank 0 of 3 by zero launch: an argument",
                                                             "[1] rank 1 of 3 by zero launch: an argument",
                                                             "[2] rank 2 of 3 by zero launch: an argument"}));
}

TEST(OwnRanks, OneRankOrALaunchersRankRunsInThisProcess) {
  const Outcome alone = run_unlaunched(g_program + " --as-rank=own-ranks 1 word");
  EXPECT_EQ(alone.exit_code, 7);
  EXPECT_EQ(alone.out, "alone: word\n");
  const Outcome launched = run_unlaunched(
      "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
      "MASTER_PORT=29500 TORCHELASTIC_RUN_ID=x " +
      g_program + " --as-rank=own-ranks 3 word");
  EXPECT_EQ(launched.out, "rank 1 of 2 by torchrun: word\n");
  EXPECT_FALSE(launched_rank());
  EXPECT_THROW(run_on_ranks(0, [] { return 0; }), ConfigError);
}

TEST(OwnRanks, WhatThisHostHas) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_GE(usable_cpus(), usable_cores());
  EXPECT_TRUE(own_command()[0].ends_with("launcher_test"));
}

/// A program that starts its own ranks: as many as its first argument says.
int be_own_ranks(const char* nproc, const std::string& word) {
  return run_on_ranks(std::atoi(nproc), [&] {
    const auto launched = launched_rank();
    const std::string who = launched ? "rank " + std::to_string(launched->rank) + " of " +
                                           std::to_string(launched->size) + " by " + launched->launcher
                                     : "alone";
    const std::string line = who + ": " + word + "\n";
    return ::write(STDOUT_FILENO, line.data(), line.size()) > 0 ? 7 : 1;
  });
}

/// Three seconds of sums, in which rank 1 waits for rank 0 most of the time.
int slow_sums(Group group) {
  const std::string file = std::string(std::getenv("ZERO_TEST_FOLDER")) + "/pid" + std::to_string(group.rank());
  std::ofstream(file + ".tmp") << ::getpid();
  std::rename((file + ".tmp").c_str(), file.c_str());
  for (int i = 0; i < 60; ++i) {
    if (group.rank() == 0) ::usleep(50'000);
    std::int64_t sum = i + group.rank();
    group.all_reduce(&sum, 1, DType::kInt64).wait();
    if (sum != 2 * i + 1) return 1;
  }
  constexpr std::string_view kLine = "sums are right\n";
  return ::write(STDOUT_FILENO, kLine.data(), kLine.size()) > 0 ? 0 : 1;
}

/// What a rank does when this program is started by the launcher.
int be_rank(const std::string& what) {
  try {
    if (what == "die-before-rendezvous" && std::atoi(std::getenv("ZERO_RANK")) == 1) {
      ::usleep(200'000);
      ::raise(SIGKILL);
    }
    if (what == "die-before-rendezvous") {
      // Rank 0 made its segment; it is killed too, with the name still there.
      std::thread([] {
        ::usleep(400'000);
        ::raise(SIGKILL);
      }).detach();
    }
    Group group = init_distributed();
    if (what == "slow-sums") return slow_sums(group);
    std::int64_t sum = group.rank();
    group.all_reduce(&sum, 1, DType::kInt64).wait();
    if (what == "die" && group.rank() == 1) ::raise(SIGKILL);
    group.barrier({.label = "end"}).wait();
    const std::string line = "sum " + std::to_string(sum) + " on " + std::string(group.backend()) + "\n";
    return ::write(STDOUT_FILENO, line.data(), line.size()) > 0 ? 0 : 1;
  } catch (const CommError& error) {
    std::fprintf(stderr, "CommError: %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace zero::testing::launcher_test

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  const std::string prefix = "--as-rank=";
  if (first == prefix + "own-ranks") return zero::testing::launcher_test::be_own_ranks(argv[2], argv[3]);
  if (first.rfind(prefix, 0) == 0) return zero::testing::launcher_test::be_rank(first.substr(prefix.size()));
  zero::testing::launcher_test::g_program = "/proc/" + std::to_string(::getpid()) + "/exe";
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
