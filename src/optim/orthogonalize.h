#pragma once
// Muon's orthogonalisation of a matrix by five Newton-Schulz iterations (Jordan et al., 2024), as DeepSpeed
// has it but in fp32: there the iterations run in 16 bits where the device has them.
#include <ATen/core/Tensor.h>

namespace zero::optim {

enum class NewtonSchulz : std::uint8_t {
  kGram,  ///< on the small Gram matrix, where that is smaller: the same up to rounding
  kStandard,
};

/// Of `matrix`, fp32 of two dimensions; of three and more, of every matrix of the last two; four are [out,
/// rest]. Times sqrt(rows / columns) where the last two dimensions have more rows. A new tensor of the same
/// shape.
at::Tensor orthogonalized(const at::Tensor& matrix, NewtonSchulz method);

}  // namespace zero::optim
