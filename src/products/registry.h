#pragma once
// Which operators of libtorch's CPU backend are computed in fp32, and for which dtypes.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace zero::products {

/// True while bf16 (fp16) products are computed in fp32. Any thread.
bool is_taken(at::ScalarType dtype);

inline bool is_taken(const at::Tensor& tensor) { return is_taken(tensor.scalar_type()); }

/// The kernels of one kind of operators. Each takes over what is_taken() and hands all else to libtorch's own.
void register_matrix_products(torch::Library& cpu);
void register_attention(torch::Library& cpu);
void register_convolutions(torch::Library& cpu);
void register_recurrent(torch::Library& cpu, torch::Library& autograd);

}  // namespace zero::products
