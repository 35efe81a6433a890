#include "comm/ucx/init.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "comm/messages/backend.h"
#include "comm/process.h"
#include "comm/shm/backend.h"
#include "comm/ucx/library.h"
#include "comm/ucx/messenger.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

std::string text_of(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

MeetingPlace meeting_place(const Discovery& discovery, const Environment& environment) {
  MeetingPlace place;
  place.host = discovery.master_address;
  place.port = discovery.master_port;
  if (place.host.empty() || place.port == 0) {
    throw ConfigError(
        "backend \"ucx\": the ranks meet at MASTER_ADDR and MASTER_PORT, which are not both set. Set them to the "
        "address of rank 0's host and a free port of it, on all ranks, or start the ranks with torchrun.");
  }
  if (place.port > 65'535)
    throw ConfigError(fmt::format("environment variable MASTER_PORT: got {}, wanted a port, 1 to 65535.", place.port));
  // torchrun's agent serves a store at that port; else rank 0 does.
  place.serves = discovery.rank == 0 && text_of(environment, "TORCHELASTIC_USE_AGENT_STORE") != "True";
  static int groups = 0;  // a program may end its group and make another
  place.prefix = fmt::format("zerotorch/{}/{}/{}", text_of(environment, "TORCHELASTIC_RUN_ID"),
                             text_of(environment, "TORCHELASTIC_RESTART_COUNT"), groups++);
  return place;
}

/// Says which host this rank is on, and rank 0 an id of the job.
void say_host(MeetingStore& store, int rank) {
  if (rank == 0) store.set("job", fmt::format("{}-{}", ::getpid(), start_time_of(::getpid())));
  store.set(fmt::format("the host of rank {}", rank), this_host());
}

bool are_on_one_host(MeetingStore& store, int size) {
  bool same = true;
  for (int peer = 0; peer < size; ++peer)
    same = store.get(fmt::format("the host of rank {}", peer)) == this_host() && same;
  return same;
}

}  // namespace

std::string ucx_problem() { return UcxLibrary::problem(); }

std::shared_ptr<Backend> make_ucx_backend(const Discovery& discovery, const Environment& environment,
                                          std::chrono::milliseconds timeout, bool or_shm) {
  UcxLibrary::get();
  const int rank = discovery.rank, size = discovery.size;
  MeetingPlace place = meeting_place(discovery, environment);
  place.timeout = timeout;
  std::unique_ptr<MeetingStore> store = open_meeting_store(place);
  say_host(*store, rank);
  if (or_shm && are_on_one_host(*store, size)) {
    return std::make_shared<ShmBackend>(ControlSegment::rendezvous("met-" + store->get("job"), rank, size, timeout),
                                        rank, ranks_beside(rank, size));
  }
  return std::make_shared<MessageBackend>(UcxMessenger::of_all(rank, size, std::move(store)));
}

}  // namespace zero::comm
