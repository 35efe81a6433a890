#pragma once
// One start of a job on several hosts: mpirun as a child, and the agents of its ranks.
#include <sys/resource.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/sockets.h"
#include "launcher/channel.h"
#include "launcher/event_log.h"
#include "launcher/line_forwarder.h"
#include "launcher/processes.h"
#include "zero/hosts.h"

namespace zero::launcher {

/// Sends signs of life to all agents while the launcher itself may wait for who reads its output.
class Heartbeat {
 public:
  Heartbeat();
  ~Heartbeat();
  void add(std::shared_ptr<Channel> channel);

 private:
  void run();
  std::mutex mutex_;
  std::vector<std::shared_ptr<Channel>> channels_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

class HostsJob {
 public:
  /// `hosts`: those that take part. `restarts`: how often the job was started before.
  HostsJob(const HostsOptions& options, std::vector<HostSlots> hosts, int restarts, EventLog& events);
  ~HostsJob();
  /// Runs it to its end and says what happened. Returns the exit code.
  int run();
  /// True once it has failed of itself.
  bool may_start_again() const { return failure_ && stop_signal_ == 0 && !unread_; }

 private:
  struct Rank {
    std::shared_ptr<Channel> channel;  ///< empty: its agent has not come yet
    std::string host;
    int local_size = 0, port = 0;
    pid_t pid = 0;
    LineForwarder out, error;
    comm::FileDescriptor log;
    bool ended = false, lost = false, frozen = false;
    std::int64_t heard_ns = 0, stopped_since_ns = 0;
  };
  struct Failure {
    int rank = -1;     ///< -1: of no rank
    std::string text;  ///< what happened, without when
    int exit_code = 1;
    bool lost_host = false;
    std::int64_t at_ns = 0;
  };

  std::vector<std::string> mpirun_command() const;
  void start_mpirun(const SignalReader& signals);
  void poll_once(const SignalReader& signals);
  void accept_agents();
  bool take_in(std::shared_ptr<Channel>& stranger);
  void start_ranks();
  void read_rank(int number);
  void take_status(int number, const std::string& body);
  void forward_mpirun();
  void reap_mpirun();
  void handle_signal(int signal);
  void pause();
  void look_for_lost();
  void look_for_stopped();
  void look_for_late_start();
  void escalate();
  void leave();
  void lose(int number, const std::string& why, bool frozen);
  void fail(Failure failure);
  void signal_all(int signal);
  void tell_all(MessageKind kind, std::string_view body = {});
  bool all_have_ended() const;
  std::string describe_lost() const;
  int report();
  void say(const std::string& text) const;
  double seconds_since_start(std::int64_t at_ns) const;

  const HostsOptions& options_;
  const std::vector<HostSlots> hosts_;
  const int restarts_;
  EventLog& events_;
  const std::string job_id_ = new_job_id(), agent_secret_ = new_job_id(), launcher_secret_ = new_job_id();
  const std::int64_t start_ns_ = base::monotonic_ns();
  const std::int64_t host_limit_ns_;
  std::pair<comm::FileDescriptor, int> listener_ = comm::listen_anywhere();
  std::vector<std::shared_ptr<Channel>> strangers_;
  std::vector<Rank> ranks_;
  rlimit files_before_{};
  pid_t mpirun_ = 0;  ///< 0: it has ended
  int mpirun_status_ = 0;
  comm::FileDescriptor mpirun_out_, mpirun_error_;
  bool started_ = false;  ///< all agents have come
  std::optional<Failure> failure_;
  std::int64_t ending_since_ns_ = 0, terminated_at_ns_ = 0, left_at_ns_ = 0, interrupted_ns_ = 0;
  int stop_signal_ = 0, interrupts_ = 0, ended_by_ = 0;
  bool killed_ = false, unread_ = false, mpirun_terminated_ = false, ended_by_mpirun_ = false;
  Heartbeat heartbeat_;
};

}  // namespace zero::launcher
