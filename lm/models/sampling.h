#pragma once
// The token that follows, drawn from logits.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "zero/lm/models.h"

namespace zero::models {

/// Continues `text`, which is not empty. `next`: the logits of the token after `text`, [vocab] on any device in any
/// floating dtype. Only the first `vocab` tokens are drawn. Returns what was added. Throws ConfigError for options out
/// of range, ModelError for logits that are not numbers.
std::vector<std::int64_t> continue_text(std::vector<std::int64_t> text, const GenerateOptions& options,
                                        std::int64_t vocab,
                                        const std::function<at::Tensor(const std::vector<std::int64_t>& text)>& next);

}  // namespace zero::models
