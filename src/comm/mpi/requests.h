#pragma once
// Groups of non-blocking MPI transfers.
#include <mpi.h>

#include <cstddef>
#include <vector>

namespace zero::comm {

class MpiRequests {
 public:
  /// Starts sending or receiving `nbytes`, in pieces that MPI can count. Throws CommError. Local.
  void send(const void* data, std::size_t nbytes, int peer, int tag, MPI_Comm comm);
  void receive(void* data, std::size_t nbytes, int peer, int tag, MPI_Comm comm);

  /// True when all have completed. Throws CommError. Local.
  bool test();
  /// Lets go of those that have completed. Throws CommError. Local.
  void drop_completed();
  /// Gives up: cancels what has not been matched. False when something is still under way after that. Local.
  bool cancel() noexcept;

 private:
  std::vector<MPI_Request> requests_;
};

}  // namespace zero::comm
