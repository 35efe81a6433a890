#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "zero/errors.h"
#include "zero/lm/loss.h"
#include "zero/lm/models.h"

namespace zero {
namespace {

struct Preset {
  const char* name;
  std::int64_t layers, dim, heads, seq;
};
constexpr std::array<Preset, 9> kPresets = {{
    {"gpt-tiny", 2, 64, 2, 64},
    {"gpt-2m", 4, 192, 3, 128},  // learns to write something like Python in two minutes on two cores
    {"gpt-11m", 6, 384, 6, 128},
    {"gpt-14m", 8, 384, 6, 256},
    {"gpt-25m", 8, 512, 8, 256},
    {"gpt-152m", 12, 1024, 16, 256},
    {"gpt-1b", 20, 2048, 16, 256},
    {"gpt-4b", 36, 3072, 24, 256},  // states on a disk: see docs/offload.md
    {"gpt-7b", 33, 4096, 32, 256},  // parameters, too
}};

}  // namespace

GPTOptions gpt_preset(std::string_view name) {
  if (name == "gpt-10m") name = "gpt-14m";  // what it was called once
  for (const Preset& preset : kPresets) {
    if (name != preset.name) continue;
    GPTOptions options;
    options.layers = preset.layers;
    options.dim = preset.dim;
    options.heads = preset.heads;
    options.seq = preset.seq;
    return options;
  }
  throw ConfigError(
      fmt::format("preset '{}': there is none of this name; want one of {}", name, fmt::join(gpt_presets(), ", ")));
}

std::vector<std::string> gpt_presets() {
  std::vector<std::string> names;
  names.reserve(std::size(kPresets));
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

std::int64_t gpt_numel(const GPTOptions& options) {
  const std::int64_t d = options.dim;
  // qkv 3d^2 + 3d, proj d^2 + d, fc 4d^2 + 4d, out 4d^2 + d, two layer norms 4d.
  const std::int64_t block = 12 * d * d + 13 * d;
  return options.vocab * d * (options.tied ? 1 : 2) + options.seq * d + options.layers * block + 2 * d;
}

plan::ModelShape gpt_shape(const GPTOptions& options, const std::string& name) {
  plan::Transformer sizes;
  sizes.layers = options.layers;
  sizes.dim = options.dim;
  sizes.heads = options.heads;
  sizes.vocab = options.vocab;
  sizes.seq = options.seq;
  sizes.tied = options.tied;
  sizes.dropout = options.dropout > 0;
  sizes.checkpointing = options.recompute_every > 0;
  if (sizes.checkpointing) sizes.checkpoint_every = options.recompute_every;
  sizes.kept = options.recompute_keep;
  sizes.separate_documents = options.separator >= 0;
  sizes.loss_rows = rows_at_a_time(options.vocab);
  sizes.fused_attention = !sizes.dropout;  // libtorch's fused kernel for the CPU knows no dropout
  return plan::transformer(sizes, name);
}

}  // namespace zero
