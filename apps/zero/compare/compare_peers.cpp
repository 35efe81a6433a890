#include "compare/compare_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "host/side_programs.h"
#include "model/language_model.h"
#include "zero/config.h"
#include "zero/errors.h"
#include "zero/lm/data.h"
#include "zero/memory.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// All tokens of the comparison as bytes: [steps, accumulation, ranks, micro-batch, seq + 1].
void write_tokens(const TrainPlan& plan, const Config& config, const fs::path& path) {
  const SequenceSampler sampler(Corpus(plan.corpus_folder, Split::kTrain), plan.seq,
                                static_cast<std::uint64_t>(plan.seed));
  const std::int64_t batch = config.train_micro_batch_size_per_gpu;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(batch * (plan.seq + 1)));
  std::ofstream file(path, std::ios::binary);
  for (std::int64_t i = 0; i < plan.steps * config.gradient_accumulation_steps * plan.ranks; ++i) {
    sampler.fill(i, batch, tokens.data());
    const std::string bytes(tokens.begin(), tokens.end());
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  if (!file.flush()) throw IoError(fmt::format("cannot write {}", path.string()));
}

/// The rates that the stages used, so that schedules need no second implementation.
ordered_json learning_rates(const Comparison& comparison) {
  for (const auto& result : comparison.modes) {
    if (!result.contains("error") && result["mode"] != "compute") return result["learning_rates"];
  }
  throw ConfigError("--peers: no stage has a result whose learning rates they could use");
}

ordered_json job(const Comparison& comparison, const Config& config, const fs::path& folder) {
  const TrainPlan& plan = comparison.plan;
  const auto& optimizer = config.optimizer;
  if (!optimizer.type.starts_with("Adam") || !optimizer.adam_w_mode || optimizer.amsgrad || optimizer.maximize) {
    throw ConfigError("--peers: the peers train with AdamW, and cannot be compared with another optimizer");
  }
  return {{"ranks", plan.ranks},
          {"layers", plan.layers},
          {"dim", plan.dim},
          {"heads", plan.heads},
          {"seq", plan.seq},
          {"vocab", GPTOptions{}.vocab},
          {"batch", config.train_micro_batch_size_per_gpu},
          {"accumulation", config.gradient_accumulation_steps},
          {"steps", plan.steps - comparison.warmup},
          {"warmup", comparison.warmup},
          {"lr", learning_rates(comparison)},
          {"betas", {optimizer.beta1, optimizer.beta2}},
          {"eps", optimizer.eps},
          {"weight_decay", optimizer.weight_decay},
          {"no_decay", no_decay_group().names},
          {"clipping", config.gradient_clipping},
          {"weights", (folder / "weights").string()},
          {"tokens", (folder / "tokens.bin").string()}};
}

/// So that a peer which needs more ends, and not this host.
std::string memory_limit_gb() {
  constexpr double kOfWhatIsFree = 0.95;
  return fmt::format("{:.2f}", kOfWhatIsFree * static_cast<double>(available_memory_nbytes()) / 1e9);
}

std::vector<ordered_json> read_lines(const fs::path& path) {
  std::vector<ordered_json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    auto parsed = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object()) lines.push_back(std::move(parsed));
  }
  return lines;
}

}  // namespace

void check_peers(const CompareOptions& options, const Config& config, const std::vector<std::string>& modes) {
  if (config.param_dtype() != DType::kBFloat16)
    throw ConfigError("--peers: they are set up for bf16; the configuration is fp32");
  if (std::none_of(modes.begin(), modes.end(), [](const auto& mode) { return mode != "compute"; })) {
    throw ConfigError("--peers: needs a stage among --modes, for its initial weights and learning rates");
  }
  peers_python(options);
}

std::string peers_python(const CompareOptions& options) {
  const std::string python = find_python(options.python, {"torch", "deepspeed", "safetensors", "numpy"});
  if (!python.empty()) return python;
  throw ConfigError(
      fmt::format("--peers: {} with torch, deepspeed, safetensors and numpy; `make peers` makes an environment "
                  "(build/peers), --python names another",
                  options.python.empty() ? "found no Python" : options.python + " is no Python"));
}

std::vector<ordered_json> run_peers(const CompareOptions& options, const Comparison& comparison, const fs::path& folder,
                                    int& exit_code) {
  const Config config = Config::from_text(comparison.plan.config, "configuration of the comparison");
  write_tokens(comparison.plan, config, folder / "tokens.bin");
  std::ofstream(folder / "job.json") << job(comparison, config, folder).dump(1) << "\n";
  const fs::path lines = folder / "peers.jsonl";
  exit_code = run_program({peers_python(options), find_side_program("peers.py").string(), "--job",
                           (folder / "job.json").string(), "--modes", options.peer_modes, "--settings",
                           options.peer_settings, "--timeout", std::to_string(options.peer_timeout_s),
                           "--memory-limit-gb", memory_limit_gb(), "--out", lines.string()});
  return read_lines(lines);
}

}  // namespace zero::app
