#pragma once
// DeviceKernels: the passes as kernels of a device, with the bits of the host's (optim/kernels.h): the same operations
// on every element in the same order, sums in the same lanes. CUDA's are in a library of their own, which is loaded
// where there is one (optim/device_kernels.cpp), and needs nothing of libtorch.

#include <array>

#include "optim/kernels.h"
#include "optim/rule.h"

namespace zero::optim {

/// All pointers are to the device's memory; what they launch runs in `stream`, a stream of the device's own kind, in
/// order.
struct DeviceKernels {
  /// Of this table; another one is not used.
  static constexpr int kVersion = 3;

  int version = kVersion;
  /// As Passes::reduce; `block_sumsq` is the device's memory, too, or null.
  void (*reduce)(const ReduceArgs& args, void* stream) = nullptr;
  void (*block_sumsq)(const void* values, DType dtype, std::int64_t numel, double* out, void* stream) = nullptr;
  /// As Passes::update; `formats`: of the states.
  using Update = void (*)(const UpdateArgs& args, const StateFormat* formats, const Hyper& hyper, void* stream);
  /// By algorithm; of those with two passes the first.
  std::array<Update, kAlgorithms> updates = {};
  Update take_direction = nullptr;  ///< the second pass
  void (*split)(const float* master, std::uint16_t* low, std::uint16_t* remainder, std::int64_t numel,
                void* stream) = nullptr;
  void (*join)(const std::uint16_t* low, const std::uint16_t* remainder, float* master, std::int64_t numel,
               void* stream) = nullptr;
  void (*round)(const float* master, void* low, DType param_dtype, std::int64_t numel, void* stream) = nullptr;
  /// What the last launch of this thread was answered; null: well.
  const char* (*error)() = nullptr;
  /// Why they cannot run on the current device of this thread; null: they can.
  const char* (*problem)() = nullptr;
};

/// Null where there are none for devices of this type. Lives as long as the process.
const DeviceKernels* device_kernels(const c10::Device& device);
/// Of devices of this type, from here on; null: none.
void register_device_kernels(const c10::Device& device, const DeviceKernels* kernels);

/// The key of an update that draws its rounding.
inline std::uint64_t noise_key(std::uint64_t seed, std::int64_t step) {
  return (seed ^ 0xA0761D6478BD642Full) * 0xE7037ED1A0B428DBull + static_cast<std::uint64_t>(step);
}

}  // namespace zero::optim
