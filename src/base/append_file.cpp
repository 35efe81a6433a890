#include "base/append_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "zero/errors.h"

namespace zero::base {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* verb) {
  const int error = errno;
  throw IoError(fmt::format("{}: cannot {}: {}", path.string(), verb, std::generic_category().message(error)));
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (fd_ < 0) fail(path_, "write");
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd_, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail(path_, "write");
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

std::int64_t AppendFile::sync() {
  if (::fdatasync(fd_) != 0) fail(path_, "sync");
  const off_t end = ::lseek(fd_, 0, SEEK_END);
  if (end < 0) fail(path_, "find the end");
  return end;
}

void AppendFile::cut(std::int64_t nbytes) {
  if (const std::int64_t end = sync(); end < nbytes) {
    throw IoError(
        fmt::format("{}: it has {} bytes, {} were there when the checkpoint was written", path_.string(), end, nbytes));
  }
  if (::ftruncate(fd_, nbytes) != 0) fail(path_, "cut");
}

}  // namespace zero::base
