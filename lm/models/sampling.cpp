#include "models/sampling.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "data/random.h"
#include "zero/errors.h"

namespace zero::models {
namespace {

void check_options(const GenerateOptions& options) {
  const bool fits = options.length >= 0 && options.context >= 1 && options.top_k >= 0 && options.temperature >= 0 &&
                    std::isfinite(options.temperature) && options.top_p > 0 && options.top_p <= 1;
  if (fits) return;
  throw ConfigError(
      fmt::format("generate: got length {}, context {}, top_k {}, top_p {}, temperature {}; want length, top_k and "
                  "temperature of at least 0, context of at least 1 and top_p above 0 and at most 1",
                  options.length, options.context, options.top_k, options.top_p, options.temperature));
}

/// The likeliest tokens that there is a choice among, likeliest first; equal ones by number.
std::vector<std::size_t> candidates(std::span<const double> logits, const GenerateOptions& options) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t wanted = options.temperature == 0 ? 1
                             : options.top_k > 0      ? std::min(order.size(), static_cast<std::size_t>(options.top_k))
                                                      : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted), order.end(),
                    [&](auto a, auto b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  order.resize(wanted);
  return order;
}

/// The first of `weights`, which fall, that make up the share top_p of their sum.
std::size_t nucleus(std::span<const double> weights, double top_p) {
  if (top_p == 1) return weights.size();
  const double enough = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t count = 0;
  for (double sum = 0; count < weights.size() && sum < enough; ++count) sum += weights[count];
  return count;
}

/// Draws a token from softmax(logits / temperature) over the candidates, in double precision and in a fixed order, so
/// that it depends on the logits and the random number only.
std::size_t sample(std::span<const double> logits, const GenerateOptions& options, data::Random& random) {
  const std::vector<std::size_t> order = candidates(logits, options);
  if (options.temperature == 0) return order.front();
  std::vector<double> weights(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    weights[i] = std::exp((logits[order[i]] - logits[order[0]]) / options.temperature);
  weights.resize(nucleus(weights, options.top_p));
  double left = random.uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[weights.size() - 1];
}

std::vector<double> doubles(const at::Tensor& logits, std::int64_t most) {
  const at::Tensor all = logits.to(at::kCPU, at::kDouble).contiguous();
  const auto count = static_cast<std::size_t>(std::min(all.numel(), most));
  const double* values = all.const_data_ptr<double>();
  if (!std::all_of(values, values + count, [](double x) { return !std::isnan(x); })) {
    throw ModelError("generate: got logits that are not numbers; the model has diverged or was not loaded");
  }
  return {values, values + count};
}

}  // namespace

std::vector<std::int64_t> continue_text(std::vector<std::int64_t> text, const GenerateOptions& options,
                                        std::int64_t vocab,
                                        const std::function<at::Tensor(const std::vector<std::int64_t>& text)>& next) {
  check_options(options);
  const at::NoGradGuard no_grad;
  data::Random random(options.seed);
  const auto start = static_cast<std::ptrdiff_t>(text.size());
  for (std::int64_t i = 0; i < options.length; ++i) {
    const auto token = static_cast<std::int64_t>(sample(doubles(next(text), vocab), options, random));
    if (std::ranges::find(options.stop, token) != options.stop.end()) break;
    text.push_back(token);
    if (options.on_token) options.on_token(token);
  }
  text.erase(text.begin(), text.begin() + start);
  return text;
}

}  // namespace zero::models
