#pragma once
// Products of bf16 and fp16 matrices in fp32: operands are widened exactly, products are added in fp32, and each result
// is rounded once, to nearest even. Memory: panels of a few MB per thread, whatever the size of the matrices.
#include <ATen/core/Tensor.h>

namespace zero::products {

/// What is added to a product: beta * tensor. None when `tensor` is undefined or beta is 0. `tensor` has the sizes of
/// the result (strides of 0 where it is broadcast) and its dtype.
struct Addend {
  at::Tensor tensor;
  float beta = 0;
  bool none() const { return !tensor.defined() || beta == 0; }
};

/// out[M, N] = addend + alpha * a[M, K] @ b[K, N]. All of one dtype, bf16 or fp16; any strides of `a`, `b` and the
/// addend, `out` contiguous and without overlap with them. No size is 0. Runs in libtorch's threads.
void multiply(const at::Tensor& a, const at::Tensor& b, const Addend& addend, float alpha, const at::Tensor& out);

/// The same for each of B matrices: a[B, M, K], b[B, K, N], out[B, M, N].
void multiply_batch(const at::Tensor& a, const at::Tensor& b, const Addend& addend, float alpha, const at::Tensor& out);

}  // namespace zero::products
