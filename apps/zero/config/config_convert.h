#pragma once
// `zero config convert`: a JSON for Hugging Face's Trainer, whose "auto" values that trainer fills in, as one that
// stands alone.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zero::app {

/// What the trainer would know.
struct TrainerArguments {
  std::optional<double> lr, weight_decay, clipping;
  std::optional<std::int64_t> micro_batch, accumulation, steps, warmup_steps, hidden_size;
  std::string dtype;  ///< empty: fp32, the trainer's
};

struct Converted {
  std::string json;
  std::vector<std::string> decisions;  ///< a line for each value that was "auto"
};

/// Fills in the "auto" values of `text` from what is given, else with the defaults of Hugging Face's
/// TrainingArguments; those that depend on what is not known are removed. Throws ConfigError: no JSON, or a value that
/// must be given.
Converted convert_trainer_json(const std::string& text, const std::string& name, const TrainerArguments& given);

}  // namespace zero::app
