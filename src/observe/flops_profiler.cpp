#include "observe/flops_profiler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "io/file_system.h"
#include "storage/flat_buffer.h"
#include "zero/errors.h"

namespace zero {
namespace {

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

/// "1.234 G".
std::string scaled(double number) {
  constexpr double kStep = 1000;
  const char* unit = "";
  for (const char* next : {" k", " M", " G", " T", " P"}) {
    if (number < kStep) break;
    number /= kStep;
    unit = next;
  }
  return fmt::format("{:.4g}{}", number, unit);
}

std::int64_t flops_of(const ModuleFlops& module) { return module.forward_flops + module.backward_flops; }

}  // namespace

double FlopsReport::utilization() const {
  const auto flops = static_cast<double>(forward_flops + backward_flops);
  return ratio(ratio(flops, step_seconds), peak_flops_per_second);
}

std::string FlopsReport::to_string(std::int64_t depth, std::int64_t top, bool detailed) const {
  if (step < 0) return "no step has been profiled yet\n";
  const auto forward = static_cast<double>(forward_flops), backward = static_cast<double>(backward_flops);
  std::string text = fmt::format(
      "FLOPs of step {} on this rank: {} micro-batches, {} parameters\n"
      "  forward  {:>12} FLOPs in {:8.3f} s: {} FLOPs/s\n"
      "  backward {:>12} FLOPs in {:8.3f} s: {} FLOPs/s\n"
      "  step     {:>12} FLOPs in {:8.3f} s: {} FLOPs/s, {:.1f} % of {} FLOPs/s (a matrix product of 1024 x 1024)\n",
      step, micro_batches, scaled(static_cast<double>(parameters)), scaled(forward), forward_seconds,
      scaled(ratio(forward, forward_seconds)), scaled(backward), backward_seconds,
      scaled(ratio(backward, backward_seconds)), scaled(forward + backward), step_seconds,
      scaled(ratio(forward + backward, step_seconds)), 100 * utilization(), scaled(peak_flops_per_second));
  text += "  by operator:";
  for (const auto& [name, flops] : by_operator) text += fmt::format(" {} {}", name, scaled(static_cast<double>(flops)));
  text += '\n';
  int deepest = 0;
  for (const auto& module : modules) deepest = std::max(deepest, module.depth);
  const int last = depth < 0 ? deepest : static_cast<int>(std::min<std::int64_t>(depth, deepest));
  for (int level = 0; level <= last; ++level) {
    std::vector<const ModuleFlops*> here;
    for (const auto& module : modules) {
      if (module.depth == level) here.push_back(&module);
    }
    std::ranges::stable_sort(here, std::ranges::greater(), [](const ModuleFlops* one) { return flops_of(*one); });
    if (here.size() > static_cast<std::size_t>(top)) here.resize(static_cast<std::size_t>(top));
    text += fmt::format("  depth {}:", level);
    for (const auto* module : here) {
      text +=
          fmt::format(" {} {} ({} parameters)", module->name.empty() ? "model" : module->name,
                      scaled(static_cast<double>(flops_of(*module))), scaled(static_cast<double>(module->parameters)));
    }
    text += '\n';
  }
  if (!detailed) return text;
  text += fmt::format("  {:<48}{:>12}{:>12}{:>12}{:>8}\n", "module", "parameters", "forward", "backward", "%");
  for (const auto& module : modules) {
    if (module.depth > last) continue;
    const std::string_view last_name = std::string_view(module.name).substr(module.name.rfind('.') + 1);
    const std::string type = module.type.empty() ? std::string() : fmt::format(" ({})", module.type);
    const std::string name =
        fmt::format("{:{}}{}{}", "", 2 * module.depth, last_name.empty() ? "model" : last_name, type);
    text += fmt::format("  {:<48}{:>12}{:>12}{:>12}{:>8.2f}\n", name, scaled(static_cast<double>(module.parameters)),
                        scaled(static_cast<double>(module.forward_flops)),
                        scaled(static_cast<double>(module.backward_flops)),
                        100 * ratio(static_cast<double>(flops_of(module)), forward + backward));
  }
  return text;
}

namespace observe {
namespace {

/// "zero::models::GPTBlockImpl" and "torch::nn::LinearImpl" without what says nothing.
std::string short_type(std::string name) {
  name.erase(0, name.rfind("::") == std::string::npos ? 0 : name.rfind("::") + 2);
  constexpr std::string_view kImpl = "Impl";
  if (name.ends_with(kImpl)) name.resize(name.size() - kImpl.size());
  return name;
}

/// FLOPs a second of a large matrix product, the fastest of those that fit a fifth of a second.
double measure_peak(const sharding::ShardedModel& model) {
  constexpr std::int64_t kSize = 1024;
  constexpr double kSeconds = 0.2;
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions(device::to_scalar_type(model.param_dtype)).device(model.module_device);
  const at::Tensor left = at::full({kSize, kSize}, 0.5, options), right = at::full({kSize, kSize}, 0.25, options);
  double best = 0;
  const double end = base::seconds_now() + kSeconds;
  for (int round = 0; round < 2 || base::seconds_now() < end; ++round) {
    const double begin = base::seconds_now();
    const at::Tensor product = at::mm(left, right);
    if (!model.module_device.is_cpu()) product[0][0].item();  // waits for the device
    constexpr double kFlops = 2.0 * kSize * kSize * kSize;
    best = std::max(best, ratio(kFlops, base::seconds_now() - begin));
  }
  return best;
}

}  // namespace

FlopsProfiler::FlopsProfiler(const Config::FlopsProfiler& options, const sharding::ShardedModel& model,
                             const intercept::UseObserver* uses, torch::nn::Module* module, bool speaks)
    : options_(options), model_(model), uses_(uses), speaks_(speaks), modules_(1), parent_{0} {
  if (module != nullptr) {
    for (const auto& item : module->named_modules()) {
      const int index = module_named(item.key());
      modules_[static_cast<std::size_t>(index)].type = short_type(item.value()->name());
    }
  }
  for (const auto& parameter : model_.parameters) {
    const auto dot = parameter.name.rfind('.');
    owner_.push_back(module_named(dot == std::string::npos ? std::string() : parameter.name.substr(0, dot)));
    for (int m = owner_.back();; m = parent_[static_cast<std::size_t>(m)]) {
      modules_[static_cast<std::size_t>(m)].parameters += parameter.range.numel();
      if (m == 0) break;
    }
  }
  start_if_due(0);
}

int FlopsProfiler::module_named(const std::string& name) {
  const auto found = std::ranges::find(modules_, name, &ModuleFlops::name);
  if (found != modules_.end()) return static_cast<int>(found - modules_.begin());
  const auto dot = name.rfind('.');
  const int parent = module_named(dot == std::string::npos ? std::string() : name.substr(0, dot));
  ModuleFlops& made = modules_.emplace_back();
  made.name = name;
  made.depth = modules_[static_cast<std::size_t>(parent)].depth + 1;
  parent_.push_back(parent);
  return static_cast<int>(modules_.size()) - 1;
}

void FlopsProfiler::start_if_due(std::int64_t steps) {
  if (steps != options_.profile_step || observer_ || report_.step >= 0) return;
  report_.micro_batches = 0;
  observer_ = std::make_unique<intercept::FlopObserver>(uses_, owner_, parent_);
}

void FlopsProfiler::end_step(std::int64_t global_steps, bool ends_accumulation) {
  if (observer_) {
    observer_->end_micro_batch();
    ++report_.micro_batches;
    if (ends_accumulation) finish();
  }
  if (ends_accumulation) start_if_due(global_steps);
}

void FlopsProfiler::finish() {
  const auto counts = observer_->counts();
  observer_.reset();
  report_.step = options_.profile_step;
  report_.step_seconds =
      counts.first_ns == 0 ? 0 : static_cast<double>(base::monotonic_ns() - counts.first_ns) / base::kNanosPerSecond;
  report_.forward_seconds = counts.forward_seconds;
  report_.backward_seconds = counts.backward_seconds;
  report_.by_operator = counts.by_operator;
  // Children come after their parents: from the last on each has all of its own.
  for (std::size_t m = modules_.size(); m-- > 0;) {
    modules_[m].forward_flops += counts.by_module[m].forward;
    modules_[m].backward_flops += counts.by_module[m].backward;
    if (m == 0) break;
    auto& parent = modules_[static_cast<std::size_t>(parent_[m])];
    parent.forward_flops += modules_[m].forward_flops;
    parent.backward_flops += modules_[m].backward_flops;
  }
  add_to_report(0);
  report_.parameters = modules_[0].parameters;
  report_.forward_flops = modules_[0].forward_flops;
  report_.backward_flops = modules_[0].backward_flops;
  report_.peak_flops_per_second = measure_peak(model_);
  if (speaks_) say();
}

void FlopsProfiler::add_to_report(int module) {
  report_.modules.push_back(modules_[static_cast<std::size_t>(module)]);
  for (std::size_t m = 1; m < modules_.size(); ++m) {
    if (parent_[m] == module) add_to_report(static_cast<int>(m));
  }
}

void FlopsProfiler::say() const {
  const std::string text = report_.to_string(options_.module_depth, options_.top_modules, options_.detailed);
  if (!options_.output_file) {
    base::log_info("{}", text);
    return;
  }
  try {
    io::replace_text(io::system_files(), *options_.output_file, text);
  } catch (const IoError& error) {
    base::log_warning("flops_profiler.output_file: {}", error.what());
  }
}

}  // namespace observe
}  // namespace zero
