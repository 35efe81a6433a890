#include "text/near_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string_view>
#include <utility>

namespace zero::app {
namespace {

/// Insertions, deletions and replacements of one character between two words; neighbours swapped count once.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

/// Commands and options by names that other programs have taught, and ours.
constexpr std::pair<std::string_view, std::string_view> kNamesElsewhere[] = {
    {"checkpoint", "ckpt"},
    {"evaluate", "eval"},
    {"sample", "generate"},
    {"benchmark", "bench"},
    {"environment", "doctor"},
    {"rm", "prune"},
    {"ls", "list"},
    {"show", "inspect"},
    {"export", "ckpt"},
    {"suggest", "plan"},
    {"estimate", "plan"},
    {"finetune", "train"},
    {"fine-tune", "train"},
    {"list", "runs"},
    {"--learning-rate", "--lr"},
    {"--gpus", "--device"},
    {"--num-gpus", "--ranks"},
    {"--nproc-per-node", "--ranks"},
    {"--world-size", "--ranks"},
    {"--workers", "--ranks"},
    {"--processes", "--ranks"},
    {"--deepspeed-config", "--config"},
    {"--max-steps", "--steps"},
    {"--epochs", "--steps"},
    {"--num-epochs", "--steps"},
    {"--num-train-epochs", "--steps"},
    {"--save-every", "--checkpoint-every"},
    {"--resume-from-checkpoint", "--resume"},
    {"--deepspeed", "--config"},
    {"--bf16", "--dtype"},
    {"--fp16", "--dtype"},
    {"--gradient-accumulation-steps", "--batch-size"},
    {"--nproc", "--ranks"},
    {"--tokens", "--seq"},
    {"--stage", "--modes"},
    {"--nnodes", "--hostfile"},
    {"-v", "--version"},
    {"--precision", "--dtype"},
    {"--output-dir", "--run-dir"},
    {"--save-steps", "--checkpoint-every"},
    {"--eval-steps", "--eval-every"},
    {"--zero-stage", "--stage"},
    {"--train-batch-size", "--batch-size"},
    {"--per-device-train-batch-size", "--micro-batch"},
    {"--context-length", "--seq"},
    {"--max-tokens", "--length"},
    {"--max-new-tokens", "--length"},
    {"--gradient-checkpointing", "--recompute"},
    {"--activation-checkpointing", "--recompute"},
    {"--device", "--gpu-memory"},
};

}  // namespace

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  std::string nearest;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  const auto look_at = [&](std::string_view known, std::string_view name) {
    const std::size_t d = distance(word, known);
    if (d < least) least = d, nearest = name;
  };
  if (word.size() == 2 && word.front() == '-') least = 1;  // nothing is near a letter
  for (const std::string& name : names) look_at(name, name);
  for (const auto& [elsewhere, here] : kNamesElsewhere) {
    if (std::find(names.begin(), names.end(), here) != names.end()) look_at(elsewhere, here);
  }
  // The beginning of one, or one in other letters.
  const auto in_small_letters = [](std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
  };
  const std::string small = in_small_letters(word);
  const auto begins_so = [&](const std::string& name) { return small.size() > 3 && name.starts_with(small); };
  if (std::ranges::count_if(names, begins_so) == 1) nearest = *std::ranges::find_if(names, begins_so);
  if (std::ranges::find(names, small) != names.end()) nearest = small;
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

}  // namespace zero::app
