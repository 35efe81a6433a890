#include "intercept/flop_formulas.h"

#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace zero::intercept {
namespace {

using Arguments = c10::ArrayRef<const c10::IValue>;
using Formula = std::int64_t (*)(Arguments);

at::IntArrayRef sizes(Arguments arguments, std::size_t index) { return arguments[index].toTensor().sizes(); }

/// [.., m, k] times a matrix of n columns, or a vector.
template <std::size_t first>
std::int64_t product(Arguments arguments) {
  const at::Tensor& right = arguments[first + 1].toTensor();
  return 2 * arguments[first].toTensor().numel() * (right.dim() > 1 ? right.size(-1) : 1);
}

/// Every element of the input (transposed) or of the output meets one filter.
std::int64_t convolution_of(std::int64_t places, at::IntArrayRef weight) {
  return 2 * places * c10::multiply_integers(weight);
}

/// Samples and places of the output: [N, C, spatial...].
std::int64_t places_of(at::IntArrayRef tensor) { return tensor[0] * c10::multiply_integers(tensor.slice(2)); }

/// (input, weight, bias, stride, padding, dilation, transposed, ...)
std::int64_t convolution(Arguments arguments) {
  const auto input = sizes(arguments, 0), weight = sizes(arguments, 1);
  if (arguments[6].toBool()) return convolution_of(places_of(input), weight);
  const auto stride = arguments[3].toIntVector(), padding = arguments[4].toIntVector(),
             dilation = arguments[5].toIntVector();
  const auto of = [](const std::vector<std::int64_t>& values, std::size_t d) {
    return values.size() == 1 ? values[0] : values[d];
  };
  std::int64_t places = input[0];
  for (std::size_t d = 0; d + 2 < input.size(); ++d)
    places *= (input[d + 2] + 2 * of(padding, d) - of(dilation, d) * (weight[d + 2] - 1) - 1) / of(stride, d) + 1;
  return convolution_of(places, weight);
}

/// (gradient, input, weight, bias sizes, stride, padding, dilation, transposed, output padding, groups, mask): the
/// gradients of input and weight take what forward took, each.
std::int64_t convolution_backward(Arguments arguments) {
  const bool transposed = arguments[7].toBool();
  const std::int64_t forward = convolution_of(places_of(sizes(arguments, transposed ? 1 : 0)), sizes(arguments, 2));
  const auto wanted = arguments[10].toBoolList();
  return forward * (wanted[0] + wanted[1]);
}

/// (query [b, h, s_q, d], key [b, h_kv, s_k, d], value [b, h_kv, s_k, d_v]): scores with the key, output with the
/// value. Whole scores, also where a causal kernel leaves half of them out.
template <std::size_t query, std::int64_t with_key, std::int64_t with_value>
std::int64_t attention(Arguments arguments) {
  const auto q = sizes(arguments, query);
  const std::int64_t scores = q[0] * q[1] * q[2] * sizes(arguments, query + 1)[2];
  return 2 * scores * (with_key * q[3] + with_value * sizes(arguments, query + 2)[3]);
}

constexpr Formula kAttention = attention<0, 1, 1>;
/// (gradient, query, key, value, ...): the scores again, and their gradient; those of query and key; that of value.
constexpr Formula kAttentionBackward = attention<1, 3, 2>;

const std::unordered_map<std::string_view, Formula>& formulas() {
  static const auto& table = *new std::unordered_map<std::string_view, Formula>{
      {"aten::mm", product<0>},
      {"aten::bmm", product<0>},
      {"aten::mv", product<0>},
      {"aten::addmm", product<1>},
      {"aten::addmm_", product<1>},
      {"aten::_addmm_activation", product<1>},
      {"aten::baddbmm", product<1>},
      {"aten::baddbmm_", product<1>},
      {"aten::addbmm", product<1>},
      {"aten::addmv", product<1>},
      {"aten::addmv_", product<1>},
      {"aten::convolution", convolution},
      {"aten::_convolution", convolution},
      {"aten::convolution_overrideable", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", kAttention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", kAttentionBackward},
      {"aten::_scaled_dot_product_flash_attention", kAttention},
      {"aten::_scaled_dot_product_flash_attention_backward", kAttentionBackward},
      {"aten::_scaled_dot_product_efficient_attention", kAttention},
      {"aten::_scaled_dot_product_efficient_attention_backward", kAttentionBackward},
      {"aten::_scaled_dot_product_cudnn_attention", kAttention},
      {"aten::_scaled_dot_product_cudnn_attention_backward", kAttentionBackward},
  };
  return table;
}

}  // namespace

std::optional<std::int64_t> flops_of(std::string_view op, c10::ArrayRef<const c10::IValue> arguments) {
  const auto found = formulas().find(op);
  if (found == formulas().end()) return std::nullopt;
  return found->second(arguments);
}

}  // namespace zero::intercept
