#include "engine/client_optimizer.h"

#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <functional>

#include "intercept/gradient_marker.h"
#include "zero/errors.h"

namespace zero::engine {

/// A group's options, as long as the optimizer lives; then their last values.
struct ClientOptimizer::Group {
  std::function<optim::Hyper()> read;  ///< empty: the options are gone
  std::weak_ptr<int> states;               ///< what stands where states would be; they go before the options
  bool has_states = false;
  optim::Hyper last;
};

namespace {

constexpr const char* kStatesAreElsewhere =
    "torch::save of an optimizer that zero::initialize has taken over would write it without its states, "
    "which are "
    "in the engine: save with Engine::save_checkpoint and load with Engine::load_checkpoint";

/// torch::optim::AdamWOptions and AdamOptions have the same accessors and no common base.
template <class AdamOptions>
optim::Hyper hyper_of(const AdamOptions& from, bool decoupled) {
  if (from.amsgrad()) {
    throw ConfigError(
        "the client optimizer has amsgrad on, which needs a third state that is not kept here; "
        "switch it off");
  }
  optim::Hyper hyper;
  hyper.lr = from.lr();
  hyper.beta1 = std::get<0>(from.betas());
  hyper.beta2 = std::get<1>(from.betas());
  hyper.eps = from.eps();
  hyper.weight_decay = from.weight_decay();
  hyper.decoupled = decoupled;
  return hyper;
}

/// Options that tell when they go.
template <class AdamOptions>
class LiveOptions final : public AdamOptions {
 public:
  LiveOptions(const AdamOptions& options, std::shared_ptr<ClientOptimizer::Group> group, bool decoupled)
      : AdamOptions(options), group_(std::move(group)) {
    group_->read = [this, decoupled] { return hyper_of<AdamOptions>(*this, decoupled); };
  }
  LiveOptions(const LiveOptions&) = delete;
  LiveOptions& operator=(const LiveOptions&) = delete;
  ~LiveOptions() override {
    try {
      group_->last = group_->read();
    } catch (...) {  // values that no optimizer takes: those before stay
    }
    group_->read = nullptr;
  }

 private:
  std::shared_ptr<ClientOptimizer::Group> group_;
};

/// Stands where a parameter's state would be.
template <class ParamState>
class StateElsewhere final : public ParamState {
 public:
  StateElsewhere(const at::Tensor& parameter, std::shared_ptr<int> token) : token_(std::move(token)) {
    const at::Tensor marker =
        intercept::make_gradient_marker(parameter,
                                        "this optimizer was taken over by zero::initialize: call "
                                        "Engine::step() instead of its step(), which would "
                                        "train nothing; the engine goes by this optimizer's rates");
    this->exp_avg(marker);
    this->exp_avg_sq(marker);
  }
  void serialize(torch::serialize::OutputArchive&) const override { throw ModelError(kStatesAreElsewhere); }
  using ParamState::serialize;

 private:
  std::shared_ptr<int> token_;
};

template <class AdamOptions, class ParamState>
void take_over(torch::optim::Optimizer& optimizer, bool decoupled,
               std::vector<std::shared_ptr<ClientOptimizer::Group>>& groups) {
  for (auto& state : optimizer.state()) {
    if (dynamic_cast<StateElsewhere<ParamState>*>(state.second.get())) continue;  // of an engine before
    throw ConfigError(
        "the client optimizer has been stepped before initialize(); its states cannot be taken over: "
        "give a fresh one");
  }
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const AdamOptions&>(group.options());
    const auto taken = groups.emplace_back(std::make_shared<ClientOptimizer::Group>());
    taken->last = hyper_of(options, decoupled);
    group.set_options(std::make_unique<LiveOptions<AdamOptions>>(options, taken, decoupled));
    const auto token = std::make_shared<int>(0);
    taken->states = token;
    taken->has_states = !group.params().empty();
    for (const auto& parameter : group.params()) {
      optimizer.state()[parameter.unsafeGetTensorImpl()] =
          std::make_unique<StateElsewhere<ParamState>>(parameter, token);
    }
  }
}

}  // namespace

ClientOptimizer::ClientOptimizer(torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<AdamW*>(&optimizer)) {
    take_over<AdamWOptions, AdamWParamState>(optimizer, true, groups_);
  } else if (dynamic_cast<Adam*>(&optimizer)) {
    take_over<AdamOptions, AdamParamState>(optimizer, false, groups_);
  } else {
    throw ConfigError(
        "the client optimizer is neither torch::optim::AdamW nor torch::optim::Adam; use one of "
        "these, or leave it out and name the optimizer in the JSON");
  }
}

ClientOptimizer::~ClientOptimizer() = default;

optim::Hyper ClientOptimizer::hyper(std::size_t index) const {
  Group& group = *groups_[index];
  if (group.has_states && static_cast<bool>(group.read) == group.states.expired()) {
    throw ConfigError(fmt::format(
        "group {} of the client optimizer has got {}", index,
        group.read
            ? "states since zero::initialize (torch::load?), which the engine does not take over: load with "
              "Engine::load_checkpoint"
            : "other options since zero::initialize (set_options?), which the engine does not see: change "
              "them "
              "in place, as options().set_lr() and schedulers do"));
  }
  if (group.read) group.last = group.read();
  const optim::Hyper& now = group.last;
  if (!(now.lr >= 0 && std::isfinite(now.lr))) {
    throw ConfigError(
        fmt::format("group {} of the client optimizer has the learning rate {:g}; wanted a finite "
                    "number that is not negative",
                    index, now.lr));
  }
  return now;
}

}  // namespace zero::engine
