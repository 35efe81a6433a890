#pragma once
// The connection between a launcher and the process next to a rank on some host.
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/memory.h"

namespace zero::launcher {

/// Time between two signs of life. Each end sends them.
inline constexpr int kAliveMs = 500;

enum class MessageKind : std::uint8_t {
  kHello = 1,  ///< agent: JSON of who it is
  kWelcome,    ///< launcher: its half of the secret
  kStart,      ///< launcher: JSON of the rank's variables
  kOut,        ///< agent: output of the rank
  kErr,
  kStatus,  ///< agent: JSON of how the rank has ended, stopped or gone on
  kAlive,
  kSignal,  ///< launcher: a number, for the rank
  kPause,   ///< launcher: stops, and shows no sign of life until the next one
  kLeave,   ///< launcher: the agent ends
};

struct Message {
  MessageKind kind;
  std::string body;
};

/// Never blocks. queue() and flush() may be called by any thread, all else by one.
class Channel {
 public:
  explicit Channel(comm::FileDescriptor socket);

  int fd() const { return socket_.get(); }
  void queue(MessageKind kind, std::string_view body = {});
  /// Sends what can be sent.
  void flush();
  /// Bytes that wait to be sent.
  std::size_t unsent() const;
  /// Reads what is there.
  void receive();
  /// The next message that has been read.
  std::optional<Message> next();
  /// The other end is gone; what it has sent before may still be read.
  bool is_gone() const { return gone_; }
  /// Numeric addresses of the two ends.
  std::string own_address() const;
  std::string peer_address() const;

 private:
  void flush_locked();

  comm::FileDescriptor socket_;
  mutable std::mutex mutex_;
  std::string unsent_, unread_;
  bool gone_ = false;
};

}  // namespace zero::launcher
