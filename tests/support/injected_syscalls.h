#pragma once
// System calls of which one is interrupted, short or fails; and the file systems to try that with.
#include <fcntl.h>
#include <sys/file.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "io/posix_files.h"
#include "io/syscalls.h"
#include "io/uring_files.h"

namespace zero::io {

/// Sorts of calls, each with its own count. kLock: and the question for free space; both may be interrupted,
/// those of kName may not. kCompletion: what io_uring says of a request.
enum class Call { kOpen, kOpenDirect, kTransfer, kSync, kClose, kName, kLock, kCompletion };

/// The real calls, of which one does something else.
class InjectedSyscalls : public Syscalls {
 public:
  static constexpr int kShort = -1;

  /// Call number `index` of that sort fails with `error`, or does less than asked for.
  void inject(Call call, int index, int error) {
    call_ = call;
    index_ = index;
    error_ = error;
  }
  int count(Call call) const { return counts_[static_cast<int>(call)]; }
  bool happened() const { return happened_; }

  int open(const char* path, int flags, mode_t mode) override {
    if (hit(flags & O_DIRECT ? Call::kOpenDirect : Call::kOpen)) return fail();
    const int fd = Syscalls::open(path, flags, mode);
    const std::lock_guard lock(mutex_);
    if (flags & O_DIRECT) {
      direct_.insert(fd);
    } else {
      direct_.erase(fd);
    }
    return fd;
  }
  int close(int fd) override {
    const bool failing = hit(Call::kClose);
    const int result = Syscalls::close(fd);  // a failed close closes too
    return failing ? fail() : result;
  }
  ssize_t pread(int fd, void* data, std::size_t nbytes, off_t offset) override {
    note(fd, data, nbytes, offset);
    if (!hit(Call::kTransfer)) return Syscalls::pread(fd, data, nbytes, offset);
    return error_ == kShort ? Syscalls::pread(fd, data, less(fd, nbytes), offset) : fail();
  }
  ssize_t pwrite(int fd, const void* data, std::size_t nbytes, off_t offset) override {
    note(fd, data, nbytes, offset);
    if (!hit(Call::kTransfer)) return Syscalls::pwrite(fd, data, nbytes, offset);
    return error_ == kShort ? Syscalls::pwrite(fd, data, less(fd, nbytes), offset) : fail();
  }
  int completion(int result) override {
    if (!hit(Call::kCompletion) || result <= 0) return result;
    return error_ == kShort ? (result + 1) / 2 : -error_;
  }
  int allocate(int fd, off_t nbytes) override { return hit(Call::kSync) ? fail() : Syscalls::allocate(fd, nbytes); }
  int fsync(int fd) override { return hit(Call::kSync) ? fail() : Syscalls::fsync(fd); }
  int mkdir(const char* path, mode_t mode) override { return hit(Call::kName) ? fail() : Syscalls::mkdir(path, mode); }
  int rename(const char* from, const char* to) override {
    return hit(Call::kName) ? fail() : Syscalls::rename(from, to);
  }
  int exchange(const char* a, const char* b) override { return hit(Call::kName) ? fail() : Syscalls::exchange(a, b); }
  int remove(const char* path) override { return hit(Call::kName) ? fail() : Syscalls::remove(path); }
  int statvfs(const char* path, struct statvfs* status) override {
    return hit(Call::kLock) ? fail() : Syscalls::statvfs(path, status);
  }
  int flock(int fd, int operation) override {
    return operation != LOCK_UN && hit(Call::kLock) ? fail() : Syscalls::flock(fd, operation);
  }
  int list(const char* path, std::vector<std::string>& names) override {
    return hit(Call::kName) ? fail() : Syscalls::list(path, names);
  }

  // How bytes went.
  std::atomic<std::uint64_t> direct_nbytes = 0, cached_nbytes = 0;
  std::atomic<bool> misaligned_direct = false;

 private:
  bool hit(Call call) {
    const int index = counts_[static_cast<int>(call)]++;
    if (call != call_ || index != index_) return false;
    happened_ = true;
    return true;
  }
  int fail() {
    errno = error_;
    return -1;
  }
  bool is_direct(int fd) {
    const std::lock_guard lock(mutex_);
    return direct_.contains(fd);
  }
  std::size_t less(int fd, std::size_t nbytes) {
    return is_direct(fd) && nbytes > 512 ? (nbytes / 2 + 511) / 512 * 512 : (nbytes + 1) / 2;
  }
  void note(int fd, const void* data, std::size_t nbytes, off_t offset) {
    if (!is_direct(fd)) {
      cached_nbytes += nbytes;
      return;
    }
    direct_nbytes += nbytes;
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if ((address | nbytes | static_cast<std::uint64_t>(offset)) % 4096 != 0) misaligned_direct = true;
  }

  std::atomic<int> counts_[8] = {};
  Call call_ = Call::kOpen;
  int index_ = -1;
  int error_ = 0;
  std::atomic<bool> happened_ = false;
  std::mutex mutex_;
  std::set<int> direct_;
};

enum class Sort { kPosix, kPosixThreads, kUring };

inline std::unique_ptr<FileSystem> make_files(Sort sort, Syscalls& syscalls, bool direct = true) {
  PosixOptions options;
  options.syscalls = &syscalls;
  options.threads = sort == Sort::kPosix ? 0 : 3;
  options.direct = direct;
  if (sort == Sort::kUring) return make_uring_files(options);
  return std::make_unique<PosixFileSystem>(options);
}

inline std::string name_of(Sort sort) {
  return sort == Sort::kPosix ? "posix" : sort == Sort::kPosixThreads ? "posix_threads" : "uring";
}

}  // namespace zero::io
