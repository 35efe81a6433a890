#include "io/io_error.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "zero/errors.h"

namespace zero::io {
namespace {

std::string_view advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return ". Free some space or choose a folder on another disk";
    case EROFS:
      return ". Choose a folder that can be written";
    case EACCES:
    case EPERM:
      return ". Check who owns it, or choose another folder";
    case EMFILE:
      return ". Raise the limit of open files (ulimit -n)";
    case EIO:
      return ". The disk or its connection failed (see the kernel's log); what was written may be lost";
    default:
      return "";
  }
}

std::string reason(int error) { return std::generic_category().message(error) + std::string(advice(error)); }

}  // namespace

std::string io_error_text(std::string_view verb, std::string_view path, int error) {
  return fmt::format("cannot {} '{}': {}", verb, path, reason(error));
}

void throw_io_error(std::string_view verb, std::string_view path, int error) {
  throw IoError(io_error_text(verb, path, error));
}

void throw_io_error(std::string_view verb, std::string_view from, std::string_view to, int error) {
  throw IoError(fmt::format("cannot {} '{}' to '{}': {}", verb, from, to, reason(error)));
}

void throw_file_ends(std::string_view path, std::uint64_t offset, std::size_t nbytes, std::uint64_t file_nbytes) {
  throw IoError(fmt::format("cannot read '{}': it ends at byte {}, wanted {} bytes at offset {}", path, file_nbytes,
                            nbytes, offset));
}

void Failure::set(std::string text) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  text_ = std::move(text);
  failed_.store(true, std::memory_order_release);
}

void Failure::check() const {
  if (failed_.load(std::memory_order_acquire)) throw IoError(text_);
}

}  // namespace zero::io
