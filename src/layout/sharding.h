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

}  // namespace zero::layout
