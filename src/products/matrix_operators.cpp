// mm, addmm, bmm, baddbmm and addmv, to which linear, matmul, einsum and their gradients come down.
#include <ATen/native/Resize.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/addmv_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include "products/matrix_product.h"
#include "products/panels.h"
#include "products/registry.h"

namespace zero::products {
namespace {

using at::Scalar;
using at::Tensor;

/// Of forward-mode derivatives some have no memory: they are zero.
bool is_ordinary(const Tensor& tensor) { return tensor.numel() > 0 && !tensor._is_zerotensor(); }

/// One row by a transposed weight, as in a layer that generates: libtorch reads the weight once and sums in fp32, on
/// every CPU, in a fraction of the time that widening takes.
bool is_row_by_transposed(const Tensor& a, const Tensor& b) {
  return a.dim() == 2 && a.size(0) == 1 && b.size(0) > 1 && b.size(1) > 1 && a.stride(1) == 1 && b.stride(0) == 1;
}

/// Two operands of a product that is ours; whatever is wrong with others is for libtorch to say.
bool takes_product(const Tensor& a, const Tensor& b, std::int64_t dimensions) {
  return is_taken(a) && a.scalar_type() == b.scalar_type() && a.dim() == dimensions && b.dim() == dimensions &&
         is_ordinary(a) && is_ordinary(b) && a.size(dimensions - 1) == b.size(dimensions - 2) &&
         (dimensions == 2 || a.size(0) == b.size(0)) && !is_row_by_transposed(a, b);
}

/// What can be added to a result of these sizes.
bool can_be_added(const Tensor& self, at::ScalarType dtype, at::IntArrayRef sizes) {
  if (self.scalar_type() != dtype || self.dim() > static_cast<std::int64_t>(sizes.size())) return false;
  for (std::int64_t d = 1; d <= self.dim(); ++d) {
    const std::int64_t size = self.size(self.dim() - d);
    if (size != 1 && size != sizes[sizes.size() - static_cast<std::size_t>(d)]) return false;
  }
  return true;
}

/// Into `out` as operators with an out argument do: resized, and in its own layout.
void copy_to(Tensor& out, const Tensor& result) {
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
}

bool takes_out(const Tensor& out, const Tensor& like) { return out.scalar_type() == like.scalar_type(); }

at::DimVector sizes_of(const Tensor& a, const Tensor& b) {
  return a.dim() == 2 ? at::DimVector{a.size(0), b.size(1)} : at::DimVector{a.size(0), a.size(1), b.size(2)};
}

Tensor product(const Tensor& a, const Tensor& b, const Addend& addend, float alpha) {
  Tensor out = at::empty(sizes_of(a, b), a.options());
  (a.dim() == 2 ? multiply : multiply_batch)(a, b, addend, alpha, out);
  return out;
}

/// self <- beta * self + alpha * a @ b, of which every element is read before it is written.
void product_in_place(Tensor& self, const Tensor& a, const Tensor& b, float beta, float alpha) {
  const bool alone = self.is_contiguous() && !self.is_alias_of(a) && !self.is_alias_of(b);
  if (!alone) {
    self.copy_(product(a, b, {self, beta}, alpha));
    return;
  }
  (a.dim() == 2 ? multiply : multiply_batch)(a, b, {self, beta}, alpha, self);
}

/// libtorch's own kernels of matrices, and of batches of them.
struct Matrices {
  static constexpr std::int64_t kDimensions = 2;
  static constexpr auto kProduct = &at::cpu::mm;
  static constexpr auto kProductOut = &at::cpu::mm_outf;
  static constexpr auto kSum = &at::cpu::addmm;
  static constexpr auto kSumOut = &at::cpu::addmm_outf;
  static constexpr auto kSumInPlace = &at::cpu::addmm_;
};
struct Batches {
  static constexpr std::int64_t kDimensions = 3;
  static constexpr auto kProduct = &at::cpu::bmm;
  static constexpr auto kProductOut = &at::cpu::bmm_outf;
  static constexpr auto kSum = &at::cpu::baddbmm;
  static constexpr auto kSumOut = &at::cpu::baddbmm_outf;
  static constexpr auto kSumInPlace = &at::cpu::baddbmm_;
};

template <typename Own>
Tensor product_of(const Tensor& a, const Tensor& b) {
  return takes_product(a, b, Own::kDimensions) ? product(a, b, {}, 1) : Own::kProduct(a, b);
}

template <typename Own>
Tensor& product_out(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!takes_product(a, b, Own::kDimensions) || !takes_out(out, a)) return Own::kProductOut(a, b, out);
  copy_to(out, product(a, b, {}, 1));
  return out;
}

bool takes_sum(const Tensor& self, const Tensor& a, const Tensor& b, std::int64_t dimensions) {
  return takes_product(a, b, dimensions) && can_be_added(self, a.scalar_type(), sizes_of(a, b));
}

/// beta * self + alpha * a @ b.
Tensor sum(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return product(a, b, {self.expand(sizes_of(a, b)), beta.toFloat()}, alpha.toFloat());
}

template <typename Own>
Tensor sum_of(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return takes_sum(self, a, b, Own::kDimensions) ? sum(self, a, b, beta, alpha) : Own::kSum(self, a, b, beta, alpha);
}

template <typename Own>
Tensor& sum_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                Tensor& out) {
  if (!takes_sum(self, a, b, Own::kDimensions) || !takes_out(out, a)) return Own::kSumOut(self, a, b, beta, alpha, out);
  copy_to(out, sum(self, a, b, beta, alpha));
  return out;
}

template <typename Own>
Tensor& sum_in_place(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (!takes_sum(self, a, b, Own::kDimensions) || self.sizes() != at::IntArrayRef(sizes_of(a, b)))
    return Own::kSumInPlace(self, a, b, beta, alpha);
  product_in_place(self, a, b, beta.toFloat(), alpha.toFloat());
  return self;
}

bool takes_vector(const Tensor& self, const Tensor& matrix, const Tensor& vector) {
  return is_taken(matrix) && matrix.scalar_type() == vector.scalar_type() && matrix.dim() == 2 && vector.dim() == 1 &&
         is_ordinary(matrix) && is_ordinary(vector) && matrix.size(1) == vector.size(0) &&
         can_be_added(self, matrix.scalar_type(), {matrix.size(0)});
}

Tensor vector_product(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                      const Scalar& alpha) {
  const Tensor row = self.expand({matrix.size(0)}).unsqueeze(0);
  return sum_of<Matrices>(row, vector.unsqueeze(0), matrix.t(), beta, alpha).squeeze(0);
}

Tensor addmv(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta, const Scalar& alpha) {
  if (!takes_vector(self, matrix, vector)) return at::cpu::addmv(self, matrix, vector, beta, alpha);
  return vector_product(self, matrix, vector, beta, alpha);
}

Tensor& addmv_out(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  if (!takes_vector(self, matrix, vector) || !takes_out(out, matrix))
    return at::cpu::addmv_outf(self, matrix, vector, beta, alpha, out);
  copy_to(out, vector_product(self, matrix, vector, beta, alpha));
  return out;
}

Tensor& addmv_(Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta, const Scalar& alpha) {
  if (!takes_vector(self, matrix, vector) || self.numel() != matrix.size(0))
    return at::cpu::addmv_(self, matrix, vector, beta, alpha);
  self.copy_(vector_product(self, matrix, vector, beta, alpha));
  return self;
}

}  // namespace

void register_matrix_products(torch::Library& cpu) {
  cpu.impl("mm", TORCH_FN(product_of<Matrices>));
  cpu.impl("mm.out", TORCH_FN(product_out<Matrices>));
  cpu.impl("bmm", TORCH_FN(product_of<Batches>));
  cpu.impl("bmm.out", TORCH_FN(product_out<Batches>));
  cpu.impl("addmm", TORCH_FN(sum_of<Matrices>));
  cpu.impl("addmm.out", TORCH_FN(sum_out<Matrices>));
  cpu.impl("addmm_", TORCH_FN(sum_in_place<Matrices>));
  cpu.impl("baddbmm", TORCH_FN(sum_of<Batches>));
  cpu.impl("baddbmm.out", TORCH_FN(sum_out<Batches>));
  cpu.impl("baddbmm_", TORCH_FN(sum_in_place<Batches>));
  cpu.impl("addmv", TORCH_FN(addmv));
  cpu.impl("addmv.out", TORCH_FN(addmv_out));
  cpu.impl("addmv_", TORCH_FN(addmv_));
}

}  // namespace zero::products
