#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>

#include "zero/errors.h"
#include "zero/lm/causal_lm.h"

namespace zero::models {
namespace {

/// `kept`, or a larger tensor with its first `length` positions, where `wanted` do not fit.
at::Tensor with_room(const at::Tensor& kept, const at::Tensor& more, std::int64_t length, std::int64_t wanted) {
  constexpr std::int64_t kLeast = 64;
  if (kept.defined() && kept.size(2) >= wanted) return kept;
  const std::int64_t capacity = std::max({kLeast, wanted, kept.defined() ? 2 * kept.size(2) : 0});
  at::Tensor grown = at::empty({more.size(0), more.size(1), capacity, more.size(3)}, more.options());
  if (length > 0) grown.narrow(2, 0, length).copy_(kept.narrow(2, 0, length));
  return grown;
}

}  // namespace

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(std::size_t layer, const at::Tensor& keys,
                                                        const at::Tensor& values) {
  if (layer >= layers_.size()) layers_.resize(layer + 1);
  Layer& of = layers_[layer];
  const bool fits = !of.keys.defined() ? length_ == 0
                                       : of.keys.size(0) == keys.size(0) && of.keys.size(1) == keys.size(1) &&
                                             of.keys.size(3) == keys.size(3) && of.keys.dtype() == keys.dtype();
  if (!fits && length_ > 0) {
    throw ModelError(
        fmt::format("KeyValueCache: it has {} positions of another model or batch; clear() it before", length_));
  }
  if (!fits) of = {};
  const std::int64_t count = keys.size(2), length = length_ + count;
  of.keys = with_room(of.keys, keys, length_, length);
  of.values = with_room(of.values, values, length_, length);
  of.keys.narrow(2, length_, count).copy_(keys);
  of.values.narrow(2, length_, count).copy_(values);
  return {of.keys.narrow(2, 0, length), of.values.narrow(2, 0, length)};
}

void KeyValueCache::advance(const at::Tensor& tokens) {
  tokens_ = with(tokens);
  length_ += tokens.size(1);
}

at::Tensor KeyValueCache::with(const at::Tensor& tokens) const {
  if (!tokens_.defined()) return tokens.clone();
  if (tokens_.size(0) != tokens.size(0)) {
    throw ModelError(fmt::format("KeyValueCache: it has {} rows of tokens, and there are {} more; clear() it before",
                                 tokens_.size(0), tokens.size(0)));
  }
  return at::cat({tokens_, tokens}, 1);
}

}  // namespace zero::models
