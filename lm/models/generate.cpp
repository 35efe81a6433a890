#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "models/sampling.h"
#include "zero/errors.h"
#include "zero/lm/causal_lm.h"
#include "zero/lm/models.h"

namespace zero {
namespace {

using Text = std::vector<std::int64_t>;

/// text[first:], [1, n].
at::Tensor tokens_from(const Text& text, std::int64_t first) {
  const at::Tensor tokens = at::empty({1, static_cast<std::int64_t>(text.size()) - first}, at::kLong);
  std::copy(text.begin() + first, text.end(), tokens.mutable_data_ptr<std::int64_t>());
  return tokens;
}

at::Tensor last_logits(const at::Tensor& logits, std::int64_t length) {
  if (logits.dim() != 3 || logits.size(0) != 1 || logits.size(1) != length || logits.size(2) < 1) {
    throw ModelError(fmt::format("generate: got logits of {} dimensions and {} elements, want [1, {}, vocab]",
                                 logits.dim(), logits.numel(), length));
  }
  return logits.select(0, 0).select(0, length - 1);
}

Text continue_with(const std::function<at::Tensor(const at::Tensor&)>& forward, Text text,
                   const GenerateOptions& options, std::int64_t vocab) {
  return models::continue_text(std::move(text), options, vocab, [&](const Text& so_far) {
    const auto length = static_cast<std::int64_t>(so_far.size());
    const std::int64_t seen = std::min(options.context, length);
    return last_logits(forward(tokens_from(so_far, length - seen)), seen);
  });
}

}  // namespace

std::string generate(const std::function<at::Tensor(const at::Tensor&)>& forward, std::string_view prompt,
                     const GenerateOptions& options) {
  constexpr std::int64_t kBytes = 256;
  Text text;
  for (const char c : prompt) text.push_back(static_cast<unsigned char>(c));
  if (text.empty()) text.push_back(0);
  const auto added = continue_with(forward, std::move(text), options, kBytes);
  return {added.begin(), added.end()};
}

Text generate_tokens(const std::function<at::Tensor(const at::Tensor&)>& forward, Text prompt,
                     const GenerateOptions& options) {
  if (prompt.empty()) throw ConfigError("generate_tokens: the prompt is empty; give at least one token");
  return continue_with(forward, std::move(prompt), options, std::numeric_limits<std::int64_t>::max());
}

Text models::generate(CausalLM& model, Text prompt, const GenerateOptions& options) {
  if (prompt.empty()) throw ConfigError("generate: the prompt is empty; give at least one token");
  KeyValueCache cache;
  const at::Device device = model->parameters().front().device();
  return continue_text(std::move(prompt), options, model->config.vocab, [&](const Text& so_far) {
    return model->next_logits(tokens_from(so_far, cache.length()).to(device), cache).select(0, 0);
  });
}

}  // namespace zero
