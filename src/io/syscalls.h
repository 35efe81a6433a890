#pragma once
// The system calls of this room, behind a class so that tests make them fail.
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

namespace zero::io {

/// Each does what the call of that name does and reports errors the same way: a negative result and errno.
/// Any thread. The base class is the real thing.
class Syscalls {
 public:
  virtual ~Syscalls() = default;
  virtual int open(const char* path, int flags, mode_t mode);
  virtual int close(int fd);
  virtual ssize_t pread(int fd, void* data, std::size_t nbytes, off_t offset);
  virtual ssize_t pwrite(int fd, const void* data, std::size_t nbytes, off_t offset);
  virtual int fsync(int fd);
  /// fallocate() of [0, nbytes).
  virtual int allocate(int fd, off_t nbytes);
  virtual int fstat(int fd, struct stat* status);
  virtual int stat(const char* path, struct stat* status);
  virtual int lstat(const char* path, struct stat* status);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rename(const char* from, const char* to);
  /// renameat2() with RENAME_EXCHANGE.
  virtual int exchange(const char* a, const char* b);
  /// A file or an empty folder.
  virtual int remove(const char* path);
  virtual int statvfs(const char* path, struct statvfs* status);
  virtual int flock(int fd, int operation);
  /// Names in a folder, in any order, without "." and "..".
  virtual int list(const char* path, std::vector<std::string>& names);
  /// What io_uring says became of a request: bytes, or a negative errno. Tests return less, or an error.
  virtual int completion(int result);
};

Syscalls& real_syscalls();

/// `call()` until it is not interrupted.
template <class Call>
auto retry_interrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

}  // namespace zero::io
