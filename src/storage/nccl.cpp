#include "storage/nccl.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

namespace zero::storage {
namespace {

template <class Function>
bool find_in(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

void* open_library() {
  // libtorch's own first: two of them in a process would not know of each other.
  for (const int how : {RTLD_LAZY | RTLD_NOLOAD, RTLD_LAZY}) {
    for (const char* name : {"libnccl.so.2", "libnccl.so"}) {
      if (void* const library = dlopen(name, how)) return library;  // it stays loaded
    }
  }
  return nullptr;
}

bool load_nccl(Nccl& nccl) {
  void* const library = open_library();
  return library && find_in(library, "ncclGetVersion", nccl.get_version) &&
         find_in(library, "ncclGetUniqueId", nccl.get_unique_id) &&
         find_in(library, "ncclCommInitRank", nccl.init_rank) && find_in(library, "ncclCommDestroy", nccl.destroy) &&
         find_in(library, "ncclCommAbort", nccl.abort) &&
         find_in(library, "ncclCommGetAsyncError", nccl.get_async_error) &&
         find_in(library, "ncclGetErrorString", nccl.get_error_string) &&
         find_in(library, "ncclGroupStart", nccl.group_start) && find_in(library, "ncclGroupEnd", nccl.group_end) &&
         find_in(library, "ncclSend", nccl.send) && find_in(library, "ncclRecv", nccl.recv) &&
         find_in(library, "ncclBroadcast", nccl.broadcast) && find_in(library, "ncclAllGather", nccl.all_gather);
}

const Nccl* cuda_nccl() {
  static Nccl nccl;
  static const bool is_there = load_nccl(nccl);
  return is_there ? &nccl : nullptr;
}

struct Registered {
  std::mutex mutex;
  std::map<c10::DeviceType, const Nccl*> by_type;
};
Registered& registered() {
  static Registered all;
  return all;
}

}  // namespace

const Nccl* nccl_of(c10::DeviceType type) {
  {
    const std::lock_guard lock(registered().mutex);
    const auto found = registered().by_type.find(type);
    if (found != registered().by_type.end()) return found->second;
  }
  return type == c10::DeviceType::CUDA ? cuda_nccl() : nullptr;
}

void register_nccl(c10::DeviceType type, const Nccl* functions) {
  const std::lock_guard lock(registered().mutex);
  registered().by_type[type] = functions;
}

}  // namespace zero::storage
