#pragma once
// Whose optimizer trains. The configuration's is ShardedOptimizer as it is. One of libtorch's is taken over, and
// ShardedOptimizer goes by its options. One of the program's own updates the master weights and keeps its own states.
// The engine knows this interface only.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optim/rule.h"
#include "sharding/gradient_reducer.h"
#include "sharding/sharded_model.h"
#include "sharding/sharded_optimizer.h"
#include "sharding/update/schedule.h"
#include "zero/group.h"

namespace zero::engine {

class ProgramOptimizer;

class OptimizerSource {
 public:
  virtual ~OptimizerSource() = default;

  /// The masters are there. *Collective.* Throws ConfigError.
  virtual void attach(const sharding::ShardedModel& model, sharding::ShardedOptimizer& optimizer, Group& all);

  // ---- Rates and hyper-parameters, by parameter group
  /// The rate before the schedule. Throws ConfigError.
  virtual double base_lr(std::size_t group) const = 0;
  /// Takes over what the program has set in its optimizer since the last update. Throws ConfigError.
  virtual void read_options() {}
  /// Engine::set_parameter_group(). Throws ConfigError: here, as the optimizer's own options say what they are.
  using HyperOf = std::function<optim::Hyper(const sharding::OptimizerGroup&)>;
  virtual void set_group(std::size_t group, const HyperOf& hyper_of);

  // ---- Updates
  /// Updates what is active with its sums times `gradient_scale`; here by `schedule`. *Collective*; other ranks see it
  /// after ParameterStore::publish().
  virtual void update(sharding::UpdateSchedule& schedule, sharding::GradientReducer& reducer,
                      sharding::Timeline& timeline, const std::vector<double>& rates, double gradient_scale);
  /// Units that were frozen are trained from here on. *Collective.*
  virtual void add_units(std::span<const int> units);
  /// The parameter has been updated so many times. Local.
  virtual void set_updates(int parameter, std::int64_t updates);

  // ---- States of a parameter that have an element for each of its own, fp32
  /// Those and the states of whole tensors. Local.
  virtual std::vector<std::string> state_names(int parameter) const;
  /// This rank's elements [mine) of the unit; undefined if there are none. Throws ModelError if there is no such state.
  /// Local.
  virtual at::Tensor state(int parameter, std::string_view name, sharding::Range mine) const;
  virtual void set_state(int parameter, std::string_view name, sharding::Range mine, const at::Tensor& values);
  /// A whole state of a parameter whose unit was never updated. Throws ModelError for a frozen one. Local.
  virtual at::Tensor state_before_updates(int parameter, std::string_view name) const;
  /// For checkpoints: has the states; null: ShardedOptimizer has them.
  virtual ProgramOptimizer* keeper_of_states() { return nullptr; }

 protected:
  const sharding::ShardedModel& model() const { return *model_; }
  sharding::ShardedOptimizer& optimizer() const { return *optimizer_; }

 private:
  /// The index of a state that the parameter has. Throws ModelError.
  std::size_t checked_state(int parameter, std::string_view name) const;

  const sharding::ShardedModel* model_ = nullptr;
  sharding::ShardedOptimizer* optimizer_ = nullptr;
};

/// The JSON's "optimizer", or what stands in for it.
class ConfiguredOptimizer final : public OptimizerSource {
 public:
  /// `rates`: by group.
  explicit ConfiguredOptimizer(std::vector<double> rates) : rates_(std::move(rates)) {}

  double base_lr(std::size_t group) const override { return rates_[group]; }
  void set_group(std::size_t group, const HyperOf& hyper_of) override;

 private:
  std::vector<double> rates_;
};

}  // namespace zero::engine
