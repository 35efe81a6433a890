#pragma once
// FlopsProfiler: what the section "flops_profiler" of the configuration asks for. Between the steps it waits for and
// after that one it does nothing.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "intercept/flop_observer.h"
#include "zero/config.h"
#include "zero/report.h"
#include "zero/sharded_model.h"

namespace torch::nn {
class Module;
}

namespace zero::engine {

class FlopsProfiler {
 public:
  /// `uses` observes the parameters of `model`; `module` may be null; `speaks`: of all ranks this one prints. Local.
  FlopsProfiler(const Config::FlopsProfiler& options, const sharding::ShardedModel& model,
                const intercept::UseObserver* uses, torch::nn::Module* module, bool speaks);

  /// Counts from here on if the step after `steps` is the one. Local.
  void begin_step(std::int64_t steps);
  /// A micro-batch is over; `ends_step`: with it an optimizer step, so that `steps` are done. Where that is the one,
  /// every rank measures its peak. Local; never throws for a file that cannot be written.
  void end_micro_batch(bool ends_step, std::int64_t steps);
  const FlopsReport& report() const { return report_; }

 private:
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

}  // namespace zero::engine
