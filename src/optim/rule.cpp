#include "optim/rule.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "optim/device_kernels.h"
#include "optim/kernels.h"

namespace zero::optim {

namespace {

/// `rule`, whose fp32 states are kept in another format.
const Rule& kept_in(StateFormat format, const Rule& rule) {
  struct Kept {
    const Rule* original;
    StateFormat format;
    std::vector<StateColumn> states;
    Rule rule;
  };
  static std::mutex mutex;
  static auto& all = *new std::deque<Kept>;  // rules live as long as the process
  const std::lock_guard lock(mutex);
  for (const Kept& kept : all) {
    if (kept.original == &rule && kept.format == format) return kept.rule;
  }
  Kept& kept = all.emplace_back(Kept{&rule, format, {rule.states.begin(), rule.states.end()}, rule});
  for (StateColumn& state : kept.states) {
    if (state.format == StateFormat::kFloat32) state.format = format;
  }
  kept.rule.states = kept.states;
  return kept.rule;
}

#define ZERO_NUMBER(where, type, name, value, range, meaning) \
  {#name, [](const Hyper& h) { return static_cast<double>(h.name); }, (range).minimum < 0},
constexpr HyperNumber kHyperNumbers[] = {
    ZERO_HYPER_PARAMETERS(ZERO_NUMBER){"eps2", [](const Hyper& h) { return h.eps2; }},
    {"gram_newton_schulz", [](const Hyper& h) { return double(h.gram_newton_schulz); }},
};
#undef ZERO_NUMBER

}  // namespace

std::span<const HyperNumber> hyper_numbers() { return kHyperNumbers; }

std::int64_t Rule::state_nbytes(std::int64_t numel) const {
  std::int64_t sum = 0;
  for (const StateColumn& state : states) sum += nbytes_of(state.format, numel);
  return sum;
}

std::vector<StateColumn> columns_of(std::span<const Rule* const> rules) {
  std::vector<StateColumn> all;
  for (const Rule* const rule : rules) {
    for (const StateColumn& state : rule->states) {
      const auto same = std::ranges::find(all, state.name, &StateColumn::name);
      ZERO_CHECK(same == all.end() || same->format == state.format, "{} in two formats", state.name);
      if (same == all.end()) all.push_back(state);
    }
  }
  return all;
}

std::uint32_t which_of(std::span<const StateColumn> columns, const Rule& rule) {
  std::uint32_t which = 0;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const bool has_it = std::ranges::find(rule.states, columns[i].name, &StateColumn::name) != rule.states.end();
    which |= has_it ? 1u << i : 0;
  }
  return which;
}

std::string_view algorithm_name(Algorithm algorithm) { return rule_for(algorithm, {}).name; }

const Rule& rule_for(Algorithm algorithm, std::span<const Hyper> groups, StateFormat format) {
  const Rule& rule = rule_in_fp32(algorithm, groups);
  return format == StateFormat::kFloat32 ? rule : kept_in(format, rule);
}

const Rule& take_direction() {
  static const Rule rule{
      .name = "direction",
      .update = [](const UpdateArgs& args, const Hyper& hyper) { kernels().take_direction(args, hyper); },
      .update_by = [](const DeviceKernels& kernels, const UpdateArgs& args, const StateFormat* formats,
                      const Hyper& hyper, void* stream) { kernels.take_direction(args, formats, hyper, stream); }};
  return rule;
}

}  // namespace zero::optim
