#include "comm/mpi/requests.h"

#include <algorithm>

#include "comm/mpi/session.h"

namespace zero::comm {
namespace {

constexpr std::size_t kPieceNbytes = std::size_t{1} << 30;  ///< MPI counts in int

}  // namespace

void MpiRequests::send(const void* data, std::size_t nbytes, int peer, int tag, MPI_Comm comm) {
  const auto* bytes = static_cast<const std::byte*>(data);
  for (std::size_t done = 0; done < nbytes; done += kPieceNbytes) {
    const int count = static_cast<int>(std::min(kPieceNbytes, nbytes - done));
    check_mpi(MPI_Isend(bytes + done, count, MPI_BYTE, peer, tag, comm, &requests_.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Isend");
  }
}

void MpiRequests::receive(void* data, std::size_t nbytes, int peer, int tag, MPI_Comm comm) {
  auto* bytes = static_cast<std::byte*>(data);
  for (std::size_t done = 0; done < nbytes; done += kPieceNbytes) {
    const int count = static_cast<int>(std::min(kPieceNbytes, nbytes - done));
    check_mpi(MPI_Irecv(bytes + done, count, MPI_BYTE, peer, tag, comm, &requests_.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Irecv");
  }
}

bool MpiRequests::test() {
  if (requests_.empty()) return true;
  int done = 0;
  check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
  if (done) requests_.clear();
  return done != 0;
}

void MpiRequests::drop_completed() {
  std::erase_if(requests_, [](MPI_Request& request) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  });
}

bool MpiRequests::cancel() noexcept {
  bool clean = true;
  for (MPI_Request& request : requests_) {
    if (request == MPI_REQUEST_NULL) continue;
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) continue;
    MPI_Cancel(&request);
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    clean = clean && done;
  }
  if (clean) requests_.clear();
  return clean;
}

}  // namespace zero::comm
