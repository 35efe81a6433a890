#include "optim/rule.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <vector>

#include "optim/aten_rules.h"
#include "optim/device_kernels.h"
#include "optim/kernels.h"
#include "optim/whole_steps.h"

namespace zero::optim {

namespace {

constexpr StateColumn kExpAvg{"exp_avg"}, kExpAvgSq{"exp_avg_sq"}, kMaxExpAvgSq{"max_exp_avg_sq"},
    kMomentumBuffer{"momentum_buffer"}, kSquareAvg{"square_avg"}, kGradAvg{"grad_avg"};
constexpr StateColumn kSum{.name = "sum", .initial = [](const Hyper& h) { return h.initial_accumulator_value; }};

constexpr std::array kAdamStates{kExpAvg, kExpAvgSq, kMaxExpAvgSq};
constexpr std::array kSgdStates{kMomentumBuffer};
constexpr std::array kAdagradStates{kSum};
constexpr std::array kRmspropStates{kSquareAvg, kMomentumBuffer, kGradAvg};
constexpr std::array kCenteredStates{kSquareAvg, kGradAvg};
constexpr std::array kLionStates{kExpAvg};
constexpr std::array kMuonStates{kMomentumBuffer};
constexpr std::array kAdam8bitStates{StateColumn{"exp_avg", StateFormat::kDynamic8},
                                     StateColumn{"exp_avg_sq", StateFormat::kDynamic8Unsigned}};

void update_adam(const UpdateArgs& args, const Hyper& hyper) { kernels().adam(args, hyper); }
void update_sgd(const UpdateArgs& args, const Hyper& hyper) { kernels().sgd(args, hyper); }
void update_adagrad(const UpdateArgs& args, const Hyper& hyper) { kernels().adagrad(args, hyper); }
void update_rmsprop(const UpdateArgs& args, const Hyper& hyper) { kernels().rmsprop(args, hyper); }
void update_lion(const UpdateArgs& args, const Hyper& hyper) { kernels().lion(args, hyper); }

template <DeviceKernels::Update DeviceKernels::*kUpdate>
void by(const DeviceKernels& kernels, const UpdateArgs& args, const StateFormat* formats, const Hyper& hyper,
        void* stream) {
  (kernels.*kUpdate)(args, formats, hyper, stream);
}

/// Of kCenteredStates, in the order that the kernels have.
UpdateArgs with_grad_avg_third(UpdateArgs args) {
  args.states[2] = args.states[1];
  args.states[1] = nullptr;
  return args;
}

template <bool kMomentum, bool kCentered>
std::string_view missing_in_rmsprop(const Hyper& hyper) {
  if (!kMomentum && hyper.momentum != 0) return kMomentumBuffer.name;
  return !kCentered && hyper.centered ? kGradAvg.name : std::string_view();
}

const Rule& amsgrad() {
  static const Rule rule{"Adam", kAdamStates, &update_adam, &adam_on_device, &by<&DeviceKernels::adam>};
  return rule;
}

std::string_view missing_without_amsgrad(const Hyper& hyper) {
  return hyper.amsgrad ? kMaxExpAvgSq.name : std::string_view();
}

const Rule& adam_8bit() {
  static const Rule rule{"Adam8bit", kAdam8bitStates,           &update_adam,
                         nullptr,    &by<&DeviceKernels::adam>, &missing_without_amsgrad};
  return rule;
}

const Rule& sgd() {
  static const Rule rule{"SGD", {}, &update_sgd, &sgd_on_device, &by<&DeviceKernels::sgd>, [](const Hyper& h) {
                           return h.momentum != 0 ? kMomentumBuffer.name : std::string_view();
                         }};
  return rule;
}

const Rule& sgd_with_momentum() {
  static const Rule rule{"SGD", kSgdStates, &update_sgd, &sgd_on_device, &by<&DeviceKernels::sgd>};
  return rule;
}

const Rule& adagrad() {
  static const Rule rule{"Adagrad", kAdagradStates, &update_adagrad, &adagrad_on_device, &by<&DeviceKernels::adagrad>};
  return rule;
}

const Rule& rmsprop(bool momentum, bool centered) {
  constexpr std::span<const StateColumn> states(kRmspropStates);
  static const Rule plain{"RMSprop",
                          states.first(1),
                          &update_rmsprop,
                          &rmsprop_on_device,
                          &by<&DeviceKernels::rmsprop>,
                          &missing_in_rmsprop<false, false>};
  static const Rule with_momentum{"RMSprop",
                                  states.first(2),
                                  &update_rmsprop,
                                  &rmsprop_on_device,
                                  &by<&DeviceKernels::rmsprop>,
                                  &missing_in_rmsprop<true, false>};
  static const Rule all{"RMSprop", states, &update_rmsprop, &rmsprop_on_device, &by<&DeviceKernels::rmsprop>};
  static const Rule only_centered{
      "RMSprop",
      kCenteredStates,
      [](const UpdateArgs& args, const Hyper& hyper) { update_rmsprop(with_grad_avg_third(args), hyper); },
      [](const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
        rmsprop_on_device(with_grad_avg_third(args), hyper, device);
      },
      [](const DeviceKernels& kernels, const UpdateArgs& args, const StateFormat* formats, const Hyper& hyper,
         void* stream) {
        const StateFormat in_order[] = {formats[0], formats[1], formats[1]};
        kernels.rmsprop(with_grad_avg_third(args), in_order, hyper, stream);
      },
      &missing_in_rmsprop<false, true>};
  if (centered) return momentum ? all : only_centered;
  return momentum ? with_momentum : plain;
}

const Rule& lamb() {
  static const Rule rule{.name = "Lamb",
                         .states = std::span<const StateColumn>(kAdamStates).first(2),
                         .update = [](const UpdateArgs& args, const Hyper& hyper) { kernels().lamb(args, hyper); },
                         .update_by = &by<&DeviceKernels::lamb>,
                         .whole = &lamb_step()};
  return rule;
}

const Rule& muon() {
  static const Rule rule{.name = "Muon",
                         .states = kMuonStates,
                         .update = [](const UpdateArgs& args, const Hyper& hyper) { kernels().muon(args, hyper); },
                         .update_by = &by<&DeviceKernels::muon>,
                         .whole = &muon_step()};
  return rule;
}

void direct_along_gradient(const UpdateArgs& args, const Hyper& hyper) {
  const auto scale = static_cast<float>(hyper.signed_scale());
  for (std::int64_t i = 0; i < args.numel; ++i) args.direction[i] = args.gradient[i] * scale;
}

const Rule& adafactor() {
  static const Rule rule{.name = "Adafactor",
                         .update = &direct_along_gradient,
                         .update_by = &by<&DeviceKernels::along_gradient>,
                         .whole = &adafactor_step()};
  return rule;
}

const Rule& lion() {
  static const Rule rule{"Lion", kLionStates, &update_lion, &lion_on_device, &by<&DeviceKernels::lion>};
  return rule;
}

const Rule& rule_in_fp32(Algorithm algorithm, std::span<const Hyper> groups) {
  const bool momentum = std::ranges::any_of(groups, [](const Hyper& h) { return h.momentum != 0; });
  switch (algorithm) {
    case Algorithm::kAdam:
      return std::ranges::any_of(groups, &Hyper::amsgrad) ? amsgrad() : adam();
    case Algorithm::kSgd:
      return momentum ? sgd_with_momentum() : sgd();
    case Algorithm::kAdagrad:
      return adagrad();
    case Algorithm::kRmsprop:
      return rmsprop(momentum, std::ranges::any_of(groups, &Hyper::centered));
    case Algorithm::kLion:
      return lion();
    case Algorithm::kAdam8bit:
      return adam_8bit();
    case Algorithm::kLamb:
      return lamb();
    case Algorithm::kMuon:
      return muon();
    case Algorithm::kAdafactor:
      return adafactor();
  }
  return adam();
}

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

constexpr HyperNumber kHyperNumbers[] = {
    {"beta1", [](const Hyper& h) { return h.beta1; }},
    {"beta2", [](const Hyper& h) { return h.beta2; }},
    {"eps", [](const Hyper& h) { return h.eps; }},
    {"weight_decay", [](const Hyper& h) { return h.weight_decay; }},
    {"adam_w_mode", [](const Hyper& h) { return double(h.decoupled); }},
    {"bias_correction", [](const Hyper& h) { return double(h.bias_correction); }},
    {"amsgrad", [](const Hyper& h) { return double(h.amsgrad); }},
    {"maximize", [](const Hyper& h) { return double(h.maximize); }},
    {"momentum", [](const Hyper& h) { return h.momentum; }},
    {"dampening", [](const Hyper& h) { return h.dampening; }},
    {"nesterov", [](const Hyper& h) { return double(h.nesterov); }},
    {"alpha", [](const Hyper& h) { return h.alpha; }},
    {"centered", [](const Hyper& h) { return double(h.centered); }},
    {"lr_decay", [](const Hyper& h) { return h.lr_decay; }},
    {"initial_accumulator_value", [](const Hyper& h) { return h.initial_accumulator_value; }},
    {"max_coeff", [](const Hyper& h) { return h.max_coeff; }},
    {"min_coeff", [](const Hyper& h) { return h.min_coeff; }},
    {"eps_inside_sqrt", [](const Hyper& h) { return double(h.eps_inside_sqrt); }},
    {"beta2_decay", [](const Hyper& h) { return h.beta2_decay; }, /*may_be_negative=*/true},
    {"eps2", [](const Hyper& h) { return h.eps2; }},
    {"d", [](const Hyper& h) { return h.d; }},
    {"gram_newton_schulz", [](const Hyper& h) { return double(h.gram_newton_schulz); }},
};

}  // namespace

std::span<const HyperNumber> hyper_numbers() { return kHyperNumbers; }

std::int64_t Rule::state_nbytes(std::int64_t numel) const {
  std::int64_t sum = 0;
  for (const StateColumn& state : states) sum += nbytes_of(state.format, numel);
  return sum;
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
      .update_by = &by<&DeviceKernels::take_direction>};
  return rule;
}

const Rule& adam() {
  constexpr std::span<const StateColumn> states(kAdamStates);
  static const Rule rule{"Adam",          states.first(2),           &update_adam,
                         &adam_on_device, &by<&DeviceKernels::adam>, &missing_without_amsgrad};
  return rule;
}

}  // namespace zero::optim
