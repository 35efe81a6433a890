#pragma once
// Values of any dtype as fp32, a chunk at a time.
#include <cstdint>
#include <vector>

#include "optim/kernels.h"
#include "zero/dtype.h"

namespace zero::sharding {

/// Elements of a chunk, which stays in a core's cache. Whole blocks of all formats and of sums of squares.
inline constexpr std::int64_t kChunkNumel = 16 * optim::kSumBlockNumel;

/// One thread at a time.
class Widened {
 public:
  /// [numel] values of `dtype` at `low`, at most a chunk: where they are if that is fp32, else in data(). Valid until
  /// the next call.
  const float* of(const void* low, DType dtype, std::int64_t numel) {
    if (dtype == DType::kFloat32) return static_cast<const float*>(low);
    optim::kernels().widen_state(optim::format_of(dtype), low, data(), numel);
    return data();
  }
  /// Room for a chunk.
  float* data() { return room_.data(); }

 private:
  std::vector<float> room_ = std::vector<float>(kChunkNumel);
};

}  // namespace zero::sharding
