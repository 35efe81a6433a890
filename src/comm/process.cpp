#include "comm/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace zero::comm {
namespace {

struct Stat {
  char state = 0;
  std::uint64_t start_time = 0;
};

/// False when there is no such process or /proc cannot be read (errno tells).
bool read_stat(pid_t pid, Stat& stat) {
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", static_cast<int>(pid));
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[1024];
  const ssize_t got = ::read(fd, text, sizeof(text) - 1);
  const int saved = errno;
  ::close(fd);
  errno = saved;
  if (got <= 0) return false;
  text[got] = '\0';
  // The command name, field 2, may hold blanks and parentheses: fields are counted after the last ')'.
  const char* field = std::strrchr(text, ')');
  if (!field || field[1] != ' ') return false;
  field += 2;
  stat.state = *field;
  for (int index = 3; index < 22 && field; ++index) {
    field = std::strchr(field, ' ');
    if (field) ++field;
  }
  if (field) stat.start_time = std::strtoull(field, nullptr, 10);
  return true;
}

}  // namespace

std::uint64_t start_time_of(pid_t pid) {
  Stat stat;
  return read_stat(pid, stat) ? stat.start_time : 0;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string this_host() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return host_name() + " " + boot_id;
}

ProcessId this_process() { return {::getpid(), start_time_of(::getpid())}; }

ProcessState process_state(const ProcessId& process) {
  Stat stat;
  if (!read_stat(process.pid, stat)) {
    const bool exists = ::kill(process.pid, 0) == 0 || errno == EPERM;
    return exists ? ProcessState::kRunning : ProcessState::kGone;
  }
  if (stat.state == 'Z' || stat.state == 'X' || stat.state == 'x') return ProcessState::kGone;
  if (process.start_time != 0 && stat.start_time != process.start_time) return ProcessState::kGone;
  return stat.state == 'T' ? ProcessState::kStopped : ProcessState::kRunning;  // 't': a debugger has it
}

int available_cpus() {
  const pid_t mine = 0;
  return available_cpus({&mine, 1});
}

int available_cpus(std::span<const pid_t> processes) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const pid_t pid : processes) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(pid, sizeof(set), &set) == 0) CPU_OR(&all, &all, &set);
  }
  const int count = CPU_COUNT(&all);
  return count > 0 ? count : 1;
}

}  // namespace zero::comm
