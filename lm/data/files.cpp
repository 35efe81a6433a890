#include "data/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "zero/errors.h"

namespace zero::data {
namespace {

constexpr std::size_t kBufferNbytes = std::size_t{1} << 20;

}  // namespace

void throw_errno(const std::filesystem::path& path, std::string_view what) {
  const int error = errno;
  std::string message = fmt::format("{}: {}: {}", path.string(), what, std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) {
    std::error_code ignored;
    const auto space = std::filesystem::space(path.parent_path(), ignored);
    message += fmt::format(" ({} bytes free); free some space or choose another folder",
                           ignored ? std::uintmax_t{0} : space.available);
  }
  throw IoError(message);
}

FileWriter::FileWriter(const std::filesystem::path& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_errno(path_, "cannot create");
  buffer_.reserve(kBufferNbytes);
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::append(std::string_view bytes) {
  nbytes_ += static_cast<std::int64_t>(bytes.size());
  buffer_.append(bytes);
  if (buffer_.size() >= kBufferNbytes) {
    write_all(buffer_);
    buffer_.clear();
  }
}

void FileWriter::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(path_, "cannot write");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void FileWriter::finish() {
  write_all(buffer_);
  buffer_.clear();
  if (::fsync(fd_) != 0) throw_errno(path_, "cannot sync");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) throw_errno(path_, "cannot close");
}

TemporaryFolder::TemporaryFolder(const std::filesystem::path& target) {
  std::string pattern = target.string() + ".tmp-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw_errno(target, "cannot create a temporary folder beside it");
  path_ = pattern;
  ::chmod(path_.c_str(), 0755);  // mkdtemp makes it private
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

void TemporaryFolder::replace(const std::filesystem::path& target) {
  sync_folder(path_);
  if (::rename(path_.c_str(), target.c_str()) == 0) {
    path_.clear();
  } else if (errno == ENOTEMPTY || errno == EEXIST) {
    // Swap the two names in one step; the old contents are then under ours and go with it. Readers that
    // have the old files mapped keep them.
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
      throw_errno(target, "cannot replace; remove it and try again");
    }
  } else {
    throw_errno(target, "cannot rename the finished folder");
  }
  sync_folder(target.parent_path());
}

FileReader::FileReader(const std::filesystem::path& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {}

FileReader::~FileReader() {
  if (fd_ >= 0) ::close(fd_);
}

bool FileReader::read(std::int64_t offset, std::int64_t nbytes, std::string& contents) const {
  contents.clear();
  struct stat status {};
  if (fd_ < 0 || ::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  contents.resize(static_cast<std::size_t>(nbytes));
  std::size_t done = 0;
  while (done < contents.size()) {
    const ssize_t got = ::pread(fd_, contents.data() + done, contents.size() - done, offset + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;  // an error, or shorter than it was
    done += static_cast<std::size_t>(got);
  }
  return true;
}

bool read_file(const std::filesystem::path& path, std::string& contents) {
  std::error_code error;
  const auto nbytes = std::filesystem::file_size(path, error);
  return !error && FileReader(path).read(0, static_cast<std::int64_t>(nbytes), contents);
}

void sync_folder(const std::filesystem::path& path) {
  const int fd = ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_errno(path, "cannot open the folder");
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some file systems cannot sync folders; what is in them is synced already.
  if (error != 0 && error != EINVAL) {
    errno = error;
    throw_errno(path, "cannot sync the folder");
  }
}

FileHash::FileHash() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_128bits_reset(state_.get()); }

void FileHash::add(std::string_view bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }

std::string FileHash::text() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(state_.get());
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

}  // namespace zero::data
