#pragma once
// A torch::optim optimizer that the engine has taken over: its groups stay live, its states are elsewhere.
//
// Schedulers and programs go on setting rates in the optimizer's options; the engine reads them at every step.
// The optimizer may go before the engine: what it said last then stays. Saving it, which would write an optimizer
// without states, throws.
#include <memory>
#include <vector>

#include "engine/optimizers/optimizer_source.h"
#include "optim/rule.h"

namespace torch::optim {
class Optimizer;
}

namespace zero::engine {

class ClientOptimizer final : public OptimizerSource {
 public:
  /// Takes the place of the optimizer's options and, for its parameters, of its states. Throws ConfigError:
  /// of a type that is not built, stepped already. Local.
  explicit ClientOptimizer(torch::optim::Optimizer& optimizer);
  ~ClientOptimizer() override;

  optim::Algorithm algorithm() const { return algorithm_; }
  /// As the options say now. Throws ConfigError for values that no optimizer takes, and for those that need a state
  /// that no group has needed at first.
  optim::Hyper hyper(std::size_t group) const;
  double base_lr(std::size_t group) const override { return hyper(group).lr; }
  void read_options() override;

  struct Group;

 private:
  /// The same for the next update of the engine; `is_first`: it has made none.
  optim::Hyper hyper_of_update(std::size_t group, bool is_first) const;
  /// Throws ConfigError when it holds other parameters than at first.
  void check_parameters() const;

  torch::optim::Optimizer* optimizer_;  ///< may be gone, and then so are the options of groups
  std::vector<std::shared_ptr<Group>> groups_;
  optim::Algorithm algorithm_;
  const optim::Rule* rule_ = nullptr;  ///< of the groups as they were
};

}  // namespace zero::engine
