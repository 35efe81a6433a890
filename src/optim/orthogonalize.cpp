#include "optim/orthogonalize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>

#include <cmath>

namespace zero::optim {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr int kSteps = 5;
constexpr int kRestart = 2;  ///< of the Gram iterations: their error would grow

/// b x + c x x
at::Tensor polynomial(const at::Tensor& x) { return (x * kB).add_(at::matmul(x, x), kC); }

at::Tensor iterate(at::Tensor x) {
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor gram = at::matmul(x, x.mT());
    x = (x * kA).add_(at::matmul(polynomial(gram), x));
  }
  return x;
}

/// `wide`: more columns than rows.
at::Tensor iterate_on_gram(at::Tensor wide) {
  at::Tensor gram = at::matmul(wide, wide.mT()), product;
  for (int step = 0; step < kSteps; ++step) {
    if (step == kRestart) {
      wide = at::matmul(product, wide);
      gram = at::matmul(wide, wide.mT());
      product = at::Tensor();
    }
    const at::Tensor z = polynomial(gram);
    if (product.defined()) {
      product = (product * kA).add_(at::matmul(z, product));
    } else {
      product = z.clone();
      product.diagonal(0, -2, -1).add_(kA);
    }
    if (step + 1 == kSteps || step + 1 == kRestart) continue;
    const at::Tensor next = (gram * kA).add_(at::matmul(z, gram));
    gram = (next * kA).add_(at::matmul(z, next));
  }
  return at::matmul(product, wide);
}

}  // namespace

at::Tensor orthogonalized(const at::Tensor& matrix, NewtonSchulz method) {
  const at::NoGradGuard no_grad;
  const auto rows_of_last = static_cast<double>(matrix.size(-2)),
             columns_of_last = static_cast<double>(matrix.size(-1));
  const double scale = rows_of_last > columns_of_last ? std::sqrt(rows_of_last / columns_of_last) : 1.0;
  at::Tensor x = matrix.dim() == 4 ? matrix.reshape({matrix.size(0), -1}) : matrix;
  const bool tall = x.size(-2) > x.size(-1);
  if (tall) x = x.mT();
  x = x / (x.square().sum({-2, -1}, /*keepdim=*/true).sqrt() + 1e-7);
  x = method == NewtonSchulz::kGram && x.size(-1) > x.size(-2) ? iterate_on_gram(x) : iterate(x);
  if (tall) x = x.mT();
  return (x * scale).reshape(matrix.sizes());
}

}  // namespace zero::optim
