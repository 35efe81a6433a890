// The passes as CUDA kernels: a library of its own, zerotorch_cuda, which zerotorch loads where there is one. Compile
// without contraction of multiply and add, with IEEE division and square root, and without flush to zero.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "base/small_floats.h"
#include "optim/decades.h"
#include "optim/device_kernels.h"

namespace zero::optim::cuda {
namespace {

#include "optim/device_kernels.inc"

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / kSumLanes;

int blocks_for(std::int64_t work, std::int64_t per_block) {
  constexpr std::int64_t kMost = 1 << 20;  // what is left takes further rounds
  const std::int64_t wanted = (work + per_block - 1) / per_block;
  return static_cast<int>(wanted < kMost ? wanted : kMost);
}

template <class Body>
__global__ void __launch_bounds__(kThreads) run_each(std::int64_t numel, const Body body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads * 4;
  std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  for (; i + 4 <= numel; i += step) body.template run<4>(i);
  for (; i < numel; ++i) body.template run<1>(i);  // in one thread, what is left of it
}

constexpr int kSumThreads = 128;  ///< as many as leave room for their values in shared memory
constexpr int kWarp = 32;
constexpr int kFours = 4;  ///< that a thread has under way

/// A warp makes two blocks at a time: all of it their values, then half of it the sixteen sums of each.
template <class Body>
__global__ void __launch_bounds__(kSumThreads) run_sums(std::int64_t blocks, const Body body, double* out) {
  constexpr int kRow = kSumBlockNumel + kSumLanes;  // so that the halves of a warp read from different banks
  __shared__ __align__(16) float values[kSumThreads / kWarp][2][kRow];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, half = lane / kSumLanes, sum_lane = lane % kSumLanes;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * (kSumThreads / kWarp) * 2;
  std::int64_t block = (static_cast<std::int64_t>(blockIdx.x) * (kSumThreads / kWarp) + warp) * 2;
  for (; block < blocks; block += step) {
    const int count = blocks - block < 2 ? 1 : 2;
    for (int b = 0; b < count; ++b) {
      for (int place = lane * 4; place < kSumBlockNumel; place += kWarp * 4 * kFours) {
        Floats<4> fours[kFours];
        body.fours((block + b) * kSumBlockNumel + place, kWarp * 4, fours);
        for (int k = 0; k < kFours && out; ++k)
          store(&values[warp][b][0], StateFormat::kFloat32, place + k * kWarp * 4, /*aligned=*/true, fours[k]);
      }
    }
    if (!out) continue;
    __syncwarp();
    double sum = 0;
    if (half < count) {
#pragma unroll 16
      for (int place = sum_lane; place < kSumBlockNumel; place += kSumLanes) {
        const double value = values[warp][half][place];
        sum += value * value;
      }
    }
    for (int other = kSumLanes / 2; other > 0; other /= 2)
      sum += __shfl_down_sync(0xffffffffu, sum, other, kSumLanes);
    if (sum_lane == 0 && half < count) out[block + half] = sum;
    __syncwarp();  // before the values of the next are written
  }
}

template <class Body>
__global__ void __launch_bounds__(kThreads) run_groups(std::int64_t blocks, const Body body) {
  constexpr int kWords = sizeof(CodeTables) / sizeof(std::uint32_t);
  static_assert(kWords <= kThreads);
  __shared__ CodeTables tables;
  if (threadIdx.x < kWords)
    reinterpret_cast<std::uint32_t*>(&tables)[threadIdx.x] =
        reinterpret_cast<const std::uint32_t*>(&kCodeTables)[threadIdx.x];
  __syncthreads();
  const int lane = threadIdx.x % kSumLanes;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kGroups;
  std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * kGroups + threadIdx.x / kSumLanes;
  for (; block / 2 * 2 < blocks; block += step) {
    typename Body::Lane mine;
    mine.most[0] = mine.most[1] = 0;
    if (block < blocks) body.first(block, lane, mine, tables);
    std::int32_t most[2] = {mine.most[0], mine.most[1]};
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
      for (std::int32_t& one : most) {
        const std::int32_t other = __shfl_xor_sync(0xffffffffu, one, half, kSumLanes);
        one = other > one ? other : one;
      }
    }
    __syncwarp();  // all lanes have read what some of them write now
    if (block < blocks) body.second(block, lane, mine, most, tables);
  }
}

struct Launcher {
  template <class T>
  static T* address(T* pointer) {
    return pointer;
  }
  template <class Body>
  static void each(std::int64_t numel, const Body& body, void* stream) {
    if (numel == 0) return;
    run_each<<<blocks_for(numel, kThreads * 4), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(numel, body);
  }
  template <class Body>
  static void sums(std::int64_t blocks, const Body& body, double* out, void* stream) {
    if (blocks == 0) return;
    constexpr int kBlocks = kSumThreads / kWarp * 2;
    run_sums<<<blocks_for(blocks, kBlocks), kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(blocks, body, out);
  }
  template <class Body>
  static void groups(std::int64_t blocks, const Body& body, void* stream) {
    if (blocks == 0) return;
    // Of many, some for each thread: its tables come once.
    constexpr std::int64_t kFew = 4096, kRounds = 8;
    const int wanted = blocks_for(blocks, blocks > kFew * kRounds * kGroups ? kRounds * kGroups : kGroups);
    run_groups<<<wanted, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(blocks, body);
  }
};

const char* last_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

/// The driver may be older than this library, and the GPU than what it was compiled for.
const char* problem() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, run_each<RoundBody>);
  cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace
}  // namespace zero::optim::cuda

/// What optim/device_kernels.cpp looks for.
extern "C" __attribute__((visibility("default"))) const zero::optim::DeviceKernels* zerotorch_cuda_kernels() {
  static const zero::optim::DeviceKernels kernels =
      zero::optim::cuda::make_device_kernels<zero::optim::cuda::Launcher>(&zero::optim::cuda::last_error,
                                                                        &zero::optim::cuda::problem);
  return &kernels;
}
