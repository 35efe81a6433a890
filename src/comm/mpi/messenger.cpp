#include "comm/mpi/messenger.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "comm/mpi/session.h"

namespace zero::comm {
namespace {

static_assert(sizeof(MPI_Request) <= sizeof(MessageHandle));

MessageHandle handle_of(MPI_Request request) {
  if (request == MPI_REQUEST_NULL) return 0;
  MessageHandle handle = 0;
  std::memcpy(&handle, &request, sizeof(request));
  return handle;
}

MPI_Request request_of(MessageHandle handle) {
  if (handle == 0) return MPI_REQUEST_NULL;
  MPI_Request request;
  std::memcpy(&request, &handle, sizeof(request));
  return request;
}

int rank_in_world() {
  int rank = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  return rank;
}

int size_of_world() {
  int size = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  return size;
}

}  // namespace

MpiMessenger::MpiMessenger(MPI_Comm comm, int rank, int size)
    : Messenger(rank, size, rank_in_world(), size_of_world()), pid_(::getpid()) {
  comms_.fill(MPI_COMM_NULL);
  check_mpi(MPI_Comm_dup(comm, &comms_[static_cast<std::size_t>(Channel::kData)]), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_of(Channel::kData), MPI_ERRORS_RETURN);
  open(Channel::kRecords);
  open(Channel::kNotices);
  int* largest = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest, &found), "MPI_Comm_get_attr");
  tags_ = found ? std::int64_t{*largest} + 1 : 32'768;
}

MpiMessenger::~MpiMessenger() {
  if (failed_ || ::getpid() != pid_) return;
  const BackendGuard guard(*lock());
  for (MPI_Comm& comm : comms_) {
    if (comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
  }
}

const std::shared_ptr<BackendLock>& MpiMessenger::lock() const { return mpi_lock(); }

std::string MpiMessenger::progress_thread_problem() const {
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  if (provided >= (mpi_is_ours() ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE)) return {};
  return "MPI was not initialised for calls from several threads; ask MPI_Init_thread for "
         "MPI_THREAD_MULTIPLE, "
         "or leave MPI's initialisation to zerotorch";
}

std::size_t MpiMessenger::best_piece() const {
  // Longer ones are sent when their receiver asks for them, one after the other in one direction at a time.
  constexpr std::size_t kEager = std::size_t{32} << 10;
  return has_rdma() ? std::size_t{1} << 30 : kEager;
}

void MpiMessenger::open(Channel channel) {
  MPI_Comm& comm = comms_[static_cast<std::size_t>(channel)];
  if (comm != MPI_COMM_NULL) return;
  check_mpi(MPI_Comm_dup(comm_of(Channel::kData), &comm), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

MessageHandle MpiMessenger::send(Channel channel, int peer, int tag, const void* data, std::size_t nbytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(data, static_cast<int>(nbytes), MPI_BYTE, peer, tag, comm_of(channel), &request), "MPI_Isend");
  return handle_of(request);
}

MessageHandle MpiMessenger::receive(Channel channel, int peer, int tag, void* data, std::size_t nbytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(data, static_cast<int>(nbytes), MPI_BYTE, peer, tag, comm_of(channel), &request), "MPI_Irecv");
  return handle_of(request);
}

MessageHandle MpiMessenger::receive_any(Channel channel, void* data, std::size_t most) {
  return receive(channel, MPI_ANY_SOURCE, MPI_ANY_TAG, data, most);
}

bool MpiMessenger::test(MessageHandle& handle) {
  MPI_Request request = request_of(handle);
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (done) handle = 0;
  return done != 0;
}

bool MpiMessenger::test(MessageHandle& handle, Arrival& arrival) {
  MPI_Request request = request_of(handle);
  MPI_Status status;
  int done = 0, nbytes = 0;
  check_mpi(MPI_Test(&request, &done, &status), "MPI_Test");
  if (!done) return false;
  handle = 0;
  MPI_Get_count(&status, MPI_BYTE, &nbytes);
  arrival = {status.MPI_SOURCE, status.MPI_TAG, static_cast<std::size_t>(nbytes)};
  return true;
}

bool MpiMessenger::cancel(MessageHandle& handle) noexcept {
  if (handle == 0) return true;
  MPI_Request request = request_of(handle);
  int done = 0;
  MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  if (!done) {
    MPI_Cancel(&request);
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  }
  if (done) handle = 0;
  return done != 0;
}

void MpiMessenger::all_gather(const void* mine, std::size_t nbytes, void* all) {
  const int count = static_cast<int>(nbytes);
  check_mpi(MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, comm_of(Channel::kData)), "MPI_Allgather");
}

std::shared_ptr<Messenger> MpiMessenger::subgroup(std::span<const int> members) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_of(Channel::kData), members.empty() ? MPI_UNDEFINED : members[0], rank(), &comm),
            "MPI_Comm_split");
  if (members.empty()) return nullptr;
  const auto me = std::find(members.begin(), members.end(), rank()) - members.begin();
  auto part = std::make_shared<MpiMessenger>(comm, static_cast<int>(me), static_cast<int>(members.size()));
  MPI_Comm_free(&comm);
  return part;
}

void MpiMessenger::mark_failed(bool clean) noexcept {
  failed_ = true;
  mark_mpi_failed();
  if (watch() && watch()->lost_a_host()) mark_mpi_ranks_lost();
  if (!clean) mark_mpi_unclean();
}

}  // namespace zero::comm
