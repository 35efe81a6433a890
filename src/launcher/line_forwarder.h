#pragma once
// Copies a rank's output, line by line and with a prefix. A line ends with a newline or, as a progress bar's do, with a
// carriage return, which is copied.
#include <string>
#include <string_view>

#include "comm/memory.h"

namespace zero::launcher {

class LineForwarder {
 public:
  LineForwarder() = default;
  /// Reads from `source`, writes to descriptor `target`; without the prefix also to `log`, -1: nowhere else.
  LineForwarder(comm::FileDescriptor source, int target, std::string prefix, int log = -1);

  /// One without a source: what it copies is given to take().
  LineForwarder(int target, std::string prefix, int log = -1);

  /// Descriptor to poll, -1 at the end of the input.
  int fd() const { return source_.get(); }
  /// Copies the lines that are there. Never blocks on the input. Local.
  void forward();
  /// Copies the lines that `text` completes, and keeps what it begins. Local.
  void take(std::string_view text);
  /// Copies what is left, with a newline when the last line has none. Local.
  void finish();
  /// Nobody reads what is written any more.
  bool is_unread() const { return unread_; }
  /// What became of the first write that failed otherwise, as errno says it; 0: none did.
  int write_error() const { return write_error_; }
  /// The same of the log.
  int log_error() const { return log_error_; }

 private:
  /// Writes the lines that are complete.
  void write_lines();

  comm::FileDescriptor source_;
  int target_ = -1, log_ = -1;
  std::string prefix_;
  std::string pending_;       ///< read, not yet written
  std::size_t searched_ = 0;  ///< of it, up to where no line ends
  bool unread_ = false;
  int write_error_ = 0, log_error_ = 0;
};

}  // namespace zero::launcher
