#pragma once
// What a ZeRO stage splits over the ranks.

namespace zero::layout {

struct Sharding {
  bool optimizer_states = false;
  bool gradients = false;
  bool parameters = false;
};

constexpr Sharding sharding_of_stage(int stage) {
  return {.optimizer_states = stage >= 1, .gradients = stage >= 2, .parameters = stage >= 3};
}

/// In a job of so many. One alone, whose sums are whole at any stage, has no use for what it has added to them.
constexpr Sharding sharding_of_stage(int stage, int ranks) {
  Sharding sharding = sharding_of_stage(stage);
  sharding.gradients |= ranks == 1;
  return sharding;
}

}  // namespace zero::layout
