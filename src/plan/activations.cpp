// What a transformer keeps for backward, operand by operand. With dropout and 2-byte elements the sum of a
// layer is the known 34*s*b*h bytes, and 5*a*s^2*b more without fused attention (arXiv 2205.05198, equation
// 1).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/sizes.h"
#include "zero/errors.h"

namespace zero::plan {
namespace {

struct Sizes {
  double tokens, dim, attended, shared, mlp, vocab, element;
  double stats;       ///< bytes of a norm's statistics per token
  double mlp_copies;  ///< values of the MLP's inner width that backward reads
  explicit Sizes(const Transformer& t, double micro_batch, DType param_dtype)
      : tokens(micro_batch * static_cast<double>(t.seq)),
        dim(static_cast<double>(t.dim)),
        attended(static_cast<double>(t.heads * t.head_dim)),
        shared(static_cast<double>(t.kv_heads * t.head_dim)),
        mlp(static_cast<double>(t.mlp_dim)),
        vocab(static_cast<double>(t.vocab)),
        element(static_cast<double>(element_nbytes(param_dtype))),
        stats(t.style == Transformer::Style::kGpt ? 2 * element : 4),
        // Before and after the activation; gated: gate, its activation, up, and their product.
        mlp_copies(t.style == Transformer::Style::kGpt ? 2 : 4) {}
};

double attention_nbytes(const Transformer& t, const Sizes& s) {
  const double heads = static_cast<double>(t.heads), seq = static_cast<double>(t.seq);
  const double operands = (2 * s.attended + 2 * s.shared) * s.element;  // query, key, value, output
  const double together = t.separate_documents ? s.attended * s.element : 0;
  if (t.fused_attention) return s.tokens * (operands + together + 4 * heads);  // fp32 log-sum-exp per row
  const double per_score = t.dropout ? 2 * s.element + 1 : s.element;          // softmax, its dropout and mask
  return s.tokens * (operands + together + per_score * heads * seq);
}

/// What one layer keeps, its input included.
double layer_nbytes(const Transformer& t, const Sizes& s) {
  const double norms = 4 * s.dim * s.element + 2 * s.stats;  // inputs and outputs of two norms
  const double masks = t.dropout ? 2 * s.dim : 0;            // one byte each
  return s.tokens * (norms + s.mlp_copies * s.mlp * s.element + masks) + attention_nbytes(t, s);
}

/// Results of operators that a recomputed layer keeps: those that its backward reads, and those that were only added to
/// what the layer passes on.
struct Kept {
  double read = 0, added = 0;
  double row_sums = 0;  ///< of what is read: attention's, often too small for a disk
};

Kept kept_of(const Transformer& t, const Sizes& s) {
  if (!t.checkpointing || t.kept == KeptResults::kNone) return {};
  const double heads = static_cast<double>(t.heads), seq = static_cast<double>(t.seq);
  Kept kept;
  if (t.fused_attention) {
    kept.row_sums = s.tokens * 4 * heads;
    kept.read = s.tokens * s.attended * s.element + kept.row_sums;
  }
  if (t.kept == KeptResults::kAttention) return kept;
  const double projections = s.attended + 2 * s.shared,
               inside = t.style == Transformer::Style::kGpt ? s.mlp : 2 * s.mlp;
  kept.read += s.tokens * (projections + inside) * s.element;
  if (!t.fused_attention) kept.read += s.tokens * (heads * seq + s.attended) * s.element;  // scores, and values by them
  kept.added = 2 * s.tokens * s.dim * s.element;
  return kept;
}

/// Whether the loss goes through the logits a part at a time.
bool has_partial_loss(const Transformer& t, const Sizes& s) {
  return t.loss_rows > 0 && static_cast<double>(t.loss_rows) < s.tokens;
}

/// The final norm's input and output, fp32 log-probabilities, tokens, targets and positions; rotary angles. Of a loss
/// that has made its gradients already these, in place of the norm's output and the log-probabilities.
double head_nbytes(const Transformer& t, const Sizes& s) {
  const double ids = 16 * s.tokens + 8 * static_cast<double>(t.seq);
  const double mask = t.dropout ? s.tokens * s.dim : 0;
  const double of_loss = has_partial_loss(t, s) ? 4 * s.vocab * s.dim : s.tokens * 4 * s.vocab;
  const double turned = t.separate_documents ? s.tokens : static_cast<double>(t.seq);
  const double angles = 2 * turned * static_cast<double>(t.head_dim) * s.element;
  return s.tokens * (2 * s.dim * s.element + s.stats) + of_loss + ids + mask +
         (t.style == Transformer::Style::kLlama ? angles : 0);
}

/// Backward of the last layer's MLP: gradients of its output and inside it, and of the second matrix.
double mlp_backward_nbytes(const Transformer& t, const Sizes& s) {
  const double matrix = s.dim * s.mlp * s.element;
  const double inside = t.style == Transformer::Style::kGpt ? s.mlp : 2 * s.mlp;
  return std::max(s.tokens * (s.dim + s.mlp) * s.element + matrix, s.tokens * (s.dim + inside) * s.element);
}

/// A layer that is computed again, and its backward: with its output once more and the gradient of its input; in the
/// end with the gradients of all its matrices, which leave together, beside attention's operands and their gradients.
/// `away`: what it keeps is on a disk before, and those results that were only added are dropped again at once.
double again_nbytes(const Transformer& t, const Sizes& s, bool away) {
  const double input = s.tokens * s.dim * s.element;
  const double mlp_matrices = t.style == Transformer::Style::kGpt ? 2 : 3;
  const double matrices = 2 * s.dim * (s.attended + s.shared) + mlp_matrices * s.dim * s.mlp;
  const double made = layer_nbytes(t, s) - (away ? 0 : kept_of(t, s).read);
  return std::max(made + input + mlp_backward_nbytes(t, s), matrices * s.element + 8 * input);
}

/// Backward of loss and head, beyond what head_nbytes() counts: two fp32 gradients of the logits, or the
/// head's own gradients once the log-probabilities are gone. Of a loss in parts: in its forward, what one part of the
/// logits takes and its product with the hidden states; in backward, the gradients scaled.
double head_backward_nbytes(const Transformer& t, const Sizes& s) {
  if (has_partial_loss(t, s)) {
    const double logits = static_cast<double>(t.loss_rows) * s.vocab, weight = s.vocab * s.dim;
    const double hidden = s.tokens * s.dim * s.element, scaled = weight * s.element + hidden;
    if (s.element == 4) return std::max(logits * 8, scaled);
    const double part = std::min(weight, static_cast<double>(kLossPartElements));  // is converted by way of fp32
    const double made = std::max(logits * (8 + s.element), logits * (4 + s.element) + part * (4 + s.element));
    return std::max(made + hidden, scaled + 4 * part);
  }
  const double head = s.tokens * (s.vocab + s.dim) * s.element + s.vocab * s.dim * s.element;
  return std::max(s.tokens * 8 * s.vocab, head - s.tokens * 4 * s.vocab);
}

/// The largest tensor that a recomputed layer keeps.
double largest_kept_nbytes(const Transformer& t, const Sizes& s) {
  double width = s.dim;
  if (t.kept != KeptResults::kNone && t.fused_attention) width = std::max(width, s.attended);
  if (t.kept == KeptResults::kProducts) {
    const bool is_gpt = t.style == Transformer::Style::kGpt;
    width = std::max({width, s.mlp, is_gpt ? s.attended + 2 * s.shared : s.attended});
    if (!t.fused_attention) width = std::max(width, static_cast<double>(t.heads * t.seq));
  }
  return s.tokens * width * s.element;
}

}  // namespace

Activations activations(const Transformer& shape, std::int64_t micro_batch, DType param_dtype, bool on_nvme) {
  if (micro_batch < 1) throw ConfigError(fmt::format("plan: got micro-batch {}, want at least 1", micro_batch));
  const Transformer t = with_defaults(shape);
  const Sizes s(t, static_cast<double>(micro_batch), param_dtype);
  const double layers = static_cast<double>(t.layers), layer = layer_nbytes(t, s);
  const double input = s.tokens * s.dim * s.element;
  const double recomputed = t.checkpointing ? std::ceil(layers / static_cast<double>(t.checkpoint_every)) : 0;
  const Kept results = kept_of(t, s);
  constexpr double kLeastOnNvme = 64 << 10;
  const bool away = on_nvme && t.checkpointing && input >= kLeastOnNvme;
  const double stays = !away                             ? input + results.read + results.added
                       : results.row_sums < kLeastOnNvme ? results.row_sums
                                                         : 0;
  const double leaves = input + results.read + results.added - stays;
  const double kept = recomputed * stays + (layers - recomputed) * layer;
  const double stored = kept + head_nbytes(t, s);
  double layer_backward = mlp_backward_nbytes(t, s);  // the most beyond what is kept
  if (t.checkpointing) {
    const auto behind = static_cast<double>((t.layers - 1) % t.checkpoint_every);  // gone when the last of them comes
    const double again = again_nbytes(t, s, away) - behind * layer;
    layer_backward = behind > 0 ? std::max(layer_backward, again) : again;
  }
  const double peak = std::max(stored + head_backward_nbytes(t, s), kept + layer_backward);
  return {to_nbytes(stored),
          to_nbytes(peak),
          to_nbytes(kept),
          to_nbytes(layer_backward),
          to_nbytes(recomputed * leaves),
          to_nbytes(away ? largest_kept_nbytes(t, s) : 0)};
}

}  // namespace zero::plan
