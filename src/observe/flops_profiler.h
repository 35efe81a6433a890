#pragma once
// FlopsProfiler: what the section "flops_profiler" of the configuration asks for. Between the steps it waits for and
// after that one it does nothing.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "intercept/flop_observer.h"
#include "observe/step_observer.h"
#include "sharding/sharded_model.h"
#include "zero/config.h"
#include "zero/report.h"

namespace torch::nn {
class Module;
}

namespace zero::observe {

class FlopsProfiler final : public StepObserver {
 public:
  /// `uses` observes the parameters of `model`; `module` may be null; `speaks`: of all ranks this one prints. Counts
  /// from here on if the first step is the one. Local.
  FlopsProfiler(const Config::FlopsProfiler& options, const sharding::ShardedModel& model,
                const intercept::UseObserver* uses, torch::nn::Module* module, bool speaks);

  /// Where the step that ends is the one, every rank measures its peak. Never throws for a file that cannot be written.
  void end_step(std::int64_t global_steps, bool ends_accumulation) override;
  const FlopsReport& report() const { return report_; }

 private:
  /// Counts from here on if the step after `steps` is the one.
  void start_if_due(std::int64_t steps);
  /// Index of the module `name`, made with those around it where they are new.
  int module_named(const std::string& name);
  void finish();
  /// The module and those in it, in the order in which the tree is written.
  void add_to_report(int module);
  void say() const;

  const Config::FlopsProfiler options_;
  const sharding::ShardedModel& model_;
  const intercept::UseObserver* const uses_;
  const bool speaks_;
  std::vector<ModuleFlops> modules_;                   ///< the root first, each before those in it
  std::vector<int> parent_;                            ///< by module
  std::vector<int> owner_;                             ///< by parameter
  std::unique_ptr<intercept::FlopObserver> observer_;  ///< while it counts
  FlopsReport report_;
};

}  // namespace zero::observe
