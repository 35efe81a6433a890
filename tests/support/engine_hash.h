#pragma once
// A hash of what an engine trains.
#include <torch/nn/module.h>

#include "support/bits.h"
#include "zero/engine.h"

namespace zero::testing {

/// Of whole weights and optimizer states, by the names of parameters. *Collective.*
inline std::uint64_t hash_of(Engine& engine) {
  std::uint64_t hash = kNoBits;
  for (const auto& item : engine.module().named_parameters()) {
    hash = hash_with(hash, engine.full_weight(item.key()));
    for (const auto& state : engine.optimizer_states(item.key()))
      hash = hash_with(hash, engine.full_optimizer_state(item.key(), state));
  }
  return hash;
}

}  // namespace zero::testing
