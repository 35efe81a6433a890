// Group::allocate_node_shared on top of the kView transport, for every backend whose ranks share a host.
#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "comm/backend.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

/// What each rank tells the others about its attempt.
struct Attempt {
  RegionId id;
  std::int32_t fd = -1;
  std::int32_t failed = 0;
  char error[480] = {};
};

void set_error(Attempt& attempt, const char* text) {
  attempt.failed = 1;
  std::strncpy(attempt.error, text, sizeof(attempt.error) - 1);
}

std::vector<Attempt> exchange_attempts(Backend& backend, const Attempt& mine, std::int64_t recorded_nbytes,
                                       std::string_view label, std::uint8_t phase) {
  std::vector<Attempt> attempts(static_cast<std::size_t>(backend.size()));
  Call call;
  call.kind = CollectiveKind::kAllocateNodeShared;
  call.transport = Transport::kView;
  call.phase = phase;
  call.numel = sizeof(Attempt);
  call.recorded_numel = recorded_nbytes;  // ranks that ask for other sizes diverge
  call.in = &mine;
  call.label = label;
  call.stage_input = true;
  call.consume = [&attempts](std::span<const void* const> slices) {
    for (std::size_t r = 0; r < slices.size(); ++r) std::memcpy(&attempts[r], slices[r], sizeof(Attempt));
  };
  Work(backend.post(call)).wait();
  return attempts;
}

void throw_first_error(const std::vector<Attempt>& attempts) {
  for (std::size_t r = 0; r < attempts.size(); ++r) {
    if (attempts[r].failed) throw IoError(fmt::format("rank {}: {}", r, attempts[r].error));
  }
}

}  // namespace

SharedMemory Backend::allocate_node_shared(std::size_t nbytes, std::string_view label, std::size_t expected_nbytes) {
  if (local_size() != size()) {
    throw CommError(
        fmt::format("allocate_node_shared(\"{}\"): {} of the group's {} ranks are on this host; one mapping "
                    "for all needs all of "
                    "them on one host. Use the copying parameter store across hosts.",
                    label, local_size(), size()));
  }
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  return SharedMemory(share_region(all, nbytes, static_cast<std::int64_t>(nbytes), label, expected_nbytes));
}

std::shared_ptr<Region> Backend::share_region(std::span<const int> members, std::size_t nbytes,
                                              std::int64_t recorded_nbytes, std::string_view label,
                                              std::size_t expected_nbytes) {
  const std::string what = fmt::format("allocate_node_shared(\"{}\")", label);
  const int creator = members.empty() ? -1 : members[0];
  std::shared_ptr<Region> region;
  Attempt mine;
  if (rank() == creator) {
    try {
      region = Region::create(registry(), nbytes, Region::Sharing::kNodeShared, what, expected_nbytes);
      mine.id = region->id();
      mine.fd = region->fd();
    } catch (const IoError& error) {
      set_error(mine, error.what());
    }
  }
  const std::vector<Attempt> created = exchange_attempts(*this, mine, recorded_nbytes, label, 0);
  throw_first_error(created);
  if (creator >= 0 && rank() != creator) {
    try {
      const Attempt& from = created[static_cast<std::size_t>(creator)];
      region = Region::open(registry(), from.id, pid_of(creator), from.fd, nbytes);
    } catch (const IoError& error) {
      fail_if_gone(creator, [&what] { return what; });
      set_error(mine, error.what());
    }
  }
  // Nobody goes on before all have opened it: the creator's descriptor must still be there.
  throw_first_error(exchange_attempts(*this, mine, recorded_nbytes, label, 1));
  return region;
}

}  // namespace zero::comm
