#include "io/syscalls.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

namespace zero::io {

int Syscalls::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
int Syscalls::close(int fd) { return ::close(fd); }
ssize_t Syscalls::pread(int fd, void* data, std::size_t nbytes, off_t offset) {
  return ::pread(fd, data, nbytes, offset);
}
ssize_t Syscalls::pwrite(int fd, const void* data, std::size_t nbytes, off_t offset) {
  return ::pwrite(fd, data, nbytes, offset);
}
int Syscalls::fsync(int fd) { return ::fsync(fd); }
int Syscalls::allocate(int fd, off_t nbytes) { return ::fallocate(fd, 0, 0, nbytes); }
int Syscalls::fstat(int fd, struct stat* status) { return ::fstat(fd, status); }
int Syscalls::stat(const char* path, struct stat* status) { return ::stat(path, status); }
int Syscalls::lstat(const char* path, struct stat* status) { return ::lstat(path, status); }
int Syscalls::mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }
int Syscalls::rename(const char* from, const char* to) { return ::rename(from, to); }
int Syscalls::exchange(const char* a, const char* b) { return ::renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE); }
int Syscalls::remove(const char* path) { return std::remove(path); }
int Syscalls::statvfs(const char* path, struct statvfs* status) { return ::statvfs(path, status); }
int Syscalls::flock(int fd, int operation) { return ::flock(fd, operation); }

int Syscalls::list(const char* path, std::vector<std::string>& names) {
  DIR* folder = ::opendir(path);
  if (folder == nullptr) return -1;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(folder);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  const int error = errno;
  ::closedir(folder);
  errno = error;
  return error == 0 ? 0 : -1;
}

int Syscalls::completion(int result) { return result; }

Syscalls& real_syscalls() {
  static Syscalls real;
  return real;
}

}  // namespace zero::io
