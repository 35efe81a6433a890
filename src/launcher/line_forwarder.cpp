#include "launcher/line_forwarder.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

namespace zero::launcher {
namespace {

constexpr std::size_t kLongestLine = 16 << 20;  ///< a longer one is cut: memory must stay bounded

/// 0, or the error.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote > 0) {
      text.remove_prefix(static_cast<std::size_t>(wrote));
    } else if (errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, 100);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

LineForwarder::LineForwarder(comm::FileDescriptor source, int target, std::string prefix, int log)
    : source_(std::move(source)), target_(target), log_(log), prefix_(std::move(prefix)) {
  ::fcntl(source_.get(), F_SETFL, O_NONBLOCK);
}

LineForwarder::LineForwarder(int target, std::string prefix, int log)
    : target_(target), log_(log), prefix_(std::move(prefix)) {}

void LineForwarder::forward() {
  if (!source_) return;
  char buffer[16 << 10];
  while (true) {
    const ssize_t got = ::read(source_.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return;
    if (got == 0) {
      finish();
      return;
    }
    take({buffer, static_cast<std::size_t>(got)});
  }
}

void LineForwarder::take(std::string_view text) {
  pending_ += text;
  write_lines();
  if (pending_.size() > kLongestLine) {
    pending_ += '\n';
    write_lines();
  }
}

void LineForwarder::finish() {
  if (!pending_.empty()) {
    pending_ += '\n';
    write_lines();
  }
  source_ = comm::FileDescriptor();
}

void LineForwarder::write_lines() {
  std::string prefixed, plain;
  std::size_t begin = 0;
  while (true) {
    std::size_t end = pending_.find_first_of("\r\n", std::max(begin, searched_));
    // A carriage return may have its newline still to come.
    if (end == std::string::npos || (pending_[end] == '\r' && end + 1 == pending_.size())) break;
    if (pending_[end] == '\r' && pending_[end + 1] == '\n') ++end;
    const std::string_view line = std::string_view(pending_).substr(begin, end + 1 - begin);
    begin = end + 1;
    if (line == "\r") continue;  // bars begin with what ends the one before
    prefixed += prefix_;
    prefixed += line;
    if (log_ >= 0) plain += line;
  }
  const bool may_end = pending_.ends_with('\r');
  pending_.erase(0, begin);
  searched_ = pending_.size() - (may_end && !pending_.empty() ? 1 : 0);
  if (begin == 0) return;
  const int error = write_all(target_, prefixed);  // one call, so that lines of different ranks do not mix
  unread_ |= error == EPIPE;
  if (write_error_ == 0 && error != EPIPE) write_error_ = error;
  if (log_ < 0) return;
  if (const int of_log = write_all(log_, plain); log_error_ == 0) log_error_ = of_log;
}

}  // namespace zero::launcher
