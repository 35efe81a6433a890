#include "comm/mpi/session.h"

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

/// How long the ranks wait for each other at the end of a process in which a group has failed. With the time
/// to notice a stopped rank and that of mpirun to end a job it stays below 10 s.
constexpr std::int64_t kLastMeetingNs = 3 * base::kNanosPerSecond;

class Session {
 public:
  Session() {
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (initialised) return;
    int provided = MPI_THREAD_SINGLE;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    ours_ = true;
    if (provided < MPI_THREAD_FUNNELED) {
      base::log_warning("this MPI supports one thread per process only: call the group from the main thread");
    }
  }

  ~Session() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    mpi_lock()->close();
    if (!ours_ || finalized) return;
    if (lost_) {
      // That others can say what they have to say before mpirun ends them for this one's end.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    if (!failed_ || all_ranks_come_clean()) MPI_Finalize();
  }

  bool ours() const { return ours_; }
  void mark_failed() noexcept { failed_ = true; }
  void mark_unclean() noexcept { unclean_ = true; }
  void mark_lost() noexcept { lost_ = true; }

 private:
  /// Whether all ranks can call MPI_Finalize, which would wait for ever for one that does not: each has come here, and
  /// none has requests that cannot be cancelled. It also lets every rank say what it has to say before the first one
  /// that ends makes mpirun end them all.
  bool all_ranks_come_clean() const noexcept {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    static int mine = 0, any = 0;  // MPI may still use them when this gives up
    mine = unclean_ ? 1 : 0;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Iallreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
    const std::int64_t deadline_ns = base::monotonic_ns() + kLastMeetingNs;
    while (base::monotonic_ns() < deadline_ns) {
      int done = 0;
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
      if (done) return any == 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  bool ours_ = false;
  bool failed_ = false;
  bool unclean_ = false;
  bool lost_ = false;
};

Session& session() {
  static Session instance;
  return instance;
}

}  // namespace

void ensure_mpi() {
  mpi_lock();  // outlives the session, which closes it
  session();
}

bool mpi_is_ours() { return session().ours(); }

const std::shared_ptr<BackendLock>& mpi_lock() {
  static const auto lock = std::make_shared<BackendLock>();
  return lock;
}

void mark_mpi_failed() noexcept { session().mark_failed(); }

void mark_mpi_unclean() noexcept { session().mark_unclean(); }

void mark_mpi_ranks_lost() noexcept { session().mark_lost(); }

void check_mpi(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(fmt::format("{} failed: {}", call, std::string(text, static_cast<std::size_t>(length))));
}

}  // namespace zero::comm
