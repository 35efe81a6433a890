#include "device/nccl.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "device/library_functions.h"

namespace zero::device {
namespace {

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
  return library && find_function(library, "ncclGetUniqueId", nccl.get_unique_id) &&
         find_function(library, "ncclCommInitRank", nccl.init_rank) &&
         find_function(library, "ncclCommDestroy", nccl.destroy) &&
         find_function(library, "ncclCommAbort", nccl.abort) &&
         find_function(library, "ncclCommGetAsyncError", nccl.get_async_error) &&
         find_function(library, "ncclGetErrorString", nccl.get_error_string) &&
         find_function(library, "ncclGroupStart", nccl.group_start) &&
         find_function(library, "ncclGroupEnd", nccl.group_end) && find_function(library, "ncclSend", nccl.send) &&
         find_function(library, "ncclRecv", nccl.recv) && find_function(library, "ncclBroadcast", nccl.broadcast) &&
         find_function(library, "ncclAllGather", nccl.all_gather);
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

}  // namespace zero::device
