#include "zero/lm/loss.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "zero/errors.h"
#include "zero/plan.h"

namespace zero {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Mean loss and, where they are wanted, the gradients of its sum.
struct Parts {
  Tensor loss, of_hidden, of_weight;
  double divisor = 0;
};

/// Of a gradient with rows of `width`, that are converted at a time.
std::int64_t rows_of_part(std::int64_t width) {
  return std::max<std::int64_t>(1, plan::kLossPartElements / std::max<std::int64_t>(1, width));
}

class Rows {
 public:
  Rows(const Tensor& hidden, const Tensor& weight, const Tensor& targets, std::int64_t ignore_index)
      : hidden_(hidden), weight_(weight), targets_(targets), ignore_index_(ignore_index) {}

  Parts all(std::int64_t at_a_time, double divisor, bool wants_hidden, bool wants_weight) const {
    Parts parts;
    Tensor sum = at::zeros({}, hidden_.options().dtype(at::kFloat));
    if (wants_hidden) parts.of_hidden = at::empty_like(hidden_);
    for (std::int64_t row = 0; row < hidden_.size(0); row += at_a_time) {
      const std::int64_t count = std::min(at_a_time, hidden_.size(0) - row);
      const Tensor some = hidden_.narrow(0, row, count), targets = targets_.narrow(0, row, count);
      const Tensor chances = at::log_softmax(at::linear(some, weight_).to(at::kFloat), 1);
      const auto [loss, weights] = at::nll_loss_forward(chances, targets, {}, at::Reduction::Sum, ignore_index_);
      sum.add_(loss);
      if (!wants_hidden && !wants_weight) continue;
      const Tensor gradient = to_gradient(chances, targets).to(hidden_.scalar_type());
      if (wants_hidden) {
        Tensor place = parts.of_hidden.narrow(0, row, count);
        at::mm_out(place, gradient, weight_);
      }
      if (wants_weight) add_product(parts.of_weight, gradient, some);
    }
    parts.divisor = divisor > 0 ? divisor : targets_.ne(ignore_index_).sum().item<double>();
    parts.loss = sum / parts.divisor;
    return parts;
  }

 private:
  /// Of the sum of the losses by the logits; `chances` are overwritten.
  Tensor to_gradient(const Tensor& chances, const Tensor& targets) const {
    const Tensor counts = targets.ne(ignore_index_).unsqueeze(1);
    const Tensor place = targets.unsqueeze(1).mul(counts);  // in range, where it does not count
    Tensor gradient = chances.exp_().mul_(counts);
    return gradient.scatter_add_(1, place, counts.to(at::kFloat).neg_());
  }

  /// Products of 16 bits are made some classes at a time: to be added in fp32 they are copied.
  static void add_product(Tensor& sum, const Tensor& gradient, const Tensor& some) {
    const Tensor by_class = gradient.t();
    if (some.scalar_type() == at::kFloat || some.scalar_type() == at::kDouble) {
      sum = sum.defined() ? sum.addmm_(by_class, some) : at::mm(by_class, some);
      return;
    }
    if (!sum.defined()) sum = at::zeros({by_class.size(0), some.size(1)}, some.options().dtype(at::kFloat));
    const std::int64_t step = rows_of_part(some.size(1));
    for (std::int64_t row = 0; row < sum.size(0); row += step) {
      const std::int64_t count = std::min(step, sum.size(0) - row);
      sum.narrow(0, row, count).add_(at::mm(by_class.narrow(0, row, count), some));
    }
  }

  const Tensor &hidden_, &weight_, &targets_;
  const std::int64_t ignore_index_;
};

/// gradient * scale, rounded once; some rows at a time, because an operator with another output dtype makes a whole
/// copy first.
Tensor scaled(const Tensor& gradient, const Tensor& scale, at::ScalarType dtype) {
  if (gradient.scalar_type() == dtype && dtype == at::kFloat) return gradient * scale;
  Tensor out = at::empty_like(gradient, gradient.options().dtype(dtype));
  const std::int64_t step = rows_of_part(gradient.size(1));
  for (std::int64_t row = 0; row < gradient.size(0); row += step) {
    const std::int64_t count = std::min(step, gradient.size(0) - row);
    out.narrow(0, row, count).copy_(gradient.narrow(0, row, count).to(at::kFloat) * scale);
  }
  return out;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                        std::int64_t at_a_time, std::int64_t ignore_index, double divisor, bool with_gradients) {
    Parts parts = Rows(hidden, weight, targets, ignore_index)
                      .all(at_a_time, divisor, with_gradients && hidden.requires_grad(),
                           with_gradients && weight.requires_grad());
    context->save_for_backward({parts.of_hidden, parts.of_weight});
    context->saved_data["divisor"] = parts.divisor;
    context->saved_data["weight_dtype"] = static_cast<std::int64_t>(weight.scalar_type());
    return parts.loss;
  }
  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    if (at::GradMode::is_enabled()) {
      throw ModelError(
          "linear_cross_entropy: gradients of gradients (create_graph) are not computed; use cross_entropy(linear())");
    }
    const variable_list saved = context->get_saved_variables();
    const double divisor = context->saved_data["divisor"].toDouble();
    const Tensor scale = divisor > 0 ? outputs[0] / divisor : at::zeros_like(outputs[0]);  // as cross_entropy's
    variable_list gradients(7);
    if (saved[0].defined()) gradients[0] = scaled(saved[0], scale, saved[0].scalar_type());
    if (saved[1].defined()) {
      const auto dtype = static_cast<at::ScalarType>(context->saved_data["weight_dtype"].toInt());
      gradients[1] = scaled(saved[1], scale, dtype);
    }
    return gradients;
  }
};

void check(const Tensor& hidden, const Tensor& weight, const Tensor& targets) {
  const bool fits = hidden.dim() >= 1 && weight.dim() == 2 && hidden.size(-1) == weight.size(1) &&
                    hidden.scalar_type() == weight.scalar_type() && at::isFloatingType(hidden.scalar_type()) &&
                    targets.scalar_type() == at::kLong &&
                    targets.sizes().equals(hidden.sizes().slice(0, static_cast<std::size_t>(hidden.dim() - 1)));
  if (fits) return;
  const auto text = [](const Tensor& tensor) {
    return fmt::format("[{}] {}", fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()));
  };
  throw ModelError(
      fmt::format("linear_cross_entropy: got hidden {}, weight {}, targets {}; want [..., D] and [V, D] of one "
                  "floating-point dtype, and [...] of int64",
                  text(hidden), text(weight), text(targets)));
}

Tensor linear_cross_entropy_of(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                               const LinearCrossEntropyOptions& options) {
  check(hidden, weight, targets);
  const Tensor rows = hidden.reshape({-1, hidden.size(-1)}), goals = targets.reshape({-1});
  const std::int64_t at_a_time = rows_at_a_time(weight.size(0), options);
  if (!(options.divisor >= 0))
    throw ModelError(fmt::format("linear_cross_entropy: divisor is {}, want 0 or more", options.divisor));
  if (at_a_time >= rows.size(0)) {
    const bool sums = options.divisor > 0;
    const Tensor loss = at::cross_entropy_loss(at::linear(rows, weight).to(at::kFloat), goals, {},
                                               sums ? at::Reduction::Sum : at::Reduction::Mean, options.ignore_index);
    return sums ? loss / options.divisor : loss;
  }
  return LinearCrossEntropy::apply(rows, weight, goals, at_a_time, options.ignore_index, options.divisor,
                                   at::GradMode::is_enabled());
}

}  // namespace

std::int64_t rows_at_a_time(std::int64_t vocab, const LinearCrossEntropyOptions& options) {
  constexpr std::int64_t kFewest = 64;  // or matrix products are slow
  if (options.rows < 0) throw ModelError(fmt::format("linear_cross_entropy: rows is {}, want 0 or more", options.rows));
  return options.rows > 0 ? options.rows : std::max(kFewest, kLogitsNbytes / (4 * std::max<std::int64_t>(1, vocab)));
}

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                            const LinearCrossEntropyOptions& options) {
  const c10::DeviceType device = hidden.device().type();
  if (at::autocast::is_autocast_enabled(device)) {
    const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
    const Tensor narrow = hidden.to(dtype), narrow_weight = weight.to(dtype);
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    return linear_cross_entropy_of(narrow, narrow_weight, targets, options);
  }
  return linear_cross_entropy_of(hidden, weight, targets, options);
}

}  // namespace zero
