#include "engine/optimizers/client_optimizer.h"

#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <type_traits>

#include "intercept/gradient_marker.h"
#include "zero/errors.h"

namespace zero::engine {

/// A group's options, as long as the optimizer lives; then their last values.
struct ClientOptimizer::Group {
  std::function<optim::Hyper()> read;  ///< empty: the options are gone
  std::weak_ptr<int> states;           ///< what stands where states would be; they go before the options
  bool has_states = false;
  std::size_t parameters = 0;            ///< when it was taken over
  bool had_momentum = false;             ///< at an update
  double initial_accumulator_value = 0;  ///< libtorch's Adagrad fills its sums when it is made, by its defaults
  optim::Hyper last;
};

namespace {

constexpr const char* kStatesAreElsewhere =
    "torch::save of an optimizer that zero::initialize has taken over would write it without its states, "
    "which are "
    "in the engine: save with Engine::save_checkpoint and load with Engine::load_checkpoint";

// What each of libtorch's optimizers says in its options, and the state that tells when it is stepped.

template <class AdamOptions>
optim::Hyper hyper_of_adam(const AdamOptions& from, bool decoupled) {
  optim::Hyper hyper{.lr = from.lr(), .eps = from.eps(), .weight_decay = from.weight_decay()};
  std::tie(hyper.beta1, hyper.beta2) = from.betas();
  hyper.adam_w_mode = decoupled;
  hyper.amsgrad = from.amsgrad();
  return hyper;
}

struct AdamWKind {
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
  static constexpr auto kAlgorithm = optim::Algorithm::kAdam;
  static optim::Hyper hyper_of(const Options& from) { return hyper_of_adam(from, true); }
  static void mark(State& state, const at::Tensor& marker) { state.exp_avg(marker), state.exp_avg_sq(marker); }
  static bool is_fresh(const State&) { return false; }
};

struct AdamKind {
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
  static constexpr auto kAlgorithm = optim::Algorithm::kAdam;
  static optim::Hyper hyper_of(const Options& from) { return hyper_of_adam(from, false); }
  static void mark(State& state, const at::Tensor& marker) { state.exp_avg(marker), state.exp_avg_sq(marker); }
  static bool is_fresh(const State&) { return false; }
};

struct SgdKind {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr auto kAlgorithm = optim::Algorithm::kSgd;
  static optim::Hyper hyper_of(const Options& from) {
    return {.lr = from.lr(),
            .weight_decay = from.weight_decay(),
            .momentum = from.momentum(),
            .dampening = from.dampening(),
            .nesterov = from.nesterov()};
  }
  static void mark(State& state, const at::Tensor& marker) { state.momentum_buffer(marker); }
  static bool is_fresh(const State&) { return false; }
};

struct AdagradKind {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr auto kAlgorithm = optim::Algorithm::kAdagrad;
  static optim::Hyper hyper_of(const Options& from) {
    return {.lr = from.lr(), .eps = from.eps(), .weight_decay = from.weight_decay(), .lr_decay = from.lr_decay()};
  }
  static void mark(State& state, const at::Tensor& marker) { state.sum(marker); }
  static bool is_fresh(const State& state) { return state.step() == 0; }  // made by its constructor
};

struct RmspropKind {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr auto kAlgorithm = optim::Algorithm::kRmsprop;
  static optim::Hyper hyper_of(const Options& from) {
    return {.lr = from.lr(),
            .eps = from.eps(),
            .weight_decay = from.weight_decay(),
            .momentum = from.momentum(),
            .alpha = from.alpha(),
            .centered = from.centered()};
  }
  static void mark(State& state, const at::Tensor& marker) {
    state.square_avg(marker), state.momentum_buffer(marker), state.grad_avg(marker);
  }
  static bool is_fresh(const State&) { return false; }
};

/// Options that tell when they go.
template <class Kind>
class LiveOptions final : public Kind::Options {
 public:
  LiveOptions(const typename Kind::Options& options, std::shared_ptr<ClientOptimizer::Group> group)
      : Kind::Options(options), group_(std::move(group)) {
    group_->read = [this] { return Kind::hyper_of(*this); };
  }
  LiveOptions(const LiveOptions&) = delete;
  LiveOptions& operator=(const LiveOptions&) = delete;
  ~LiveOptions() override {
    try {
      group_->last = group_->read();
    } catch (...) {  // a destructor does not throw: those before stay
    }
    group_->read = nullptr;
  }

 private:
  std::shared_ptr<ClientOptimizer::Group> group_;
};

/// Stands where a parameter's state would be.
template <class Kind>
class StateElsewhere final : public Kind::State {
 public:
  StateElsewhere(const at::Tensor& parameter, std::shared_ptr<int> token) : token_(std::move(token)) {
    const at::Tensor marker =
        intercept::make_gradient_marker(parameter,
                                        "this optimizer was taken over by zero::initialize: call "
                                        "Engine::step() instead of its step(), which would "
                                        "train nothing; the engine goes by this optimizer's rates");
    Kind::mark(*this, marker);
  }
  void serialize(torch::serialize::OutputArchive&) const override { throw ModelError(kStatesAreElsewhere); }
  using Kind::State::serialize;

 private:
  std::shared_ptr<int> token_;
};

template <class Kind>
optim::Algorithm take_over(torch::optim::Optimizer& optimizer,
                           std::vector<std::shared_ptr<ClientOptimizer::Group>>& groups) {
  for (auto& [key, state] : optimizer.state()) {
    if (dynamic_cast<StateElsewhere<Kind>*>(state.get())) continue;  // of an engine before
    if (Kind::is_fresh(static_cast<const typename Kind::State&>(*state))) continue;
    throw ConfigError(
        "the client optimizer has been stepped before initialize(); its states cannot be taken over: "
        "give a fresh one");
  }
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const typename Kind::Options&>(group.options());
    const auto taken = groups.emplace_back(std::make_shared<ClientOptimizer::Group>());
    taken->last = Kind::hyper_of(options);
    if constexpr (std::is_same_v<Kind, AdagradKind>) {
      taken->initial_accumulator_value =
          static_cast<const typename Kind::Options&>(optimizer.defaults()).initial_accumulator_value();
    }
    group.set_options(std::make_unique<LiveOptions<Kind>>(options, taken));
    const auto token = std::make_shared<int>(0);
    taken->states = token;
    taken->has_states = !group.params().empty();
    taken->parameters = group.params().size();
    for (const auto& parameter : group.params()) {
      optimizer.state()[parameter.unsafeGetTensorImpl()] = std::make_unique<StateElsewhere<Kind>>(parameter, token);
    }
  }
  return Kind::kAlgorithm;
}

optim::Algorithm take_over_any(torch::optim::Optimizer& optimizer,
                               std::vector<std::shared_ptr<ClientOptimizer::Group>>& groups) {
  using namespace torch::optim;
  if (dynamic_cast<AdamW*>(&optimizer)) return take_over<AdamWKind>(optimizer, groups);
  if (dynamic_cast<Adam*>(&optimizer)) return take_over<AdamKind>(optimizer, groups);
  if (dynamic_cast<SGD*>(&optimizer)) return take_over<SgdKind>(optimizer, groups);
  if (dynamic_cast<Adagrad*>(&optimizer)) return take_over<AdagradKind>(optimizer, groups);
  if (dynamic_cast<RMSprop*>(&optimizer)) return take_over<RmspropKind>(optimizer, groups);
  throw ConfigError(
      "the client optimizer is none of torch::optim::AdamW, Adam, SGD, Adagrad and RMSprop (LBFGS needs the loss "
      "several times a step and whole gradients); use one of these, leave it out and name the optimizer in the "
      "JSON, or make it in InitializeOptions::optimizer_factory");
}

/// Throws ConfigError for values that no optimizer takes.
void check_values(const optim::Hyper& hyper, std::size_t group) {
  if (!(hyper.lr >= 0 && std::isfinite(hyper.lr))) {
    throw ConfigError(
        fmt::format("group {} of the client optimizer has the learning rate {:g}; wanted a finite "
                    "number that is not negative",
                    group, hyper.lr));
  }
  for (const auto& number : optim::hyper_numbers()) {
    const double value = number.of(hyper);
    if (!number.may_be_negative && !(value >= 0 && std::isfinite(value))) {
      throw ConfigError(
          fmt::format("group {} of the client optimizer has {} {:g}; wanted a finite number that is not negative",
                      group, number.name, value));
    }
  }
  if (hyper.nesterov && !optim::may_be_nesterov(hyper)) {
    throw ConfigError(
        fmt::format("group {} of the client optimizer has nesterov on with momentum {:g} and dampening {:g}; it needs "
                    "a momentum and no dampening",
                    group, hyper.momentum, hyper.dampening));
  }
}

}  // namespace

ClientOptimizer::ClientOptimizer(torch::optim::Optimizer& optimizer)
    : optimizer_(&optimizer), algorithm_(take_over_any(optimizer, groups_)) {
  std::vector<optim::Hyper> hypers;
  hypers.reserve(groups_.size());
  for (const auto& group : groups_) hypers.push_back(group->last);
  rule_ = &optim::rule_for(algorithm_, hypers);
}

ClientOptimizer::~ClientOptimizer() = default;

void ClientOptimizer::read_options() {
  check_parameters();
  for (std::size_t g = 0; g < groups_.size(); ++g)
    optimizer().set_hyper(g, hyper_of_update(g, optimizer().steps() == 0));
}

void ClientOptimizer::check_parameters() const {
  // Its options go with it.
  if (std::ranges::any_of(groups_, [](const auto& group) { return !group->read; })) return;
  const auto& now = optimizer_->param_groups();
  bool same = now.size() == groups_.size();
  for (std::size_t g = 0; same && g < groups_.size(); ++g) same = now[g].params().size() == groups_[g]->parameters;
  if (same) return;
  throw ConfigError(
      "the client optimizer has got or lost parameters or groups since zero::initialize, which the engine "
      "would not "
      "train: give it all parameters before (frozen ones may be unfrozen later), or make a new engine");
}

optim::Hyper ClientOptimizer::hyper_of_update(std::size_t index, bool is_first) const {
  const optim::Hyper hyper = this->hyper(index);
  Group& group = *groups_[index];
  if (algorithm_ == optim::Algorithm::kSgd && hyper.momentum != 0 && hyper.dampening != 0 && !group.had_momentum &&
      !is_first) {
    throw ConfigError(
        fmt::format("group {} of the client optimizer has got a momentum after updates without one, with a "
                    "dampening of {:g}: "
                    "libtorch leaves the dampening out of the first such update, which the engine does not; "
                    "set the dampening to 0, "
                    "or give the momentum from the start",
                    index, hyper.dampening));
  }
  group.had_momentum = group.had_momentum || hyper.momentum != 0;
  return hyper;
}

optim::Hyper ClientOptimizer::hyper(std::size_t index) const {
  Group& group = *groups_[index];
  if (group.has_states && static_cast<bool>(group.read) == group.states.expired()) {
    throw ConfigError(fmt::format(
        "group {} of the client optimizer has got {}", index,
        group.read ? "states since zero::initialize (torch::load?), which the engine does not take over: load with "
                     "Engine::load_checkpoint"
                   : "other options since zero::initialize (set_options?), which the engine does not see: change "
                     "them "
                     "in place, as options().set_lr() and schedulers do"));
  }
  if (group.read) group.last = group.read();
  group.last.initial_accumulator_value = group.initial_accumulator_value;
  check_values(group.last, index);
  if (const auto missing = rule_->missing_state ? rule_->missing_state(group.last) : std::string_view();
      !missing.empty()) {
    throw ConfigError(
        fmt::format("group {} of the client optimizer has come to need the state {}, for which no group had the "
                    "options at zero::initialize; set them before it (a momentum may be lowered to 0 later)",
                    index, missing));
  }
  return group.last;
}

}  // namespace zero::engine
