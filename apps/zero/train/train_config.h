#pragma once
// The configuration of a run: the built-in JSON or the user's file, with what the command line overrides.
#include "train/train_options.h"
#include "zero/config.h"

namespace zero::app {

/// The built-in configuration for `ranks` ranks, as JSON text: bf16, ZeRO-3, AdamW with warm-up and cosine.
/// The global batch is the same for 1, 2 and 4 ranks; the learning rate falls with the model's width `dim`.
std::string builtin_config(const TrainOptions& options, std::int64_t dim, int ranks);

/// The built-in configuration, or the file of --config, with what the options override applied and the batch resolved
/// for `ranks`. Local. Throws ConfigError, IoError.
Config make_config(const TrainOptions& options, std::int64_t dim, int ranks);

/// The resolved configuration `json` of a run that goes on with `ranks` ranks: the same global batch, with
/// --stage and --store applied. Throws ConfigError when the batch does not divide by the ranks.
Config resume_config(const std::string& json, const TrainOptions& options, int ranks);

}  // namespace zero::app
