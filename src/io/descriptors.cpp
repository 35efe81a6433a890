#include "io/descriptors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>
#include <utility>

#include "io/file_system.h"
#include "io/io_error.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::io {
namespace {

std::string_view kind_name(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

std::string scratch_name(const std::string& folder) {
  static std::atomic<unsigned> number{0};
  return join(folder, fmt::format(".zerotorch-scratch-{}-{}", ::getpid(), number++));
}

}  // namespace

Descriptors::Descriptors(Syscalls& syscalls, const std::string& path, Mode mode, bool direct)
    : syscalls_(syscalls), path_(mode == Mode::kScratch ? scratch_name(path) : path), mode_(mode) {
  if (mode == Mode::kScratch) {
    cached_ = open_scratch(path);
  } else {
    // O_NONBLOCK: opening a FIFO would wait for somebody to write to it.
    const int flags = (writable() ? O_CREAT | O_EXCL | O_RDWR : O_RDONLY | O_NONBLOCK) | O_CLOEXEC;
    cached_ = retry_interrupted([&] { return syscalls_.open(path_.c_str(), flags, 0666); });
  }
  if (cached_ < 0) throw_io_error(writable() ? "create" : "open", path_, errno);
  struct stat status {};
  if (syscalls_.fstat(cached_, &status) == 0 && !S_ISREG(status.st_mode)) {
    close_all();
    if (S_ISDIR(status.st_mode)) throw_io_error("open", path_, EISDIR);
    throw IoError(fmt::format("cannot open '{}': it is {}, wanted a regular file", path_, kind_name(status.st_mode)));
  }
  if (!writable()) ::fcntl(cached_, F_SETFL, 0);  // io_uring takes O_NONBLOCK for more than opening
  if (direct) open_direct();
}

Descriptors::~Descriptors() { close_all(); }

int Descriptors::open_scratch(const std::string& folder) {
  const auto open = [&](const std::string& path, int flags) {
    return retry_interrupted([&] { return syscalls_.open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600); });
  };
  const int nameless = open(folder, O_TMPFILE);
  // What file systems and kernels that have no such files say.
  if (nameless >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return nameless;
  const int named = open(path_, O_CREAT | O_EXCL);
  if (named >= 0) syscalls_.remove(path_.c_str());
  return named;
}

void Descriptors::open_direct() {
  const int flags = (writable() ? O_RDWR : O_RDONLY | O_NONBLOCK) | O_DIRECT | O_CLOEXEC;
  const std::string path = mode_ == Mode::kScratch ? fmt::format("/proc/self/fd/{}", cached_) : path_;
  direct_ = retry_interrupted([&] { return syscalls_.open(path.c_str(), flags, 0); });
  if (direct_ < 0) return;
  // Somebody may have put another file under the name in between.
  struct stat one {
  }, other{};
  if (syscalls_.fstat(cached_, &one) != 0 || syscalls_.fstat(direct_, &other) != 0) return;
  direct_usable_ = one.st_dev == other.st_dev && one.st_ino == other.st_ino;
  if (!writable()) ::fcntl(direct_, F_SETFL, O_DIRECT);
}

void Descriptors::reserve(std::uint64_t nbytes) {
  const int result = retry_interrupted([&] { return syscalls_.allocate(cached_, static_cast<off_t>(nbytes)); });
  if (result == 0 || errno == EOPNOTSUPP) return;
  throw_io_error(fmt::format("reserve {} on the disk of", human_nbytes(static_cast<std::int64_t>(nbytes))), path_,
                 errno);
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
