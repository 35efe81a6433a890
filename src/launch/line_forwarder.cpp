#include "launch/line_forwarder.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

namespace zero::launcher {
namespace {

constexpr std::size_t kLongestLine = 64 << 10;  ///< a longer one is cut: memory must stay bounded

/// False when nobody reads any more.
bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote > 0) {
      text.remove_prefix(static_cast<std::size_t>(wrote));
    } else if (errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, 100);
    } else if (errno != EINTR) {
      return errno != EPIPE;
    }
  }
  return true;
}

}  // namespace

LineForwarder::LineForwarder(comm::FileDescriptor source, int target, std::string prefix)
    : source_(std::move(source)), target_(target), prefix_(std::move(prefix)) {
  ::fcntl(source_.get(), F_SETFL, O_NONBLOCK);
}

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
    pending_.append(buffer, static_cast<std::size_t>(got));
    const std::size_t newline = pending_.rfind('\n');
    if (newline != std::string::npos) {
      write_lines(newline + 1);
    } else if (pending_.size() > kLongestLine) {
      pending_ += '\n';
      write_lines(pending_.size());
    }
  }
}

void LineForwarder::finish() {
  if (!pending_.empty()) {
    pending_ += '\n';
    write_lines(pending_.size());
  }
  source_ = comm::FileDescriptor();
}

void LineForwarder::write_lines(std::size_t end) {
  std::string text;
  std::size_t begin = 0;
  while (begin < end) {
    const std::size_t newline = pending_.find('\n', begin);
    text += prefix_;
    text.append(pending_, begin, newline + 1 - begin);
    begin = newline + 1;
  }
  pending_.erase(0, end);
  unread_ |= !write_all(target_, text);  // one call, so that lines of different ranks do not mix
}

}  // namespace zero::launcher
