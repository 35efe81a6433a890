// The communicators, tags and messages that boards and windows over MPI share: a program may make many of
// them, and MPI has few communicators.
#include <fmt/format.h>

#include "comm/mpi/backend.h"
#include "comm/mpi/session.h"
#include "zero/errors.h"

namespace zero::comm {

MPI_Comm MpiBackend::channel(Channel which) {
  MPI_Comm& comm = channels_[static_cast<std::size_t>(which)].comm;
  if (comm == MPI_COMM_NULL) {
    check_mpi(MPI_Comm_dup(data_comm_, &comm), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  return comm;
}

int MpiBackend::take_tags(Channel which, std::size_t count) {
  ChannelState& state = channels_[static_cast<std::size_t>(which)];
  int* largest = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest, &found), "MPI_Comm_get_attr");
  const std::size_t tags = found ? static_cast<std::size_t>(*largest) + 1 : 32'768;
  if (count > tags - state.next_tag) {
    throw CommError(
        fmt::format("this MPI has {} message tags, {} are used and {} more are wanted: make fewer "
                    "engines in one process, or larger buckets.",
                    tags, state.next_tag, count));
  }
  const auto first = static_cast<int>(state.next_tag);
  state.next_tag += count;
  return first;
}

int MpiBackend::add_window(WindowEnd& end) {
  channel(Channel::kAnswers);
  const bool first = windows_.empty();
  const MPI_Comm comm = channel(Channel::kMessages);
  windows_.push_back(&end);
  if (first) {
    check_mpi(MPI_Irecv(&message_, sizeof(message_), MPI_BYTE, MPI_ANY_SOURCE, 0, comm, &message_receive_),
              "MPI_Irecv");
  }
  return static_cast<int>(windows_.size()) - 1;
}

void MpiBackend::receive_messages() {
  while (message_receive_ != MPI_REQUEST_NULL) {
    int arrived = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&message_receive_, &arrived, &status), "MPI_Test");
    if (!arrived) return;
    const WindowMessage message = message_;
    check_mpi(MPI_Irecv(&message_, sizeof(message_), MPI_BYTE, MPI_ANY_SOURCE, 0, channel(Channel::kMessages),
                        &message_receive_),
              "MPI_Irecv");
    // One for a window that an exception has ended: its owner was told.
    if (WindowEnd* const end = windows_[static_cast<std::size_t>(message.window)])
      end->take(status.MPI_SOURCE, message);
  }
}

}  // namespace zero::comm
