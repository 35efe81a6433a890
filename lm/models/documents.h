#pragma once
// Sequences of several documents that do not see each other.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace zero::models {

/// Where the documents of tokens [B, T] are.
class Documents {
 public:
  /// Each begins with the token `separator`, and with its sequence. Null: `separator` is negative, or no sequence has
  /// several.
  static std::shared_ptr<const Documents> of(const at::Tensor& tokens, std::int64_t separator);

  const at::Tensor& positions() const { return positions_; }  ///< [B, T] of int64, each from 0 in its document
  std::int64_t longest() const { return longest_; }           ///< tokens

  /// `attend` of [1, heads, length, head_dim] by document, of q, k, v [B, heads, T, head_dim]; results
  /// [1, length, dim] -> [B, T, dim].
  using Attend = std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)>;
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Attend& attend) const;

 private:
  struct Span {
    std::int64_t sequence, first, length;
  };
  std::vector<Span> spans_;
  std::int64_t longest_ = 0;
  at::Tensor positions_;
};

}  // namespace zero::models
