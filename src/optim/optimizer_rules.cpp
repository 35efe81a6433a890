// The optimizers one by one: the states that each keeps, its kernels, and its update as ATen operators, for memory of
// devices that have no kernels of ours.
#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/device_code.h"
#include "base/small_floats.h"
#include "optim/device_kernels.h"
#include "optim/kernels.h"
#include "optim/rule.h"
#include "optim/whole_steps.h"

namespace zero::optim {
namespace {

namespace functors {
#include "optim/element_rules.inc"
}  // namespace functors

constexpr StateColumn kExpAvg{"exp_avg"}, kExpAvgSq{"exp_avg_sq"}, kMaxExpAvgSq{"max_exp_avg_sq"},
    kMomentumBuffer{"momentum_buffer"}, kSquareAvg{"square_avg"}, kGradAvg{"grad_avg"}, kExpAvgSlow{"exp_avg_slow"};

template <Algorithm kAlgorithm>
void update(const UpdateArgs& args, const Hyper& hyper) {
  kernels().update_of(kAlgorithm)(args, hyper);
}
template <Algorithm kAlgorithm>
void update_by(const DeviceKernels& kernels, const UpdateArgs& args, const StateFormat* formats, const Hyper& hyper,
               void* stream) {
  kernels.updates[static_cast<std::size_t>(kAlgorithm)](args, formats, hyper, stream);
}

/// The update of an algorithm by its kernels, of elements one by one.
template <Algorithm kAlgorithm>
Rule rule_of(std::string_view name, std::span<const StateColumn> states, decltype(Rule::update_on_device) on_device,
             decltype(Rule::missing_state) missing = nullptr) {
  return {name, states, &update<kAlgorithm>, on_device, &update_by<kAlgorithm>, missing};
}
/// Of an algorithm with work on whole tensors.
template <Algorithm kAlgorithm>
Rule rule_of_two_passes(std::string_view name, std::span<const StateColumn> states, const WholeStep& whole) {
  return {.name = name,
          .states = states,
          .update = &update<kAlgorithm>,
          .update_by = &update_by<kAlgorithm>,
          .whole = &whole};
}

/// What an update works on, as tensors.
struct Views {
  at::Tensor master, gradient;  ///< the gradient is a copy, scaled
  at::Tensor states[3];         ///< undefined where there is none

  Views(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
    const auto view = [&](const void* data) {
      return at::from_blob(const_cast<void*>(data), {args.numel}, at::TensorOptions().dtype(at::kFloat).device(device));
    };
    master = view(args.master);
    gradient = view(args.gradient).mul(hyper.signed_scale());
    for (std::size_t s = 0; s < std::size(states); ++s) {
      if (args.states[s]) states[s] = view(args.states[s]);
    }
  }

  void add_decay(const Hyper& hyper) {
    if (hyper.weight_decay != 0) gradient.add_(master, hyper.weight_decay);
  }
};

// ---- Adam ----

void adam_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  const auto& [exp_avg, exp_avg_sq, max_exp_avg_sq] = v.states;
  if (hyper.adam_w_mode) {
    v.master.mul_(1 - hyper.lr * hyper.weight_decay);
  } else {
    v.add_decay(hyper);
  }
  exp_avg.mul_(hyper.beta1).add_(v.gradient, 1 - hyper.beta1);
  exp_avg_sq.mul_(hyper.beta2).addcmul_(v.gradient, v.gradient, 1 - hyper.beta2);
  if (hyper.amsgrad) max_exp_avg_sq.copy_(at::maximum(max_exp_avg_sq, exp_avg_sq));
  const double correction1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, hyper.step) : 1.0;
  const double correction2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, hyper.step) : 1.0;
  const at::Tensor& second = hyper.amsgrad ? max_exp_avg_sq : exp_avg_sq;
  const at::Tensor denominator = second.sqrt().div_(std::sqrt(correction2)).add_(hyper.eps);
  v.master.addcdiv_(exp_avg, denominator, -hyper.lr / correction1);
}

constexpr std::array kAdamStates{kExpAvg, kExpAvgSq, kMaxExpAvgSq};
constexpr std::array kAdam8bitStates{StateColumn{"exp_avg", StateFormat::kDynamic8},
                                     StateColumn{"exp_avg_sq", StateFormat::kDynamic8Unsigned}};

std::string_view missing_without_amsgrad(const Hyper& hyper) {
  return hyper.amsgrad ? kMaxExpAvgSq.name : std::string_view();
}

const Rule& adam_for(std::span<const Hyper> groups) {
  static const Rule amsgrad = rule_of<Algorithm::kAdam>("Adam", kAdamStates, &adam_on_device);
  return std::ranges::any_of(groups, &Hyper::amsgrad) ? amsgrad : adam();
}

const Rule& adam_8bit(std::span<const Hyper>) {
  static const Rule rule =
      rule_of<Algorithm::kAdam8bit>("Adam8bit", kAdam8bitStates, nullptr, &missing_without_amsgrad);
  return rule;
}

// ---- SGD ----

void sgd_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  v.add_decay(hyper);
  at::Tensor step = v.gradient;
  if (hyper.momentum != 0) {
    const at::Tensor& momentum_buffer = v.states[0];
    if (hyper.step == 1 && hyper.dampening != 0) {
      momentum_buffer.copy_(v.gradient);
    } else {
      momentum_buffer.mul_(hyper.momentum).add_(v.gradient, 1 - hyper.dampening);
    }
    step = hyper.nesterov ? v.gradient.add(momentum_buffer, hyper.momentum) : momentum_buffer;
  }
  v.master.add_(step, -hyper.lr);
}

constexpr std::array kMomentumStates{kMomentumBuffer};

bool any_momentum(std::span<const Hyper> groups) {
  return std::ranges::any_of(groups, [](const Hyper& h) { return h.momentum != 0; });
}

const Rule& sgd(std::span<const Hyper> groups) {
  static const Rule plain = rule_of<Algorithm::kSgd>("SGD", {}, &sgd_on_device, [](const Hyper& h) {
    return h.momentum != 0 ? kMomentumBuffer.name : std::string_view();
  });
  static const Rule with_momentum = rule_of<Algorithm::kSgd>("SGD", kMomentumStates, &sgd_on_device);
  return any_momentum(groups) ? with_momentum : plain;
}

// ---- Adagrad ----

void adagrad_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  v.add_decay(hyper);
  const at::Tensor& sum = v.states[0];
  sum.addcmul_(v.gradient, v.gradient);
  const double lr = hyper.lr / (1 + static_cast<double>(hyper.step - 1) * hyper.lr_decay);
  v.master.addcdiv_(v.gradient, sum.sqrt().add_(hyper.eps), -lr);
}

constexpr std::array kAdagradStates{
    StateColumn{.name = "sum", .initial = [](const Hyper& h) { return h.initial_accumulator_value; }}};

const Rule& adagrad(std::span<const Hyper>) {
  static const Rule rule = rule_of<Algorithm::kAdagrad>("Adagrad", kAdagradStates, &adagrad_on_device);
  return rule;
}

// ---- RMSprop ----

void rmsprop_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  const auto& [square_avg, momentum_buffer, grad_avg] = v.states;
  v.add_decay(hyper);
  square_avg.mul_(hyper.alpha).addcmul_(v.gradient, v.gradient, 1 - hyper.alpha);
  at::Tensor variance = square_avg;
  if (hyper.centered) {
    grad_avg.mul_(hyper.alpha).add_(v.gradient, 1 - hyper.alpha);
    variance = square_avg.addcmul(grad_avg, grad_avg, -1).clamp_min_(0);
  }
  const at::Tensor denominator = variance.sqrt().add_(hyper.eps);
  if (hyper.momentum != 0) {
    momentum_buffer.mul_(hyper.momentum).addcdiv_(v.gradient, denominator);
    v.master.add_(momentum_buffer, -hyper.lr);
  } else {
    v.master.addcdiv_(v.gradient, denominator, -hyper.lr);
  }
}

constexpr std::array kRmspropStates{kSquareAvg, kMomentumBuffer, kGradAvg};
constexpr std::array kCenteredStates{kSquareAvg, kGradAvg};

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

const Rule& rmsprop(std::span<const Hyper> groups) {
  constexpr Algorithm kThis = Algorithm::kRmsprop;
  constexpr std::span<const StateColumn> states(kRmspropStates);
  static const Rule plain =
      rule_of<kThis>("RMSprop", states.first(1), &rmsprop_on_device, &missing_in_rmsprop<false, false>);
  static const Rule with_momentum =
      rule_of<kThis>("RMSprop", states.first(2), &rmsprop_on_device, &missing_in_rmsprop<true, false>);
  static const Rule all = rule_of<kThis>("RMSprop", states, &rmsprop_on_device);
  static const Rule only_centered{
      "RMSprop",
      kCenteredStates,
      [](const UpdateArgs& args, const Hyper& hyper) { update<kThis>(with_grad_avg_third(args), hyper); },
      [](const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
        rmsprop_on_device(with_grad_avg_third(args), hyper, device);
      },
      [](const DeviceKernels& kernels, const UpdateArgs& args, const StateFormat* formats, const Hyper& hyper,
         void* stream) {
        const StateFormat in_order[] = {formats[0], formats[1], formats[1]};
        update_by<kThis>(kernels, with_grad_avg_third(args), in_order, hyper, stream);
      },
      &missing_in_rmsprop<false, true>};
  const bool momentum = any_momentum(groups);
  if (std::ranges::any_of(groups, &Hyper::centered)) return momentum ? all : only_centered;
  return momentum ? with_momentum : plain;
}

// ---- Lion ----

void lion_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  const at::Tensor& exp_avg = v.states[0];
  const at::Tensor direction = exp_avg.mul(hyper.beta1).add_(v.gradient, 1 - hyper.beta1);
  const at::Tensor sign = direction.sign().masked_fill_(direction.isnan(), std::numeric_limits<double>::quiet_NaN());
  v.master.mul_(1 - hyper.lr * hyper.weight_decay).add_(sign, -hyper.lr);
  exp_avg.mul_(hyper.beta2).add_(v.gradient, 1 - hyper.beta2);
}

constexpr std::array kLionStates{kExpAvg};

const Rule& lion(std::span<const Hyper>) {
  static const Rule rule = rule_of<Algorithm::kLion>("Lion", kLionStates, &lion_on_device);
  return rule;
}

// ---- optimizers of whole tensors ----

const Rule& lamb(std::span<const Hyper>) {
  static const Rule rule =
      rule_of_two_passes<Algorithm::kLamb>("Lamb", std::span<const StateColumn>(kAdamStates).first(2), lamb_step());
  return rule;
}

const Rule& muon(std::span<const Hyper>) {
  static const Rule rule = rule_of_two_passes<Algorithm::kMuon>("Muon", kMomentumStates, muon_step());
  return rule;
}

const Rule& adafactor(std::span<const Hyper>) {
  static const Rule rule = rule_of_two_passes<Algorithm::kAdafactor>("Adafactor", {}, adafactor_step());
  return rule;
}

// ---- AdEMAMix ----

void ademamix_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  const auto& [fast, exp_avg_sq, slow] = v.states;
  const functors::AdemamixSchedule now(hyper);
  fast.mul_(hyper.beta1).add_(v.gradient, 1 - hyper.beta1);
  slow.mul_(now.beta3).add_(v.gradient, 1 - now.beta3);
  exp_avg_sq.mul_(hyper.beta2).addcmul_(v.gradient, v.gradient, 1 - hyper.beta2);
  const at::Tensor denominator = exp_avg_sq.sqrt().div_(std::sqrt(now.correction2)).add_(hyper.eps);
  const at::Tensor direction = fast.div(now.correction1).add_(slow, now.alpha).div_(denominator);
  v.master.sub_(direction.add_(v.master, hyper.weight_decay), hyper.lr);
}

constexpr std::array kAdemamixStates{kExpAvg, kExpAvgSq, kExpAvgSlow};

const Rule& ademamix(std::span<const Hyper>) {
  static const Rule rule = rule_of<Algorithm::kAdemamix>("AdEMAMix", kAdemamixStates, &ademamix_on_device);
  return rule;
}

struct Row {
  Algorithm algorithm;
  const Rule& (*rule)(std::span<const Hyper> groups);  ///< that keeps what one of the groups needs
};
constexpr Row kRows[] = {
    {Algorithm::kAdam, &adam_for},      {Algorithm::kSgd, &sgd},
    {Algorithm::kAdagrad, &adagrad},    {Algorithm::kRmsprop, &rmsprop},
    {Algorithm::kLion, &lion},          {Algorithm::kLamb, &lamb},
    {Algorithm::kMuon, &muon},          {Algorithm::kAdafactor, &adafactor},
    {Algorithm::kAdam8bit, &adam_8bit}, {Algorithm::kAdemamix, &ademamix},
};
constexpr bool are_in_order() {
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<std::size_t>(kRows[i].algorithm) != i) return false;
  }
  return std::size(kRows) == kAlgorithms;
}
static_assert(are_in_order(), "a row for every algorithm, in their order");

}  // namespace

const Rule& rule_in_fp32(Algorithm algorithm, std::span<const Hyper> groups) {
  return kRows[static_cast<std::size_t>(algorithm)].rule(groups);
}

const Rule& adam() {
  static const Rule rule = rule_of<Algorithm::kAdam>("Adam", std::span<const StateColumn>(kAdamStates).first(2),
                                                     &adam_on_device, &missing_without_amsgrad);
  return rule;
}

}  // namespace zero::optim
