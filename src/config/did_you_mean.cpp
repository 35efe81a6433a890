#include "config/did_you_mean.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace zero::config {
namespace {

/// What others call it, and what it is called here.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"learning_rate", "lr"},
    {"weight_decay_rate", "weight_decay"},
    {"epsilon", "eps"},
    {"adam_epsilon", "eps"},
    {"beta1", "betas"},
    {"beta2", "betas"},
    {"batch_size", "train_batch_size"},
    {"global_batch_size", "train_batch_size"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"max_grad_norm", "gradient_clipping"},
    {"clip_grad", "gradient_clipping"},
    {"zero", "zero_optimization"},
    {"warmup_steps", "warmup_num_steps"},
    {"num_warmup_steps", "warmup_num_steps"},
    {"max_lr", "warmup_max_lr"},
    {"total_steps", "total_num_steps"}};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before.swap(row);
    row.swap(next);
  }
  return row[b.size()];
}

std::string_view nearest(std::string_view name, const std::vector<std::string_view>& candidates) {
  for (const auto& [other, here] : kOtherNames) {
    if (other == name && std::ranges::find(candidates, here) != candidates.end()) return here;
  }
  std::string_view best;
  const std::size_t allowed = name.size() <= 3 ? 1 : std::max<std::size_t>(2, name.size() / 3);
  std::size_t best_distance = allowed + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace zero::config
