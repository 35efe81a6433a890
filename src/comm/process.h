#pragma once
// Is that process still there? Liveness of ranks on this host, by pid and start time.
#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

namespace zero::comm {

/// A process, safe against reuse of its pid. `start_time` is field 22 of /proc/<pid>/stat, in clock ticks.
struct ProcessId {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
};

enum class ProcessState : std::uint8_t {
  kRunning,  ///< running, sleeping, waiting for I/O, or looked at by a debugger
  kStopped,  ///< by SIGSTOP or a terminal
  kGone,     ///< exited, killed, a zombie, or the pid belongs to another process by now
};

/// Local.
std::string host_name();
/// Name and boot id of this host, which differ between hosts, and between two containers of one. Local.
std::string this_host();

/// The calling process. Local, thread-safe.
ProcessId this_process();

/// Start time of `pid`, 0 when it is not known. Local, thread-safe.
std::uint64_t start_time_of(pid_t pid);

/// Reads /proc; where that is not readable falls back to kill(pid, 0). Local, thread-safe, about 10 us.
ProcessState process_state(const ProcessId& process);

/// How many CPUs this process may run on (its affinity mask). Local.
int available_cpus();
/// CPUs that these processes of this host may run on, all together.
int available_cpus(std::span<const pid_t> processes);

}  // namespace zero::comm
