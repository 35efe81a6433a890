#pragma once
// The functions of NCCL that are needed. They are found when they are first asked for, in the library that libtorch has
// loaded or that the loader finds, so that nothing of NCCL is needed to build.
#include <c10/core/Device.h>

#include <array>
#include <cstddef>

namespace zero::device {

/// What ranks need to find each other; plain bytes, as NCCL has them.
struct NcclId {
  std::array<char, 128> bytes{};
};
using NcclCommunicator = struct NcclCommunicatorOpaque*;

/// 0 is success everywhere; `bytes` is NCCL's number for unsigned bytes. Streams are the device's own.
struct Nccl {
  static constexpr int kBytes = 1;
  static constexpr int kInProgress = 7;

  int (*get_unique_id)(NcclId*) = nullptr;
  int (*init_rank)(NcclCommunicator*, int ranks, NcclId, int rank) = nullptr;
  int (*destroy)(NcclCommunicator) = nullptr;
  int (*abort)(NcclCommunicator) = nullptr;
  int (*get_async_error)(NcclCommunicator, int*) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void*, std::size_t, int type, int peer, NcclCommunicator, void* stream) = nullptr;
  int (*recv)(void*, std::size_t, int type, int peer, NcclCommunicator, void* stream) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, int type, int root, NcclCommunicator, void* stream) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int type, NcclCommunicator, void* stream) = nullptr;
};

/// For devices of this type; null where there is none. For CUDA it may load the library. Thread-safe.
const Nccl* nccl_of(c10::DeviceType type);
/// For the other ones; `functions` lives as long as the process. Null: none from here on.
void register_nccl(c10::DeviceType type, const Nccl* functions);

}  // namespace zero::device
