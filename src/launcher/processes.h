#pragma once
// What launchers of one host and of several do alike: signals at a descriptor, pipes, ports, logs, their own lines.
#include <signal.h>

#include <string>
#include <utility>

#include "base/clock.h"
#include "comm/memory.h"

namespace zero::launcher {

/// timeout(1) and other wrappers signal a process and then its group: within this time it is one wish, not two.
inline constexpr std::int64_t kOneWishNs = 500 * base::kNanosPerMilli;

/// The signals of the job arrive at a descriptor; ranks start with the mask there was before.
class SignalReader {
 public:
  SignalReader();
  ~SignalReader();
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  int fd() const { return fd_.get(); }
  /// In a rank, before its program starts.
  void restore_for_exec() const;
  /// The next signal, 0 when there is none.
  int read() const;

 private:
  sigset_t old_mask_;
  struct sigaction old_child_action_ {
  }, old_pipe_action_{};
  comm::FileDescriptor fd_;
};

/// Unlike that of any other job. Local.
std::string new_job_id();

/// A TCP port that was free just now, for programs that meet at MASTER_PORT. Local.
int free_port();

/// A line of the launcher's own on standard error.
void write_line(const std::string& name, const std::string& text);

/// Both ends of a pipe, closed on exec. Throws IoError.
std::pair<comm::FileDescriptor, comm::FileDescriptor> make_pipe();

std::string log_path(const std::string& folder, int rank);
/// To append to, in a folder that is made where it is missing; empty where `folder` is. Throws IoError.
comm::FileDescriptor open_log(const std::string& folder, const std::string& path);
comm::FileDescriptor open_log(const std::string& folder, int rank);

}  // namespace zero::launcher
