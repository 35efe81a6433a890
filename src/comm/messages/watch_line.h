#pragma once
// What the processes of a job that watch each other (host_watch.h) say to each other, and a connection that carries it.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/clock.h"
#include "comm/memory.h"

namespace zero::comm {

enum class WatchType : std::uint8_t {
  kHello,     ///< `rank`; the text is the token
  kBeat,      ///< nothing
  kFarewell,  ///< of `rank`
  kEnded,     ///< `rank`'s process, without one
  kReport,    ///< to rank 0: the job has failed, with this text
  kFailure,   ///< from rank 0
};

struct WatchFrame {
  WatchType type = WatchType::kBeat;
  std::uint8_t lost_host = 0;  ///< kReport, kFailure
  std::uint16_t nbytes = 0;    ///< of the text that follows
  std::int32_t rank = 0;
};
static_assert(sizeof(WatchFrame) == 8);

/// A connection to the process of another rank.
class WatchLine {
 public:
  WatchLine() = default;
  explicit WatchLine(FileDescriptor socket)
      : socket_(std::move(socket)), made_ns_(base::monotonic_ns()), heard_ns_(made_ns_) {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    // From Linux 6.15: attempts are a second apart at most, and a link that is mended is noticed so soon.
    constexpr int kTcpRtoMaxMs = 44, kSecondMs = 1000;
    ::setsockopt(socket_.get(), IPPROTO_TCP, kTcpRtoMaxMs, &kSecondMs, sizeof(kSecondMs));
  }

  int fd() const { return socket_ ? socket_.get() : -1; }
  std::int64_t silent_ns(std::int64_t now_ns) const { return now_ns - heard_ns_; }
  std::int64_t age_ns(std::int64_t now_ns) const { return now_ns - made_ns_; }
  void forgive(std::int64_t now_ns) { heard_ns_ = now_ns; }
  void close() { socket_ = FileDescriptor(); }

  /// How long its kernel has acknowledged nothing of what was sent. Beats are sent all the time.
  std::int64_t unacknowledged_ns() const {
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_unacked == 0) return 0;
    return static_cast<std::int64_t>(info.tcpi_last_ack_recv) * base::kNanosPerMilli;
  }

  void send(WatchType type, int rank, const std::string& text = {}, bool lost_host = false) {
    if (!socket_) return;
    if (type == WatchType::kBeat && !out_.empty()) return flush();  // beats that nobody takes are as good as one
    WatchFrame frame;
    frame.type = type;
    frame.rank = rank;
    frame.lost_host = lost_host ? 1 : 0;
    frame.nbytes = static_cast<std::uint16_t>(std::min(text.size(), kLongestText));
    out_.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
    out_.append(text, 0, frame.nbytes);
    flush();
  }
  void flush() {
    while (!out_.empty()) {
      const ssize_t sent = ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) break;
      out_.erase(0, static_cast<std::size_t>(sent));
    }
  }
  /// Calls `take` with each frame that has come. False: the other end is closed.
  template <class Take>
  bool receive(const Take& take) {
    char buffer[4096];
    bool open = true;
    while (open) {
      const ssize_t got = ::recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      open = got > 0;
      if (!open) break;  // what came before is still to be taken
      heard_ns_ = base::monotonic_ns();
      in_.append(buffer, static_cast<std::size_t>(got));
    }
    std::size_t done = 0;
    while (in_.size() - done >= sizeof(WatchFrame)) {
      WatchFrame frame;
      std::memcpy(&frame, in_.data() + done, sizeof(frame));
      if (frame.nbytes > kLongestText || frame.type > WatchType::kFailure) return false;  // not one of ours
      if (in_.size() - done < sizeof(frame) + frame.nbytes) break;
      const std::string text = in_.substr(done + sizeof(frame), frame.nbytes);
      done += sizeof(frame) + frame.nbytes;
      take(frame, text);
    }
    in_.erase(0, done);
    return open;
  }

 private:
  static constexpr std::size_t kLongestText = 4000;

  FileDescriptor socket_;
  std::string in_, out_;
  std::int64_t made_ns_ = 0, heard_ns_ = 0;
};

}  // namespace zero::comm
