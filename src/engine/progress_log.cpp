#include "engine/progress_log.h"

#include <fmt/format.h>

#include "base/log.h"

namespace zero::engine {

void log_configuration(const Engine::Impl& impl) {
  if (impl.config.dump_state && impl.groups.is_first()) base::log_info("{}", impl.config.to_json());
}

void log_step(const Engine::Impl& impl) {
  const Config& config = impl.config;
  if (!impl.groups.is_first()) return;
  const std::int64_t step = impl.training.global_steps;
  if (config.steps_per_print > 0 && step % config.steps_per_print == 0) {
    base::log_info("step {}: lr {:.4g}, gradient norm {:.4g}, skipped {}", step, impl.rates.of(0), impl.step.grad_norm,
                   impl.training.scaler.skipped_steps());
  }
  if (config.wall_clock_breakdown) {
    const StepBreakdown& t = impl.step.times;
    base::log_info(
        "step {} in ms: gradient copy {:.2f}, reduce {:.2f}, gather {:.2f}, wait {:.2f}, norm {:.2f}, update "
        "{:.2f}, "
        "publish {:.2f}{}",
        step, t.gradient_copy * 1e3, t.reduce * 1e3, t.gather * 1e3, t.wait * 1e3, t.norm * 1e3, t.update * 1e3,
        t.publish * 1e3, impl.sharded.local_steps ? fmt::format(", islands {:.2f}", t.islands * 1e3) : "");
  }
  if (config.memory_breakdown) base::log_info("step {}, memory:\n{}", step, impl.sharded.ledger.report().to_string());
}

}  // namespace zero::engine
