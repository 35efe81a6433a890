#include "optim/configured.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "zero/errors.h"

namespace zero::optim {

Algorithm algorithm_of(const Config::Optimizer& optimizer) {
  if (const OptimizerInfo* const info = find_optimizer(optimizer.type)) return info->algorithm;
  throw ConfigError(
      fmt::format("optimizer.type: there is no '{}'; docs/optimizers.md lists what there is", optimizer.type));
}

Hyper hyper_of(const Config::Optimizer& optimizer, bool by_muon) {
  Hyper hyper;
  hyper.lr = optimizer.lr;
  if (optimizer.type == "Muon") hyper.lr = (by_muon ? optimizer.muon_lr : optimizer.adam_lr).value_or(optimizer.lr);
#define ZERO_COPY(where, type, name, value, range, meaning) hyper.name = optimizer.name;
  ZERO_HYPER_PARAMETERS(ZERO_COPY)
#undef ZERO_COPY
  hyper.gram_newton_schulz = optimizer.ns_method == "gram";
  return hyper;
}

bool is_for_muon(std::string_view name, int dims) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return dims >= 2 && lower.find("embed") == std::string::npos && lower.find("lm_head") == std::string::npos;
}

const Rule& rule_of(const Config& config, bool by_muon) {
  const Hyper hyper = hyper_of(config.optimizer, by_muon);
  Algorithm algorithm = algorithm_of(config.optimizer);
  if (algorithm == Algorithm::kMuon && !by_muon) algorithm = Algorithm::kAdam;
  return rule_for(algorithm, {&hyper, 1}, format_of(config.state_dtype()));
}

}  // namespace zero::optim
