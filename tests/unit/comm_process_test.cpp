// Liveness of processes, and the text of call records.
#include "comm/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/call_record.h"
#include "comm/shm/segment.h"

namespace zero::comm::comm_process_test {
namespace {

TEST(CommProcess, FollowsAChildThroughItsLife) {
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  const ProcessId id{child, start_time_of(child)};
  EXPECT_NE(id.start_time, 0u);
  EXPECT_EQ(process_state(id), ProcessState::kRunning);
  ::kill(child, SIGSTOP);
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  EXPECT_EQ(process_state(id), ProcessState::kStopped);
  EXPECT_EQ(process_state({child, id.start_time + 1}),
            ProcessState::kGone);  // the pid was given to another process
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(process_state(id), ProcessState::kGone);  // a zombie
  ::waitpid(child, &status, 0);
  EXPECT_EQ(process_state(id), ProcessState::kGone);
  EXPECT_EQ(process_state(this_process()), ProcessState::kRunning);
}

TEST(CommProcess, RunsWhileADebuggerLooksAtIt) {
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  int status = 0;
  const bool attached = ::ptrace(PTRACE_ATTACH, child, nullptr, nullptr) == 0 && ::waitpid(child, &status, 0) == child;
  const ProcessState state = process_state({child, start_time_of(child)});
  ::kill(child, SIGKILL);
  if (attached) ::ptrace(PTRACE_DETACH, child, nullptr, nullptr);
  ::waitpid(child, &status, 0);
  if (!attached) GTEST_SKIP() << "this machine allows no ptrace";
  EXPECT_EQ(state, ProcessState::kRunning);
}

TEST(CommCallRecord, DescribesACall) {
  CallRecord record;
  record.kind = CollectiveKind::kBroadcast;
  record.sequence = 12;
  record.numel = 4096;
  record.dtype = DType::kBFloat16;
  record.root = 3;
  set_label(record, "layer.3");
  EXPECT_EQ(describe(record), "broadcast #12 \"layer.3\" (4096 bf16, root 3)");
  record.entered_ns = 1 * base::kNanosPerSecond;
  EXPECT_EQ(describe_with_times(record, 3 * base::kNanosPerSecond),
            "broadcast #12 \"layer.3\" (4096 bf16, root 3), entered 2.000 s ago, not finished");
}

TEST(CommCallRecord, SignatureIgnoresTimesOnly) {
  CallRecord a, b;
  set_label(a, "a longer label first");
  set_label(a, "same");
  set_label(b, "same");
  a.entered_ns = 5;
  EXPECT_TRUE(same_call(a, b));
  b.phase = 1;
  EXPECT_FALSE(same_call(a, b));
  const std::int64_t even[] = {4, 4}, uneven[] = {3, 5};
  EXPECT_NE(hash_counts(even), hash_counts(uneven));
}

TEST(CommSegment, NamesAreSafe) {
  EXPECT_EQ(ControlSegment::name_of("job-1.a"), "/zerotorch-" + std::to_string(::getuid()) + "-job-1.a");
  const std::string odd = ControlSegment::name_of("a/b c");
  EXPECT_EQ(odd.find('/', 1), std::string::npos);
  EXPECT_NE(odd, ControlSegment::name_of("a_b_c"));
  EXPECT_LT(ControlSegment::name_of(std::string(1000, 'x')).size(), 200u);
  EXPECT_NE(ControlSegment::name_of(std::string(1000, 'x')), ControlSegment::name_of(std::string(1001, 'x')));
}

}  // namespace
}  // namespace zero::comm::comm_process_test
