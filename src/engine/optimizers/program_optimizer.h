#pragma once
// An optimizer of the program's own (InitializeOptions::optimizer_factory), over this rank's fp32 master weights: one
// flat tensor a parameter, also where this rank has nothing of it, so that counters go on alike on every rank.
//
// Its states stay with it. What a checkpoint needs of them is taken out, and put in, through their serialize().
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/optimizers/optimizer_source.h"
#include "zero/engine.h"

namespace zero::engine {

/// Keeps no states: the engine's part is the master weights.
const optim::Rule& program_rule();

class ProgramOptimizer final : public OptimizerSource {
 public:
  /// A state of one parameter, as its serialize() says.
  struct State {
    std::map<std::string, at::Tensor> tensors;         ///< of this rank's elements, fp32
    nlohmann::json values = nlohmann::json::object();  ///< numbers and tensors without dimensions, by name
  };

  /// `name`: of the optimizer, empty: its class.
  ProgramOptimizer(OptimizerFactory factory, std::string name);
  ~ProgramOptimizer() override;

  /// Calls the factory with this rank's master weights of all trainable units. Throws ConfigError: no optimizer, other
  /// tensors or groups, rates that cannot be set, other optimizers on other ranks.
  void attach(const sharding::ShardedModel& model, sharding::ShardedOptimizer& masters, Group& all) override;

  std::string class_name() const;
  /// The rate a group has of itself: as made, or as the program has set it since.
  double base_lr(std::size_t group) const override;
  /// The sums are used up. Throws ModelError when the optimizer throws.
  void update(sharding::UpdateSchedule& schedule, sharding::GradientReducer& reducer, sharding::Timeline& timeline,
              const std::vector<double>& rates, double gradient_scale) override;
  void add_units(std::span<const int> units) override;
  void set_updates(int, std::int64_t) override {}  // it counts by itself
  std::vector<std::string> state_names(int parameter) const override;
  at::Tensor state(int parameter, std::string_view name, sharding::Range mine) const override;
  void set_state(int parameter, std::string_view name, sharding::Range mine, const at::Tensor& values) override;
  at::Tensor state_before_updates(int parameter, std::string_view name) const override;
  ProgramOptimizer* keeper_of_states() override { return this; }

  /// What is to be saved of a parameter; nothing when it has no state yet, or is frozen. Throws CheckpointError, which
  /// names it, for what cannot be shared out over other ranks. Local.
  std::optional<State> saved_state(int parameter) const;
  /// The elements [mine) of the unit of a state's tensor.
  at::Tensor part_of(int parameter, const at::Tensor& state, sharding::Range mine) const;
  /// All but the tensors' values, of every parameter's state: what SavedState keeps.
  nlohmann::json to_json(const std::vector<std::optional<State>>& states) const;
  /// The way back. Nothing: the state starts anew. Throws CheckpointError. Local.
  void put_state(int parameter, const std::optional<State>& state);

 private:
  struct Shard {
    at::Tensor master;      ///< fp32, a leaf; undefined for frozen parameters
    sharding::Range range;  ///< in the unit
  };

  Shard make_shard(int parameter) const;
  std::vector<std::vector<at::Tensor>> by_group() const;
  void check_groups(const std::vector<std::vector<at::Tensor>>& shards);
  /// Steps the optimizer where this parameter alone has a gradient, of zeros, on zeros: it makes its state.
  void make_state(int parameter);
  torch::optim::Optimizer& program() const { return *program_; }
  /// The state, if it is one of an element each. Throws ModelError.
  State checked_states(int parameter, std::string_view name) const;

  OptimizerFactory factory_;
  std::vector<Shard> shards_;  ///< by parameter
  std::string name_;
  std::unique_ptr<torch::optim::Optimizer> program_;
  mutable std::vector<double> base_lr_, last_lr_;  ///< by group
};

}  // namespace zero::engine
