#pragma once
// Passes that move the bytes of the kernels of optim/kernels.h and comm/reduce_kernels.h and do next to
// nothing with them: exclusive-or with values that are masked to zero, so that memory keeps what it holds.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "optim/kernels.h"

namespace bench {

struct Probes {
  /// Reads master, both moments and gradient; writes master and both moments.
  void (*adam_master)(const zero::optim::UpdateArgs&);
  /// The same, and writes `low`.
  void (*adam_master_and_low)(const zero::optim::UpdateArgs&);
  /// Reads and writes low, remainder and both moments; reads the gradient.
  void (*adam_split)(const zero::optim::UpdateArgs&);
  /// Reads two or four slices and, unless `first`, the accumulator; writes the accumulator.
  void (*reduce)(float* accumulator, std::span<const void* const> slices, zero::DType dtype, std::int64_t numel,
                 bool first);
  /// Reads both, writes `onto`.
  void (*sum_onto)(void* onto, const void* other, std::size_t nbytes);
  void (*read)(const void* data, std::size_t nbytes);
  /// Reads `gradient` and reads and writes every stream, block by block: stream s has nbytes[s] bytes in each of
  /// `blocks` blocks, multiples of 4 and no more than the gradient has.
  void (*streams)(std::span<void* const> written, std::span<const std::size_t> nbytes, const void* gradient,
                  std::size_t gradient_nbytes, std::int64_t blocks);
};

/// "avx512", "avx2" or "generic": vectors as wide as the kernels'.
const Probes& probes_for(std::string_view isa);

}  // namespace bench
