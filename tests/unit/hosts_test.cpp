// Hostfiles, commands on hosts, and the channel between a launcher and the agents of its ranks.
#include "zero/hosts.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>
#include <fstream>

#include "launcher/channel.h"
#include "launcher/remote_shell.h"
#include "support/temporary_folder.h"
#include "zero/errors.h"

namespace zero::launcher::hosts_test {
namespace {

std::string error_of_hostfile(const std::string& text) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.file("hosts");
  std::ofstream(path) << text;
  try {
    read_hostfile(path);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(Hosts, HostfilesAreReadAndMistakesAreNamed) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder.file("hosts")) << "# ours\n a slots=2 \n\nb slots=3 # the fast one\n";
  const auto hosts = read_hostfile(folder.file("hosts"));
  ASSERT_EQ(hosts.size(), 2U);
  EXPECT_EQ(hosts[1].host, "b");
  EXPECT_EQ(hosts[1].slots, 3);
  const auto first = first_slots(hosts, 3);
  EXPECT_EQ(first[1].slots, 1);
  EXPECT_THROW(first_slots(hosts, 6), ConfigError);
  for (const char* bad : {"a\n", "a slots=0\n", "a slots=x\n", "a slots=2 more\n", "-x slots=2\n", "a slots=9999\n"})
    EXPECT_NE(error_of_hostfile(bad).find("hosts:1: got"), std::string::npos) << bad;
  EXPECT_NE(error_of_hostfile("a slots=1\na slots=2\n").find("hosts:2: host 'a' is there twice"), std::string::npos);
  EXPECT_NE(error_of_hostfile("# none\n").find("no hosts in it"), std::string::npos);
}

TEST(Hosts, WordsReachAnotherHostAsTheyAre) {
  EXPECT_EQ(shell_line({"echo", "a b", "it's", "$HOME"}), R"('echo' 'a b' 'it'\''s' '$HOME')");
  EXPECT_TRUE(is_this_host("localhost"));
  EXPECT_TRUE(is_this_host("127.0.0.1"));
  EXPECT_FALSE(is_this_host("198.51.100.1"));
}

TEST(Hosts, CommandsRunOnAllAtOnceAndAreGivenUp) {
  // A remote shell that runs the command here, after it has said for whom.
  const testing::TemporaryFolder folder;
  const std::string shell = folder.file("shell");
  std::ofstream(shell) << "#!/bin/sh\necho for $1\n[ $1 != 198.51.100.2 ] || exec sleep 60\nshift\neval \"$@\"\n";
  ASSERT_EQ(std::system(("chmod +x " + shell).c_str()), 0);
  ::setenv("OMPI_MCA_plm_rsh_agent", ("/no/such/shell:" + shell).c_str(), 1);
  const auto answers =
      run_on_hosts({"198.51.100.1", "198.51.100.2", "localhost"}, {"sh", "-c", "echo it\\'s; echo error >&2; exit 3"},
                   std::chrono::milliseconds(1500));
  ::unsetenv("OMPI_MCA_plm_rsh_agent");
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_EQ(answers[0].out, "for 198.51.100.1\nit's\n");
  EXPECT_EQ(answers[0].error, "error\n");
  EXPECT_EQ(answers[0].exit_code, 3);
  EXPECT_TRUE(answers[0].in_time);
  EXPECT_FALSE(answers[1].in_time);
  EXPECT_EQ(answers[2].out, "it's\n");
}

TEST(Hosts, MessagesArriveWholeAndInOrder) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Channel one{comm::FileDescriptor(ends[0])};
  auto other = std::make_unique<Channel>(comm::FileDescriptor(ends[1]));
  const std::string large(3 << 20, 'x');  // more than a socket takes
  one.queue(MessageKind::kOut, large);
  one.queue(MessageKind::kAlive);
  EXPECT_GT(one.unsent(), 0U);
  std::optional<Message> first;
  for (int i = 0; i < 10'000 && !first; ++i) {
    one.flush();
    other->receive();
    first = other->next();
  }
  ASSERT_TRUE(first);
  EXPECT_EQ(first->body, large);
  one.flush();
  other->receive();
  EXPECT_EQ(other->next()->kind, MessageKind::kAlive);
  EXPECT_FALSE(other->next());
  other->queue(MessageKind::kLeave);
  other.reset();
  one.receive();
  EXPECT_TRUE(one.is_gone());
  EXPECT_EQ(one.next()->kind, MessageKind::kLeave);  // it was sent before
}

TEST(Hosts, StrangersWhoTalkNonsenseAreNotWaitedFor) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Channel channel{comm::FileDescriptor(ends[0])};
  ASSERT_EQ(::send(ends[1], "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
  channel.receive();
  EXPECT_FALSE(channel.next());
  EXPECT_TRUE(channel.is_gone());
  ::close(ends[1]);
}

TEST(Hosts, AnAgentWithoutALauncherSaysSo) {
  EXPECT_THROW(run_rank_of_host({"true"}), ConfigError);
  HostsOptions options;
  options.hosts = {{"localhost", 1}};
  EXPECT_THROW(launch_on_hosts(options), ConfigError);  // no program
}

}  // namespace
}  // namespace zero::launcher::hosts_test
