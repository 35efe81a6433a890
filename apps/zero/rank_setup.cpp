#include "rank_setup.h"

#include <fmt/format.h>

#include <cstdio>
#include <new>
#include <optional>

#include "plan_fit.h"
#include "zero/errors.h"
#include "zero/init.h"

namespace zero::app {

int rank_exit_code(int rank, const std::function<int()>& run) {
  const std::string who = rank == 0 ? "" : fmt::format("rank {}: ", rank);
  try {
    const int signal = run();
    return signal == 0 ? 0 : 128 + signal;
  } catch (const ConfigError& error) {
    if (rank == 0) fmt::print(stderr, "zero: error: {}\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "zero: error: {}out of memory; take a smaller --preset, --seq or micro-batch\n", who);
  } catch (const std::exception& error) {
    fmt::print(stderr, "zero: error: {}{}\n", who, error.what());
  }
  return 1;
}

GPT build_model(const TrainPlan& plan, const Config& config, const Group& group) {
  std::optional<Init> once;
  if (builds_once(config)) once.emplace(group);
  return GPT(gpt_options(plan));
}

ParameterGroup no_decay_group() {
  return {.names = {"*.bias", "*.ln1.weight", "*.ln2.weight", "lnf.weight"}, .weight_decay = 0.0};
}

}  // namespace zero::app
