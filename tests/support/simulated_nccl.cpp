#include "support/simulated_nccl.h"

#include <fcntl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "device/nccl.h"
#include "support/simulated_queues.h"

namespace zero::testing::simulated {
namespace {

constexpr int kMostRanks = 4;
constexpr std::size_t kPipeBytes = std::size_t{64} << 20;
constexpr int kSystemError = 2, kInvalidUsage = 5, kRemoteError = 6;

std::atomic<bool> is_broken{false};

/// What one rank sends to another: messages, each behind its size.
struct Pipe {
  std::atomic<std::uint64_t> written{0}, read{0};
  std::array<std::byte, kPipeBytes> bytes;
};
struct Shared {
  std::atomic<int> ranks{0};
  std::atomic<bool> aborted{false};
  std::array<std::array<Pipe, kMostRanks>, kMostRanks> pipes;  ///< from, to
};

struct Communicator {
  Communicator(int file, int ranks, int rank) : ranks(ranks), rank(rank) {
    void* const address = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(address != MAP_FAILED, "simulated NCCL: no address space");
    shared = static_cast<Shared*>(address);  // zeros are what its constructor would make
  }
  ~Communicator() { munmap(shared, sizeof(Shared)); }

  const int ranks, rank;
  Shared* shared = nullptr;
};

void put(Pipe& pipe, const void* data, std::size_t nbytes) {
  const auto copy = [&](std::uint64_t at, const void* from, std::size_t size) {
    for (std::size_t done = 0; done < size;) {
      const std::size_t place = (at + done) % kPipeBytes, part = std::min(size - done, kPipeBytes - place);
      std::memcpy(pipe.bytes.data() + place, static_cast<const std::byte*>(from) + done, part);
      done += part;
    }
  };
  const std::uint64_t at = pipe.written.load();
  if (at + sizeof(nbytes) + nbytes - pipe.read.load() > kPipeBytes) throw std::runtime_error("simulated NCCL: full");
  copy(at, &nbytes, sizeof(nbytes));
  copy(at + sizeof(nbytes), data, nbytes);
  pipe.written.store(at + sizeof(nbytes) + nbytes);
}

void get(Pipe& pipe, void* data, std::size_t nbytes) {
  const auto copy = [&](std::uint64_t at, void* to, std::size_t size) {
    for (std::size_t done = 0; done < size;) {
      const std::size_t place = (at + done) % kPipeBytes, part = std::min(size - done, kPipeBytes - place);
      std::memcpy(static_cast<std::byte*>(to) + done, pipe.bytes.data() + place, part);
      done += part;
    }
  };
  const std::uint64_t at = pipe.read.load();
  std::size_t sent = 0;
  copy(at, &sent, sizeof(sent));
  if (sent != nbytes) {
    throw std::runtime_error("simulated NCCL: " + std::to_string(sent) + " bytes were sent and " +
                             std::to_string(nbytes) + " are to be received");
  }
  copy(at + sizeof(sent), data, nbytes);
  pipe.read.store(at + sizeof(sent) + nbytes);
}

struct Call {
  std::shared_ptr<Communicator> communicator;
  void* stream = nullptr;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t nbytes = 0;
  int peer = -1;  ///< -1: from `send` to `recv`, here
};

thread_local int depth = 0;
thread_local std::vector<Call> calls;

char* access(const void* pointer) { return Locked()->arena().access(pointer); }

void copy_here(const Call& call) {
  if (call.send != call.recv) std::memmove(access(call.recv), access(call.send), call.nbytes);
}

int group_start() {
  ++depth;
  return 0;
}

/// Sends, and queues what is to be received.
void begin(std::vector<Call> all) {
  if (all.empty()) return;
  const Locked device;
  const auto communicator = all.front().communicator;
  const int stream = static_cast<int>(reinterpret_cast<std::intptr_t>(all.front().stream));
  device->run_what_it_waits_for(stream);
  std::vector<Call> late;
  for (Call& call : all) {
    if (call.peer < 0 || !call.send) {
      late.push_back(std::move(call));
    } else {
      put(communicator->shared->pipes[communicator->rank][call.peer], access(call.send), call.nbytes);
    }
  }
  const auto arrived = [communicator, late] {
    if (communicator->shared->aborted) return true;
    std::array<std::uint64_t, kMostRanks> wanted{};
    for (const Call& call : late) {
      if (call.peer >= 0) wanted[call.peer] += sizeof(std::size_t) + call.nbytes;
    }
    for (int peer = 0; peer < communicator->ranks; ++peer) {
      const Pipe& pipe = communicator->shared->pipes[peer][communicator->rank];
      if (pipe.written.load() - pipe.read.load() < wanted[peer]) return false;
    }
    return true;
  };
  device->add_when(stream, arrived, [communicator, late] {
    if (communicator->shared->aborted) return;
    for (const Call& call : late) {
      if (call.peer < 0) {
        copy_here(call);
      } else {
        get(communicator->shared->pipes[call.peer][communicator->rank], access(call.recv), call.nbytes);
      }
    }
  });
}

int group_end() {
  if (--depth > 0) return 0;
  std::vector<Call> all;
  all.swap(calls);
  if (is_broken) return kSystemError;
  begin(std::move(all));
  return 0;
}

std::shared_ptr<Communicator>& of(device::NcclCommunicator made) {
  return *reinterpret_cast<std::shared_ptr<Communicator>*>(made);
}

int add(Call call) {
  group_start();
  calls.push_back(std::move(call));
  return group_end();
}

int send(const void* data, std::size_t nbytes, int type, int peer, device::NcclCommunicator made, void* stream) {
  if (type != device::Nccl::kBytes || peer == of(made)->rank) return kInvalidUsage;
  return add({of(made), stream, data, nullptr, nbytes, peer});
}
int recv(void* data, std::size_t nbytes, int type, int peer, device::NcclCommunicator made, void* stream) {
  if (type != device::Nccl::kBytes || peer == of(made)->rank) return kInvalidUsage;
  return add({of(made), stream, nullptr, data, nbytes, peer});
}
int broadcast(const void* in, void* out, std::size_t nbytes, int type, int root, device::NcclCommunicator made,
              void* stream) {
  const Communicator& communicator = *of(made);
  if (communicator.rank != root) return recv(out, nbytes, type, root, made, stream);
  group_start();
  add({of(made), stream, in, out, nbytes, -1});
  for (int peer = 0; peer < communicator.ranks; ++peer) {
    if (peer != root) send(in, nbytes, type, peer, made, stream);
  }
  return group_end();
}
int all_gather(const void* in, void* out, std::size_t nbytes, int type, device::NcclCommunicator made, void* stream) {
  group_start();
  for (int rank = 0; rank < of(made)->ranks; ++rank) {
    auto* const slice = static_cast<std::byte*>(out) + static_cast<std::size_t>(rank) * nbytes;
    broadcast(rank == of(made)->rank ? in : nullptr, slice, nbytes, type, rank, made, stream);
  }
  return group_end();
}

struct Id {
  pid_t process = 0;
  int file = -1;
};

int get_unique_id(device::NcclId* id) {
  const Id mine{getpid(), memory_file(sizeof(Shared))};
  std::memcpy(id->bytes.data(), &mine, sizeof(mine));
  return 0;
}

int init_rank(device::NcclCommunicator* made, int ranks, device::NcclId id, int rank) {
  Id from;
  std::memcpy(&from, id.bytes.data(), sizeof(from));
  const std::string path = "/proc/" + std::to_string(from.process) + "/fd/" + std::to_string(from.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 || ranks > kMostRanks) return kInvalidUsage;
  auto communicator = std::make_shared<Communicator>(file, ranks, rank);
  close(file);
  ++communicator->shared->ranks;
  for (int i = 0; communicator->shared->ranks < ranks; ++i) {
    if (i > 60'000) return kRemoteError;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (rank == 0) close(from.file);
  *made = reinterpret_cast<device::NcclCommunicator>(new std::shared_ptr<Communicator>(std::move(communicator)));
  return 0;
}

int destroy(device::NcclCommunicator made) {
  delete &of(made);
  return 0;
}
int abort(device::NcclCommunicator made) {
  of(made)->shared->aborted = true;
  return destroy(made);
}
int get_async_error(device::NcclCommunicator, int* error) {
  *error = is_broken ? kRemoteError : 0;
  return 0;
}
const char* get_error_string(int error) {
  switch (error) {
    case kSystemError:
      return "unhandled system error";
    case kInvalidUsage:
      return "invalid usage";
    default:
      return "remote process exited or there was a network error";
  }
}

}  // namespace

void use_nccl(bool wanted) {
  static const device::Nccl functions{&get_unique_id, &init_rank, &destroy, &abort, &get_async_error, &get_error_string,
                                      &group_start,   &group_end, &send,    &recv,  &broadcast,       &all_gather};
  device::register_nccl(kSim, wanted ? &functions : nullptr);
}

void break_nccl() { is_broken = true; }

}  // namespace zero::testing::simulated
