#include "comm/mpi_session.h"

#include <fmt/format.h>

#include <string>

#include "base/log.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

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
    if (ours_ && !finalized && !unclean_) MPI_Finalize();
  }

  void mark_unclean() noexcept { unclean_ = true; }

 private:
  bool ours_ = false;
  bool unclean_ = false;
};

Session& session() {
  static Session instance;
  return instance;
}

}  // namespace

void ensure_mpi() { session(); }

void mark_mpi_unclean() noexcept { session().mark_unclean(); }

void check_mpi(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(fmt::format("{} failed: {}", call, std::string(text, static_cast<std::size_t>(length))));
}

}  // namespace zero::comm
