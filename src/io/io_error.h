#pragma once
// How a failed request or system call becomes an IoError.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace zero::io {

/// "cannot <verb> '<path>': <reason>", and what to do about it where it is known. `error` is an errno.
std::string io_error_text(std::string_view verb, std::string_view path, int error);

/// Throws IoError with that text.
[[noreturn]] void throw_io_error(std::string_view verb, std::string_view path, int error);
/// "cannot <verb> '<from>' to '<to>': ...".
[[noreturn]] void throw_io_error(std::string_view verb, std::string_view from, std::string_view to, int error);
/// For a read of [offset, offset + nbytes) of a file of `file_nbytes`.
[[noreturn]] void throw_file_ends(std::string_view path, std::uint64_t offset, std::size_t nbytes,
                                  std::uint64_t file_nbytes);

/// The first error of an open file. It stays, so that a file of which anything failed can never pass for
/// written: a second sync() of a file whose first one failed may report success for data that is lost.
/// Any thread.
class Failure {
 public:
  void set(std::string text);
  /// Throws the error, if there is one.
  void check() const;

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> failed_ = false;
  std::string text_;
};

}  // namespace zero::io
