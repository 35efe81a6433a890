#include "io/posix_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "io/io_error.h"
#include "io/posix_file.h"

namespace zero::io {
namespace {

/// flock(2). A forked child has the lock's descriptor too: it must not unlock what is its parent's.
class PosixLock : public Lock {
 public:
  PosixLock(Syscalls& syscalls, int fd) : syscalls_(syscalls), fd_(fd) {}
  ~PosixLock() override {
    if (::getpid() == process_) syscalls_.flock(fd_, LOCK_UN);
    syscalls_.close(fd_);
  }

 private:
  Syscalls& syscalls_;
  const int fd_;
  const pid_t process_ = ::getpid();
};

}  // namespace

PosixFileSystem::PosixFileSystem(const PosixOptions& options) : options_(options), syscalls_(*options.syscalls) {}

PosixFileSystem::~PosixFileSystem() {
  if (pool_process_ != ::getpid()) (void)pool_.release();  // its threads are not in this process
}

WorkerPool* PosixFileSystem::pool() {
  if (options_.threads <= 0) return nullptr;
  const std::lock_guard lock(mutex_);
  if (pool_process_ != ::getpid()) {
    (void)pool_.release();
    pool_ = std::make_unique<WorkerPool>(options_.threads);
    pool_process_ = ::getpid();
  }
  return pool_.get();
}

std::unique_ptr<File> PosixFileSystem::make_file(std::unique_ptr<Descriptors> descriptors,
                                                 const ScratchOptions& options) {
  return std::make_unique<PosixFile>(std::move(descriptors), pool(), options);
}

std::unique_ptr<File> PosixFileSystem::create(const std::string& path) {
  return make_file(std::make_unique<Descriptors>(syscalls_, path, Descriptors::Mode::kCreate, options_.direct),
                   kWholeRequests);
}

std::unique_ptr<File> PosixFileSystem::create_scratch(const std::string& folder, const ScratchOptions& options) {
  return make_file(std::make_unique<Descriptors>(syscalls_, folder, Descriptors::Mode::kScratch, options_.direct),
                   options);
}

std::unique_ptr<File> PosixFileSystem::open(const std::string& path) {
  return make_file(std::make_unique<Descriptors>(syscalls_, path, Descriptors::Mode::kOpen, options_.direct),
                   kWholeRequests);
}

void PosixFileSystem::make_folders(const std::string& path) { make_folder(path, false); }

void PosixFileSystem::make_folder(const std::string& path, bool is_parent) {
  int result = syscalls_.mkdir(path.c_str(), 0777);
  bool made = result == 0;
  if (result != 0 && errno == ENOENT && parent_of(path) != path) {
    make_folder(parent_of(path), true);
    result = syscalls_.mkdir(path.c_str(), 0777);
    made = true;  // by us, or by somebody else who has not synced it yet
  }
  const int error = result == 0 ? 0 : errno;
  if (error != 0 && (error != EEXIST || kind(path) != FileKind::kFolder)) {
    throw_io_error("make the folder", path, error);
  }
  if (made && is_parent) sync_folder(parent_of(path));
}

std::vector<std::string> PosixFileSystem::list(const std::string& path) {
  std::vector<std::string> names;
  if (syscalls_.list(path.c_str(), names) != 0) throw_io_error("list", path, errno);
  std::sort(names.begin(), names.end());
  return names;
}

FileKind PosixFileSystem::kind(const std::string& path) {
  struct stat status {};
  if (syscalls_.stat(path.c_str(), &status) == 0) {
    if (S_ISREG(status.st_mode)) return FileKind::kFile;
    return S_ISDIR(status.st_mode) ? FileKind::kFolder : FileKind::kOther;
  }
  if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) throw_io_error("look up", path, errno);
  // A link that leads nowhere is something too.
  return syscalls_.lstat(path.c_str(), &status) == 0 ? FileKind::kOther : FileKind::kNone;
}

void PosixFileSystem::rename(const std::string& from, const std::string& to) {
  if (syscalls_.rename(from.c_str(), to.c_str()) != 0) throw_io_error("rename", from, to, errno);
}

void PosixFileSystem::exchange(const std::string& a, const std::string& b) {
  if (syscalls_.exchange(a.c_str(), b.c_str()) != 0) throw_io_error("exchange", a, b, errno);
}

void PosixFileSystem::remove(const std::string& path) {
  if (syscalls_.remove(path.c_str()) != 0) throw_io_error("remove", path, errno);
}

void PosixFileSystem::sync_folder(const std::string& path) {
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  const int fd = retry_interrupted([&] { return syscalls_.open(path.c_str(), flags, 0); });
  if (fd < 0) throw_io_error("open the folder", path, errno);
  const int error = retry_interrupted([&] { return syscalls_.fsync(fd); }) == 0 ? 0 : errno;
  syscalls_.close(fd);
  // EINVAL: this file system does not sync folders; there is nothing more we could do.
  if (error != 0 && error != EINVAL) throw_io_error("sync the folder", path, error);
}

std::uint64_t PosixFileSystem::free_nbytes(const std::string& path) {
  struct statvfs status {};
  if (retry_interrupted([&] { return syscalls_.statvfs(path.c_str(), &status); }) != 0) {
    throw_io_error("ask for the free space of", path, errno);
  }
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

std::unique_ptr<Lock> PosixFileSystem::try_lock(const std::string& path) {
  for (;;) {
    const int flags = O_CREAT | O_RDWR | O_CLOEXEC;
    const int fd = retry_interrupted([&] { return syscalls_.open(path.c_str(), flags, 0666); });
    if (fd < 0) throw_io_error("open the lock", path, errno);
    const int error = retry_interrupted([&] { return syscalls_.flock(fd, LOCK_EX | LOCK_NB); }) == 0 ? 0 : errno;
    if (error != 0) {
      syscalls_.close(fd);
      if (error == EWOULDBLOCK) return nullptr;
      throw_io_error("lock", path, error);
    }
    auto lock = std::make_unique<PosixLock>(syscalls_, fd);
    // The file may have been removed before we had the lock; the name is what counts.
    struct stat ours {
    }, named{};
    if (syscalls_.fstat(fd, &ours) != 0) throw_io_error("lock", path, errno);
    const bool found = syscalls_.stat(path.c_str(), &named) == 0;
    if (!found && errno != ENOENT) throw_io_error("lock", path, errno);
    if (found && ours.st_dev == named.st_dev && ours.st_ino == named.st_ino) return lock;
  }
}

}  // namespace zero::io
