#include "compare/compare_case.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "compare/compare_report.h"
#include "host/rank_device.h"
#include "host/rank_setup.h"
#include "host/rank_totals.h"
#include "model/language_model.h"
#include "text/console.h"
#include "text/progress.h"
#include "train/report_tables.h"
#include "train/train_loop.h"
#include "zero/cpu_products.h"
#include "zero/device_memory.h"
#include "zero/errors.h"
#include "zero/lm/data.h"
#include "zero/train.h"

namespace zero::app {
namespace {

using nlohmann::ordered_json;

/// What is trained: the module under an engine, or alone.
class Trainer {
 public:
  Trainer(const CompareCase& one, const Config& config, Group group, at::Device device)
      : config_(config), group_(group), device_(device), model_(gpt_options(one.plan)) {
    if (one.mode == "compute") {
      const DType dtype = config.param_dtype();
      if (dtype != DType::kFloat32) model_->to(dtype == DType::kBFloat16 ? at::kBFloat16 : at::kHalf);
      if (!device_.is_cpu()) model_->to(device_);
      if (device_.is_cpu() && dtype != DType::kFloat32) {
        products_ = cpu_products_of_all(config.zerotorch.cpu_products, dtype, group_);
      }
      return;
    }
    engine_.emplace(
        initialize(model_, config, {.group = group, .device = device_, .parameter_groups = {no_decay_group()}}));
  }

  double micro_batch(const at::Tensor& host_tokens) {
    const at::Tensor tokens = host_tokens.to(device_);
    const std::int64_t seq = tokens.size(1) - 1;
    const at::Tensor loss = model_->loss(tokens.narrow(1, 0, seq), tokens.narrow(1, 1, seq));
    if (engine_) {
      engine_->backward(loss);
      engine_->step();
    } else {
      loss.backward();
      for (auto& parameter : model_->parameters()) parameter.mutable_grad().reset();
    }
    finish_device(device_);
    return loss.item<double>();
  }

  double learning_rate() const { return engine_ ? engine_->learning_rate() : 0; }
  at::Device device() const { return device_; }
  const std::optional<ModuleEngine<GPT>>& engine() const { return engine_; }
  /// Elements received so far, in bytes of their dtypes.
  double received_nbytes() const {
    if (!engine_) return 0;
    return static_cast<double>(engine_->communication_report().received_nbytes);
  }

 private:
  const Config& config_;
  Group group_;
  at::Device device_;
  GPT model_;
  std::optional<CpuProductsScope> products_;  ///< of a module alone
  std::optional<ModuleEngine<GPT>> engine_;
};

ordered_json memory_json(const Group& group, const Trainer& trainer) {
  MemoryReport mine;
  if (trainer.engine()) mine = trainer.engine()->memory_report();
  ordered_json ranks = ordered_json::array();
  for (const MemoryReport& report : gather_memory(group, mine)) ranks.push_back(kinds_json(report));
  const double peak = static_cast<double>(process_memory().peak_proportional_nbytes);
  const std::vector<double> peaks = gather_values(group, {&peak, 1}, "peak memory");
  double sum = 0;
  for (const double one : peaks) sum += one;
  ordered_json json = {{"by_rank", ranks}, {"peak_pss_nbytes_by_rank", peaks}, {"peak_pss_nbytes", sum}};
  if (const auto devices = gather_memory(group, device_memory(trainer.device())); has_devices(devices)) {
    json["device_by_rank"] = devices_json(devices);
    json["peak_device_nbytes"] = fullest(devices).peak_reserved_nbytes;
  }
  return json;
}

}  // namespace

int run_case(const CompareCase& one, Group group) {
  const at::Device device = device_of_rank(one.plan.device, group);
  const Config config = Config::from_text(one.plan.config, "configuration of the comparison");
  set_up_process(group, config, {.announce_stop = false, .quiet = true, .device = device});
  Progress progress(Console(group.rank() == 0 && !one.plan.quiet), 0, 0);
  progress.busy(fmt::format("  {}: building the model ...", mode_title(one.mode)));
  Clock clock;
  Trainer trainer(one, config, group, device);
  const double initialize_seconds = clock.lap();
  const SequenceSampler sampler(Corpus(one.plan.corpus_folder, Split::kTrain), one.plan.seq,
                                static_cast<std::uint64_t>(one.plan.seed));
  const std::int64_t batch = config.train_micro_batch_size_per_gpu;
  const at::Tensor tokens = at::empty({batch, one.plan.seq + 1}, at::kLong);
  // Memory and time of training, not of the start.
  reset_peak_memory();
  reset_peak_device_memory(trainer.device());
  std::vector<double> losses, seconds, rates;
  StepBreakdown inside;
  double received = 0;
  int stop_signal = 0;
  std::int64_t micro_steps = 0;
  for (std::int64_t step = 0; step < one.plan.steps && stop_signal == 0; ++step) {
    rates.push_back(trainer.learning_rate());
    const double before = trainer.received_nbytes();
    group.barrier().wait();
    clock.lap();
    std::vector<double> mine;
    for (std::int64_t j = 0; j < config.gradient_accumulation_steps; ++j, ++micro_steps) {
      sampler.fill(micro_steps * group.size() + group.rank(), batch, tokens.mutable_data_ptr<std::int64_t>());
      mine.push_back(trainer.micro_batch(tokens));
    }
    group.barrier().wait();
    seconds.push_back(clock.lap());
    if (trainer.engine() && step >= one.warmup) add(inside, trainer.engine()->step_breakdown());
    received = trainer.received_nbytes() - before;
    losses.push_back(mean_loss(group, mine));
    progress.busy(fmt::format("  {}: step {} of {}", mode_title(one.mode), step + 1, one.plan.steps));
    stop_signal = agreed_stop_signal(group);
  }
  progress.finish();
  const std::vector<double> all_received = gather_values(group, {&received, 1}, "bytes received");
  double mean_received = 0;
  for (const double each : all_received) mean_received += each / group.size();
  const ordered_json memory = memory_json(group, trainer);
  if (group.rank() != 0) return stop_signal;
  const double each = 1e3 / static_cast<double>(std::max<std::int64_t>(1, one.plan.steps - one.warmup));
  const ordered_json result = {{"mode", one.mode},
                               {"stop_signal", stop_signal},
                               {"losses", losses},
                               {"seconds", seconds},
                               {"learning_rates", rates},
                               {"initialize_seconds", initialize_seconds},
                               {"received_nbytes_per_step", mean_received},
                               {"ms_per_step", breakdown_json(inside, each)},
                               {"memory", memory}};
  std::ofstream file(one.result_file);
  file << result.dump(1) << "\n";
  if (!file.flush()) throw IoError(fmt::format("cannot write {}", one.result_file));
  return stop_signal;
}

}  // namespace zero::app
