// The tags and messages that the boards and windows of a group share: a program may make many of them, and MPI has few
// communicators.
#include <fmt/format.h>

#include "comm/messages/backend.h"
#include "zero/errors.h"

namespace zero::comm {

int MessageBackend::take_tags(Channel channel, std::size_t count) {
  messenger_->open(channel);
  std::int64_t& next = next_tags_[static_cast<std::size_t>(channel)];
  const std::int64_t tags = messenger_->tags();
  if (static_cast<std::int64_t>(count) > tags - next) {
    throw CommError(
        fmt::format("{} has {} message tags, {} are used and {} more are wanted: make fewer "
                    "engines in one process, or larger buckets.",
                    name(), tags, next, count));
  }
  const auto first = static_cast<int>(next);
  next += static_cast<std::int64_t>(count);
  return first;
}

int MessageBackend::add_window(WindowEnd& end) {
  messenger_->open(Channel::kRequests);
  const bool first = windows_.empty();
  windows_.push_back(&end);
  if (first) message_receive_ = messenger_->receive_any(Channel::kRequests, message_.get(), sizeof(WindowMessage));
  return static_cast<int>(windows_.size()) - 1;
}

void MessageBackend::receive_messages() {
  while (message_receive_ != 0) {
    Arrival arrival;
    if (!messenger_->test(message_receive_, arrival)) return;
    const WindowMessage message = *message_;
    message_receive_ = messenger_->receive_any(Channel::kRequests, message_.get(), sizeof(WindowMessage));
    // One for a window that an exception has ended: its owner was told.
    if (WindowEnd* const end = windows_[static_cast<std::size_t>(message.window)]) end->take(arrival.source, message);
  }
}

}  // namespace zero::comm
