#include "io/descriptors.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "io/io_error.h"

namespace zero::io {

Descriptors::Descriptors(Syscalls& syscalls, const std::string& path, Mode mode, bool direct)
    : syscalls_(syscalls), path_(path), mode_(mode) {
  const int flags = (writable() ? O_CREAT | O_EXCL | O_RDWR : O_RDONLY) | O_CLOEXEC;
  cached_ = retry_interrupted([&] { return syscalls_.open(path_.c_str(), flags, 0666); });
  if (cached_ < 0) throw_io_error(writable() ? "create" : "open", path_, errno);
  struct stat status {};
  if (syscalls_.fstat(cached_, &status) == 0 && S_ISDIR(status.st_mode)) {
    close_all();
    throw_io_error("open", path_, EISDIR);
  }
  if (direct) open_direct();
}

Descriptors::~Descriptors() { close_all(); }

void Descriptors::open_direct() {
  const int flags = (writable() ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC;
  direct_ = retry_interrupted([&] { return syscalls_.open(path_.c_str(), flags, 0); });
  if (direct_ < 0) return;
  // Somebody may have put another file under the name in between.
  struct stat one {
  }, other{};
  if (syscalls_.fstat(cached_, &one) != 0 || syscalls_.fstat(direct_, &other) != 0) return;
  direct_usable_ = one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

void Descriptors::sync() {
  if (retry_interrupted([&] { return syscalls_.fsync(cached_); }) != 0) throw_io_error("sync", path_, errno);
}

int Descriptors::close_all() noexcept {
  int error = 0;
  for (int* fd : {&direct_, &cached_}) {
    if (*fd < 0) continue;
    // An interrupted close has closed; a second one could hit somebody else's file.
    if (syscalls_.close(std::exchange(*fd, -1)) != 0 && errno != EINTR && error == 0) error = errno;
  }
  direct_usable_ = false;
  return error;
}

void Descriptors::close() {
  const int error = close_all();
  if (error != 0) throw_io_error("close", path_, error);
}

std::uint64_t Descriptors::size() const {
  struct stat status {};
  if (syscalls_.fstat(cached_, &status) != 0) throw_io_error("look up", path_, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace zero::io
