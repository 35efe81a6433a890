#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "data/random.h"
#include "zero/errors.h"
#include "zero/models.h"

namespace zero {
namespace {

constexpr std::int64_t kBytes = 256;

void check_options(const GenerateOptions& options) {
  const bool fits = options.length >= 0 && options.context >= 1 && options.top_k >= 0 && options.temperature >= 0 &&
                    std::isfinite(options.temperature);
  if (fits) return;
  throw ConfigError(
      fmt::format("generate: got length {}, context {}, top_k {}, temperature {}; want length, top_k and "
                  "temperature of at least 0 and context of at least 1",
                  options.length, options.context, options.top_k, options.temperature));
}

/// Draws an index from softmax(logits / temperature) over the top_k largest, in double precision and in a
/// fixed order, so that it depends on the logits and the random number only.
std::size_t sample(std::span<const double> logits, const GenerateOptions& options, data::Random& random) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t wanted = options.temperature == 0 ? 1
                             : options.top_k > 0      ? std::min(order.size(), static_cast<std::size_t>(options.top_k))
                                                      : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted), order.end(),
                    [&](auto a, auto b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (options.temperature == 0) return order.front();
  order.resize(wanted);
  std::vector<double> weights(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    weights[i] = std::exp((logits[order[i]] - logits[order[0]]) / options.temperature);
  }
  double left = random.uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

/// Logits of the last position as doubles, of at most `most` tokens.
std::vector<double> last_logits(const at::Tensor& logits, std::int64_t length, std::int64_t most) {
  if (logits.dim() != 3 || logits.size(0) != 1 || logits.size(1) != length || logits.size(2) < 1) {
    throw ModelError(fmt::format("generate: got logits of {} dimensions and {} elements, want [1, {}, vocab]",
                                 logits.dim(), logits.numel(), length));
  }
  const at::Tensor last = logits.select(0, 0).select(0, length - 1).to(at::kCPU, at::kDouble).contiguous();
  const auto count = static_cast<std::size_t>(std::min(last.size(0), most));
  const double* values = last.const_data_ptr<double>();
  if (!std::all_of(values, values + count, [](double x) { return !std::isnan(x); })) {
    throw ModelError("generate: got logits that are not numbers; the model has diverged or was not loaded");
  }
  return {values, values + count};
}

std::vector<std::int64_t> continue_with(const std::function<at::Tensor(const at::Tensor&)>& forward,
                                        std::vector<std::int64_t> text, const GenerateOptions& options,
                                        std::int64_t vocab) {
  check_options(options);
  const at::NoGradGuard no_grad;
  data::Random random(options.seed);
  const auto start = static_cast<std::ptrdiff_t>(text.size());
  for (std::int64_t i = 0; i < options.length; ++i) {
    const auto seen = std::min<std::int64_t>(options.context, static_cast<std::int64_t>(text.size()));
    const at::Tensor tokens = at::empty({1, seen}, at::kLong);
    std::copy(text.end() - seen, text.end(), tokens.mutable_data_ptr<std::int64_t>());
    const std::vector<double> logits = last_logits(forward(tokens), seen, vocab);
    text.push_back(static_cast<std::int64_t>(sample(logits, options, random)));
  }
  text.erase(text.begin(), text.begin() + start);
  return text;
}

}  // namespace

std::string generate(const std::function<at::Tensor(const at::Tensor&)>& forward, std::string_view prompt,
                     const GenerateOptions& options) {
  std::vector<std::int64_t> text;
  for (const char c : prompt) text.push_back(static_cast<unsigned char>(c));
  if (text.empty()) text.push_back(0);
  const auto added = continue_with(forward, std::move(text), options, kBytes);
  return {added.begin(), added.end()};
}

std::vector<std::int64_t> generate_tokens(const std::function<at::Tensor(const at::Tensor&)>& forward,
                                          std::vector<std::int64_t> prompt, const GenerateOptions& options) {
  if (prompt.empty()) throw ConfigError("generate_tokens: the prompt is empty; give at least one token");
  return continue_with(forward, std::move(prompt), options, std::numeric_limits<std::int64_t>::max());
}

}  // namespace zero
