// How the ranks of a host find each other's control segment: a name in /dev/shm that lives only
// until all have attached.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "comm/interrupt.h"
#include "comm/shm/segment.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

constexpr std::uint64_t kMagic = 0x7a65726f'73686d32;  // "zeroshm2": raise with the layout
constexpr std::int64_t kPollNs = 2 * base::kNanosPerMilli;
constexpr std::int64_t kNoticeS = 5;         ///< after which a rank that waits for others says so
constexpr std::int64_t kCreationGraceS = 5;  ///< a segment without magic that is older was left by a dead creator

/// Process ids of containers that share /dev/shm mean something only within this; 0: not known.
std::uint64_t own_pid_namespace() {
  struct stat stats {};
  return ::stat("/proc/self/ns/pid", &stats) == 0 ? stats.st_ino : 0;
}

void write_header(ControlSegment& segment, int ranks) {
  SegmentHeader& head = segment.header();
  const ProcessId self = this_process();
  head.nbytes = ControlSegment::nbytes_of(ranks);
  head.ranks = ranks;
  head.creator_pid = self.pid;
  head.creator_start_time = self.start_time;
  head.creator_pid_namespace = own_pid_namespace();
  head.magic.store(kMagic, std::memory_order_release);
}

/// Removes the name when the creator leaves by any way.
class NameGuard {
 public:
  explicit NameGuard(std::string name) : name_(std::move(name)) {}
  ~NameGuard() { remove(); }
  NameGuard(const NameGuard&) = delete;
  NameGuard& operator=(const NameGuard&) = delete;
  void remove() {
    if (!name_.empty()) ::shm_unlink(name_.c_str());
    name_.clear();
  }
  void release() { name_.clear(); }

 private:
  std::string name_;
};

void reserve(const FileDescriptor& fd, const std::string& name, std::size_t nbytes) {
  const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(nbytes));
  if (error == 0) return;
  struct statvfs stats {};
  std::uint64_t free_nbytes = 0;
  if (::statvfs("/dev/shm", &stats) == 0) free_nbytes = static_cast<std::uint64_t>(stats.f_bavail) * stats.f_frsize;
  throw IoError(
      fmt::format("creating the control segment /dev/shm{} failed: {}. Wanted {} bytes, {} are free in "
                  "/dev/shm. Remove what fills "
                  "/dev/shm or enlarge it (mount -o remount,size=1g /dev/shm; docker run --shm-size=1g).",
                  name, std::strerror(error), nbytes, free_nbytes));
}

enum class Existing { kAlive, kStale, kUnfinished };

Existing judge(const FileDescriptor& fd, ControlSegment* segment) {
  struct stat stats {};
  if (!segment || segment->header().magic.load(std::memory_order_acquire) != kMagic) {
    if (::fstat(fd.get(), &stats) != 0) return Existing::kStale;
    return ::time(nullptr) - stats.st_mtime > kCreationGraceS ? Existing::kStale : Existing::kUnfinished;
  }
  const SegmentHeader& head = segment->header();
  if (head.creator_pid_namespace != own_pid_namespace()) return Existing::kAlive;  // as far as can be told from here
  return process_state({head.creator_pid, head.creator_start_time}) == ProcessState::kGone ? Existing::kStale
                                                                                           : Existing::kAlive;
}

/// Null while the file is not yet large enough to hold a header.
std::shared_ptr<ControlSegment> map_existing(const FileDescriptor& fd) {
  struct stat stats {};
  if (::fstat(fd.get(), &stats) != 0 || static_cast<std::size_t>(stats.st_size) < ControlSegment::nbytes_of(1))
    return nullptr;
  return std::make_shared<ControlSegment>(Mapping(fd.get(), static_cast<std::size_t>(stats.st_size)));
}

FileDescriptor create_or_take_over(const std::string& name, std::int64_t deadline_ns) {
  // Long enough to tell a creator at work from one that died before it could say who it is.
  deadline_ns = std::min(deadline_ns, base::monotonic_ns() + (kCreationGraceS + 1) * base::kNanosPerSecond);
  while (true) {
    FileDescriptor fd(::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    if (fd) return fd;
    if (errno != EEXIST) {
      throw IoError(fmt::format("creating the control segment /dev/shm{} failed: {}. Is /dev/shm mounted and writable?",
                                name, std::strerror(errno)));
    }
    FileDescriptor existing(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
    if (!existing && errno == ENOENT) continue;
    const auto segment = existing ? map_existing(existing) : nullptr;
    const Existing state = existing ? judge(existing, segment.get()) : Existing::kUnfinished;
    if (state == Existing::kStale) {
      base::log_info("taking over /dev/shm{}, left behind by a job that died", name);
      ::shm_unlink(name.c_str());
      continue;
    }
    if (base::monotonic_ns() > deadline_ns) {
      throw ConfigError(
          fmt::format("the job id is in use: /dev/shm{} belongs to the running process {}. Give every job "
                      "its own ZERO_JOB_ID.",
                      name, segment ? segment->header().creator_pid : 0));
    }
    check_interrupt();
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPollNs));
  }
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::vector<int> absent_ranks(const ControlSegment& segment) {
  std::vector<int> absent;
  for (int r = 0; r < segment.ranks(); ++r) {
    if (segment.block(r).state.load(std::memory_order_acquire) == RankState::kAbsent) absent.push_back(r);
  }
  return absent;
}

/// Waits for `done`; looks after the attached ranks meanwhile. Fails the segment and throws CommError.
void wait_for(ControlSegment& segment, int rank, std::int64_t deadline_ns, std::chrono::milliseconds timeout,
              const std::function<bool()>& done) {
  std::int64_t next_check_ns = base::monotonic_ns() + 100 * base::kNanosPerMilli;
  std::int64_t notice_ns = base::monotonic_ns() + kNoticeS * base::kNanosPerSecond;
  while (!done()) {
    const std::int64_t now_ns = base::monotonic_ns();
    std::string problem;
    if (segment.failed()) throw CommError("rendezvous failed: " + segment.reason());
    if (now_ns > deadline_ns) {
      const std::vector<int> absent = absent_ranks(segment);
      problem = fmt::format(
          "{} of {} did not arrive within {:.1f} s. Was every rank started, with the same job id, world "
          "size and user, on this host?",
          absent.empty() ? "rank 0" : ranks_text(absent), segment.ranks(), static_cast<double>(timeout.count()) / 1e3);
    } else if (now_ns > next_check_ns) {
      next_check_ns = now_ns + 100 * base::kNanosPerMilli;
      for (int r = 0; r < segment.ranks(); ++r) {
        if (segment.block(r).state.load(std::memory_order_acquire) == RankState::kPresent &&
            process_state(segment.process_of(r)) == ProcessState::kGone) {
          problem = fmt::format("rank {} (pid {}) died. See its own output.", r, segment.process_of(r).pid);
        }
      }
      check_interrupt();
    }
    if (rank == 0 && now_ns > notice_ns) {
      notice_ns = deadline_ns;
      base::log_warning(
          "waiting for {} of the {} that the environment (ZERO_WORLD_SIZE, WORLD_SIZE and the like) says there are, "
          "until {:.0f} s are over",
          ranks_text(absent_ranks(segment)), segment.ranks(), static_cast<double>(timeout.count()) / 1e3);
    }
    if (!problem.empty()) {
      segment.fail(rank, problem);
      throw CommError("rendezvous failed: " + segment.reason());
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPollNs / 4));
  }
}

/// The caller removes the name.
std::shared_ptr<ControlSegment> create(const std::string& name, int ranks, std::int64_t deadline_ns) {
  const FileDescriptor fd = create_or_take_over(name, deadline_ns);
  NameGuard guard(name);
  const std::size_t nbytes = ControlSegment::nbytes_of(ranks);
  reserve(fd, name, nbytes);
  auto segment = std::make_shared<ControlSegment>(Mapping(fd.get(), nbytes));
  write_header(*segment, ranks);
  guard.release();
  return segment;
}

std::shared_ptr<ControlSegment> create_and_gather(const std::string& name, int ranks, std::chrono::milliseconds timeout,
                                                  std::int64_t deadline_ns) {
  ControlSegment::remove_left_behind();
  auto segment = create(name, ranks, deadline_ns);
  NameGuard guard(name);
  segment->attach(0);
  wait_for(*segment, 0, deadline_ns, timeout, [&] { return absent_ranks(*segment).empty(); });
  guard.remove();
  segment->header().complete.store(1, std::memory_order_release);
  return segment;
}

/// The segment of this job, or null when there is none yet (or only one of a dead job).
std::shared_ptr<ControlSegment> find_segment(const std::string& name) {
  const FileDescriptor fd(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (!fd) return nullptr;
  auto segment = map_existing(fd);
  return judge(fd, segment.get()) == Existing::kAlive ? segment : nullptr;
}

std::shared_ptr<ControlSegment> find_and_attach(const std::string& name, int rank, int ranks,
                                                std::chrono::milliseconds timeout, std::int64_t deadline_ns) {
  std::shared_ptr<ControlSegment> segment;
  while (!(segment = find_segment(name))) {
    if (base::monotonic_ns() > deadline_ns) {
      throw CommError(
          fmt::format("rendezvous failed: rank 0 did not arrive within {:.1f} s (no /dev/shm{}). Was rank 0 "
                      "started, with the same "
                      "job id and user, on this host? See its own output.",
                      static_cast<double>(timeout.count()) / 1e3, name));
    }
    check_interrupt();
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPollNs));
  }
  if (segment->failed()) throw CommError("rendezvous failed: " + segment->reason());
  if (segment->header().nbytes != ControlSegment::nbytes_of(ranks) || segment->ranks() != ranks) {
    throw ConfigError(
        fmt::format("rank {} wants a group of {} ranks, rank 0 (pid {}) has made one of {}. The world size "
                    "must be the same "
                    "everywhere, and every job needs its own ZERO_JOB_ID and the same build of the library.",
                    rank, ranks, segment->header().creator_pid, segment->ranks()));
  }
  segment->attach(rank);
  wait_for(*segment, rank, deadline_ns, timeout,
           [&] { return segment->header().complete.load(std::memory_order_acquire) == 1; });
  return segment;
}

}  // namespace

void ControlSegment::remove_left_behind() noexcept {
  DIR* const folder = ::opendir("/dev/shm");
  if (!folder) return;
  const std::string prefix = fmt::format("zerotorch-{}-", ::getuid());
  while (const dirent* entry = ::readdir(folder)) {
    if (!std::string_view(entry->d_name).starts_with(prefix)) continue;
    const std::string name = fmt::format("/{}", entry->d_name);
    const FileDescriptor fd(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
    try {
      if (fd && judge(fd, map_existing(fd).get()) == Existing::kStale) ::shm_unlink(name.c_str());
    } catch (const std::exception&) {  // cannot be mapped: another's business
    }
  }
  ::closedir(folder);
}

std::string ControlSegment::name_of(const std::string& job_id) {
  constexpr std::size_t kMaxLength = 120;
  std::string id;
  bool changed = job_id.size() > kMaxLength;
  for (const char c : job_id.substr(0, kMaxLength)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
    id += plain ? c : '_';
    changed |= !plain;
  }
  if (changed) id += fmt::format("-{:016x}", std::hash<std::string>{}(job_id));
  return fmt::format("/zerotorch-{}-{}", ::getuid(), id);
}

std::size_t ControlSegment::nbytes_of(int ranks) {
  return round_up(sizeof(SegmentHeader), kPageBytes) +
         round_up(sizeof(RankBlock) * static_cast<std::size_t>(ranks), kPageBytes);
}

std::shared_ptr<ControlSegment> ControlSegment::over(const FileDescriptor& memory, int ranks, bool creator) {
  auto segment = std::make_shared<ControlSegment>(Mapping(memory.get(), nbytes_of(ranks)));
  if (creator) {
    write_header(*segment, ranks);
    segment->header().complete.store(1, std::memory_order_release);
  }
  return segment;
}

std::shared_ptr<ControlSegment> ControlSegment::create_anonymous(int ranks) {
  return over(create_memfd(nbytes_of(ranks), "control segment"), ranks, true);
}

bool ControlSegment::say_ended(const std::string& job_id, int rank, int ranks) noexcept {
  const std::string name = name_of(job_id);
  try {
    auto segment = find_segment(name);
    // Rank 0 would have made it: nobody else does, and whoever looks for it has to find why it is not to be had.
    if (!segment && rank == 0) segment = create(name, ranks, base::monotonic_ns());
    if (!segment || rank >= segment->ranks()) return false;
    if (segment->block(rank).state.load(std::memory_order_acquire) != RankState::kAbsent) return false;
    segment->fail(rank, fmt::format("rank {} exited with code 0 before it joined the group", rank));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::shared_ptr<ControlSegment> ControlSegment::rendezvous(const std::string& job_id, int rank, int ranks,
                                                           std::chrono::milliseconds timeout) {
  const std::string name = name_of(job_id);
  const std::int64_t deadline_ns = base::monotonic_ns() + timeout.count() * base::kNanosPerMilli;
  return rank == 0 ? create_and_gather(name, ranks, timeout, deadline_ns)
                   : find_and_attach(name, rank, ranks, timeout, deadline_ns);
}

}  // namespace zero::comm
