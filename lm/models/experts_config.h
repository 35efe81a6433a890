#pragma once
// Routing to experts in config.json.
#include <nlohmann/json.hpp>

#include "models/config_reader.h"
#include "zero/lm/causal_lm.h"

namespace zero::models {

inline void read_router_loss(ConfigReader& in, Experts& experts) {
  const double factor = in.get("router_aux_loss_coef", 0.001);
  experts.loss_factor = in.get("output_router_logits", false) ? factor : 0;
}

inline void write_routing(const Experts& experts, nlohmann::json& out) {
  out["num_experts_per_tok"] = experts.per_token;
  out["output_router_logits"] = experts.loss_factor > 0;
  if (experts.loss_factor > 0) out["router_aux_loss_coef"] = experts.loss_factor;
}

}  // namespace zero::models
