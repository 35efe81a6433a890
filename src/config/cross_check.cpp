// Rules between keys, and defaults that depend on other keys.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <tuple>

#include "config/binder.h"
#include "config/exclusions.h"
#include "config/update_kind.h"

namespace zero::config {
namespace {

using Scheduler = Config::Scheduler;

struct Check {
  const GivenKeys& given;
  Config& config;
  Problems& problems;

  const Given* find(std::string_view path) const {
    const auto found = given.find(std::string(path));
    return found == given.end() ? nullptr : &found->second;
  }
  void problem(const Given& at, std::string_view text) { problems.add(at.line, fmt::format("{}: {}", at.path, text)); }
  void notice(std::string text) { config.notices.push_back(std::move(text)); }
};

void check_dtypes(Check& check) {
  const Config& config = check.config;
  const Given* given = check.find("data_types.param_dtype");
  if (given == nullptr || given->value.text.empty()) return;
  const std::string& text = given->value.text;
  const auto means = [&text](auto... names) { return ((text.find(names) != std::string::npos) || ...); };
  const DType wanted = means("bf") ? DType::kBFloat16 : means("16", "half") ? DType::kFloat16 : DType::kFloat32;
  if (wanted == config.param_dtype()) return;
  check.problem(*given, fmt::format("got \"{}\", but fp16.enabled is {} and bf16.enabled is {}, so want \"{}\": "
                                    "these choose the dtype; change one of them or remove the key",
                                    text, config.fp16.enabled, config.bf16.enabled, dtype_name(config.param_dtype())));
}

void check_16_bit_masters(Check& check) {
  const Config& config = check.config;
  const Given* states = check.find("bf16.bf16_optimizer_states");
  if (states != nullptr && config.bf16.optimizer_states && config.optimizer.type.ends_with("8bit")) {
    check.notice(fmt::format("{}: no effect: type {} keeps its states in 8 bits", states->path, config.optimizer.type));
  }
  const auto wants = [&](std::string_view path, bool on, bool enabled, std::string_view section) {
    const Given* given = check.find(path);
    if (given != nullptr && on && !enabled)
      check.problem(*given, fmt::format("needs {0}.enabled; set it to true", section));
  };
  wants("bf16.bf16_master_weights_and_grads", config.bf16.master_weights_and_grads, config.bf16.enabled, "bf16");
  wants("bf16.bf16_optimizer_states", config.bf16.optimizer_states, config.bf16.enabled, "bf16");
  wants("fp16.fp16_master_weights_and_grads", config.fp16.master_weights_and_grads, config.fp16.enabled, "fp16");
}

void check_gradients_on_nvme(Check& check) {
  const Config& config = check.config;
  const auto& offload = config.zerotorch.offload_gradients;
  const Given* given = check.find("zerotorch.offload_gradients.device");
  if (given == nullptr || offload.device != Config::OffloadDevice::kNvme) return;
  if (offload.nvme_path.empty() && config.zero_optimization.offload_optimizer.nvme_path.empty())
    check.problem(*given, "'nvme' needs nvme_path beside it, or that of offload_optimizer: a folder on a local disk");
}

void check_offload(Check& check) {
  constexpr std::string_view kThereAnyway =
      "no effect without a GPU: parameters and optimizer states are in host memory already";
  using Device = Config::OffloadDevice;
  const auto& zero = check.config.zero_optimization;
  const auto check_device = [&](std::string_view path, Device device, const std::string& folder) {
    const Given* given = check.find(path);
    if (given == nullptr) return;
    const bool needs_stage_3 = path.find("offload_param") != std::string_view::npos && zero.stage != 3;
    if (device == Device::kCpu && needs_stage_3)
      check.notice(
          fmt::format("{}: no effect at stage {}: parameters are offloaded at stage 3", given->path, zero.stage));
    else if (device == Device::kCpu)
      check.notice(fmt::format("{}: {}", given->path, kThereAnyway));
    if (device == Device::kNvme && folder.empty())
      check.problem(*given, "'nvme' needs nvme_path beside it: a folder on a local disk");
  };
  check_device("zero_optimization.offload_optimizer.device", zero.offload_optimizer.device,
               zero.offload_optimizer.nvme_path);
  check_device("zero_optimization.offload_param.device", zero.offload_param.device, zero.offload_param.nvme_path);
  const Given* ratio = check.find("zero_optimization.offload_optimizer.ratio");
  if (ratio != nullptr && zero.offload_optimizer.ratio < 1) {
    if (zero.offload_optimizer.device == Device::kNone)
      check.notice(fmt::format("{}: nothing is offloaded that could be divided", ratio->path));
  }
  for (const auto& [path, is_on] : {std::pair("zero_optimization.cpu_offload", zero.cpu_offload),
                                    std::pair("zero_optimization.cpu_offload_param", zero.cpu_offload_param)}) {
    if (is_on && check.find(path) != nullptr) check.notice(fmt::format("{}: {}", path, kThereAnyway));
  }
  check_gradients_on_nvme(check);
  const auto& activations = check.config.zerotorch.offload_activations;
  if (activations.device == Config::OffloadDevice::kNvme) {
    const Given* given = check.find("zerotorch.offload_activations.device");
    if (given != nullptr && activations.nvme_path.empty())
      check.problem(*given, "'nvme' needs nvme_path beside it: a folder on a local disk");
  }
  const bool by_old_key = check.config.activation_checkpointing.cpu_checkpointing;
  for (const auto& [path, is_on] :
       {std::pair("activation_checkpointing.cpu_checkpointing", by_old_key),
        std::pair("zerotorch.offload_activations.device", activations.device == Config::OffloadDevice::kCpu)}) {
    if (is_on && check.find(path) != nullptr)
      check.notice(fmt::format("{}: no effect without a GPU: activations are in host memory already", path));
  }
}

void check_loss_scale(Check& check) {
  const Config::Fp16& fp16 = check.config.fp16;
  if (!fp16.enabled || fp16.loss_scale != 0) return;
  const double initial = std::ldexp(1.0, static_cast<int>(fp16.initial_scale_power));
  const Given* given = check.find("fp16.min_loss_scale");
  if (given == nullptr) given = check.find("fp16.initial_scale_power");
  if (given == nullptr || initial >= fp16.min_loss_scale) return;
  check.problem(*given, fmt::format("the scale begins at {:g} (2 to the power of initial_scale_power), below "
                                    "min_loss_scale, {:g}; change one of the two",
                                    initial, fp16.min_loss_scale));
}

/// Of a section with a type: what another type takes.
void check_parameters(Check& check, const Given& type, std::span<const Key> keys) {
  const std::string& name = type.value.text;
  const std::string taken = parameters_of(name, keys);
  for (const Key& key : keys) {
    const Given* given = check.find(key.path);
    if (given == nullptr || takes(name, key)) continue;
    check.problem(*given, fmt::format("not a parameter of {}, which takes {}", name, taken));
  }
}

void check_optimizer(Check& check) {
  Config::Optimizer& optimizer = check.config.optimizer;
  const Given* section = check.find("optimizer");
  optimizer.given = check.find("optimizer.type") != nullptr;
  if (!optimizer.given) {
    if (check.find("optimizer.params") != nullptr) {
      check.problem(*section, "has params but no type; add \"type\": \"AdamW\"");
    }
    return;
  }
  const auto defaults = Config::Optimizer::defaults_of(optimizer.type);
  if (check.find("optimizer.params.lr") == nullptr) {
    optimizer.lr = defaults.lr;
    if (optimizer.type == "Muon" && !optimizer.adam_lr) optimizer.adam_lr = 3e-4;
  }
  const Given* const betas = check.find("optimizer.params.betas");
  const bool has_third = betas != nullptr && betas->value.third;
  const auto is_given = [&](std::string_view name) {
    if (name == "beta1" || name == "beta2") return betas != nullptr;
    return check.find(fmt::format("optimizer.params.{}", name)) != nullptr || (name == "beta3" && has_third);
  };
#define ZERO_DEFAULT(where, type, name, value, range, meaning) \
  if (!is_given(#name)) optimizer.name = defaults.name;
  ZERO_HYPER_PARAMETERS(ZERO_DEFAULT)
#undef ZERO_DEFAULT
  if (const Given* const beta3 = check.find("optimizer.params.beta3"); beta3 && has_third)
    check.problem(*beta3, "given twice: the third of betas is the same setting; remove one");
  check_parameters(check, *check.find("optimizer.type"), optimizer_keys());
  if (optimizer.nesterov && !(optimizer.momentum > 0 && optimizer.dampening == 0)) {
    check.problem(*check.find("optimizer.params.nesterov"),
                  fmt::format("needs a momentum above 0 and a dampening of 0, got {:g} and {:g}; set params.momentum "
                              "and leave out params.dampening",
                              optimizer.momentum, optimizer.dampening));
  }
  const Given* mode = check.find("optimizer.params.adam_w_mode");
  if (optimizer.type.starts_with("AdamW") && mode != nullptr && !optimizer.adam_w_mode) {
    optimizer.adam_w_mode = true;
    check.notice(fmt::format("{}: no effect: type {} is always decoupled, as in DeepSpeed; write type {} for L2",
                             mode->path, optimizer.type, optimizer.type == "AdamW" ? "Adam" : "Adam8bit"));
  }
  const Given* torch_adam = check.find("optimizer.params.torch_adam");
  const bool is_torchs = torch_adam != nullptr && torch_adam->value.boolean;
  if (check.find("optimizer.params.weight_decay") != nullptr) return;
  if (is_torchs && optimizer.adam_w_mode) {
    constexpr double kOfTorchsAdamW = 0.01;  // DeepSpeed then builds torch.optim.AdamW, and names no decay
    optimizer.weight_decay = kOfTorchsAdamW;
    check.notice(
        "optimizer.params.weight_decay: not given: with torch_adam 0.01, torch.optim.AdamW's, as in DeepSpeed");
  } else if (optimizer.type.starts_with("AdamW")) {
    check.notice("optimizer.params.weight_decay: not given: 0.0 as in DeepSpeed (torch::optim::AdamW has 0.01)");
  }
}

void check_lamb_and_muon(Check& check) {
  const Config::Optimizer& optimizer = check.config.optimizer;
  if (const Given* least = check.find("optimizer.params.min_coeff"); least && optimizer.min_coeff > optimizer.max_coeff)
    check.problem(*least, fmt::format("got {:g}, above max_coeff, {:g}; change one of the two", optimizer.min_coeff,
                                      optimizer.max_coeff));
  if (optimizer.type != "Muon") return;
  if (const Given* momentum = check.find("optimizer.params.momentum"); momentum && optimizer.momentum >= 1)
    check.problem(*momentum, fmt::format("got {:g}, want 0 to below 1 for Muon", optimizer.momentum));
  const bool two_rates = check.find("optimizer.params.muon_lr") || check.find("optimizer.params.adam_lr");
  if (two_rates && check.config.scheduler.type != Scheduler::Type::kNone)
    check.notice(
        "scheduler: gives one rate to all parameters, as in DeepSpeed: muon_lr and adam_lr count without a schedule");
}

struct Required {
  std::string_view type, parameter, meaning;
};
constexpr std::string_view kWholeRun = "the optimizer steps of the whole run";
constexpr Required kRequired[] = {
    {"WarmupDecayLR", "total_num_steps", kWholeRun},
    {"WarmupCosineLR", "total_num_steps", kWholeRun},
    {"OneCycle", "cycle_min_lr", "the learning rate at both ends of the cycle"},
    {"OneCycle", "cycle_max_lr", "the learning rate at its top"},
    {"CosineAnnealingLR", "T_max", "the steps from the first to the last learning rate"},
    {"StepLR", "step_size", "the steps between two drops of the rate"},
    {"ExponentialLR", "gamma", "what every step multiplies the rate with"},
};

void check_scheduler(Check& check) {
  Scheduler& scheduler = check.config.scheduler;
  const Given* section = check.find("scheduler");
  const Given* type = check.find("scheduler.type");
  if (section == nullptr) return;
  if (type == nullptr) {
    if (check.find("scheduler.params") != nullptr) {
      check.problem(*section, "has params but no type; add \"type\": \"WarmupLR\" or another schedule");
    }
    return;
  }
  if (scheduler.type == Scheduler::Type::kNone) return;                                // a type that was refused
  scheduler.warmup_num_steps = std::max<std::int64_t>(2, scheduler.warmup_num_steps);  // as in DeepSpeed
  check_parameters(check, *type, scheduler_keys());
  for (const auto& [of_type, parameter, meaning] : kRequired) {
    if (of_type == type->value.text && check.find(fmt::format("scheduler.params.{}", parameter)) == nullptr)
      check.problem(*type, fmt::format("{} needs params.{}: {}", of_type, parameter, meaning));
  }
  const std::string& optimizer = check.config.optimizer.type;
  const OptimizerInfo* const info = find_optimizer(optimizer);
  if (scheduler.type == Scheduler::Type::kOneCycle && scheduler.cycle_momentum && !(info && info->cycles_beta1)) {
    check.notice(
        fmt::format("scheduler.params.cycle_momentum: no effect: {} has no betas, as in DeepSpeed", optimizer));
  }
  const Given* total = check.find("scheduler.params.total_num_steps");
  if (total != nullptr && scheduler.total_num_steps > 0 && scheduler.total_num_steps < scheduler.warmup_num_steps) {
    check.notice(fmt::format("{}: {} is less than warmup_num_steps, {}: the warm-up is never finished", total->path,
                             scheduler.total_num_steps, scheduler.warmup_num_steps));
  }
  if (scheduler.type == Scheduler::Type::kWarmupLR && check.find("scheduler.params.warmup_max_lr") == nullptr) {
    scheduler.warmup_max_lr = check.config.optimizer.lr;
  }
}

void check_update(Check& check) {
  const Given* given = check.find("zerotorch.update");
  if (given == nullptr || !kind_of(check.config.zerotorch.update).ends_after_step) return;
  // A save finishes the update, and the curve would depend on the clock.
  if (check.find("zerotorch.checkpoint.every_minutes") == nullptr) check.config.zerotorch.checkpoint.every_minutes = 0;
  check.notice(
      fmt::format("{}: whatever saves a checkpoint, validates or reads weights finishes the update that is under "
                  "way, and the curve differs from one without; by itself nothing is saved by the clock",
                  given->path));
}

/// Reported at the key that was written, of the two.
void check_exclusions(Check& check) {
  const Setting setting{.config = check.config};
  for (const Exclusion* row : violations(setting)) {
    if (row->may_change) continue;
    const Given* given = check.find(row->one->path);
    if (given == nullptr) given = check.find(row->other->path);
    check.problems.add(given == nullptr ? 0 : given->line, row->message(setting));
  }
}

void check_timeout(Check& check) {
  constexpr double kLeastSeconds = 0.001;
  const Given* given = check.find("zerotorch.timeout_s");
  const double seconds = check.config.zerotorch.timeout_s;
  if (given == nullptr || seconds == 0 || seconds >= kLeastSeconds) return;
  check.problem(*given,
                fmt::format("got {:g}, want 0 (the group's default) or at least {:g} seconds", seconds, kLeastSeconds));
}

void check_comms_logger(Check& check) {
  constexpr std::string_view kKinds[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier"};
  const Given* given = check.find("comms_logger.prof_ops");
  if (given == nullptr) return;
  for (const std::string& op : check.config.comms_logger.prof_ops) {
    const bool known = std::ranges::any_of(kKinds, [&](std::string_view kind) {
      return op.starts_with(kind) && (op.size() == kind.size() || op[kind.size()] == '_');
    });
    if (known) continue;
    check.problem(*given, fmt::format("no such collective here: \"{}\"; there are {}, and longer names that begin so "
                                      "(all_gather_into_tensor)",
                                      op, fmt::join(kKinds, ", ")));
  }
}

}  // namespace

void cross_check(const GivenKeys& given, Config& config, Problems& problems) {
  Check check{given, config, problems};
  check_dtypes(check);
  check_16_bit_masters(check);
  check_loss_scale(check);
  check_offload(check);
  check_optimizer(check);
  check_scheduler(check);
  check_lamb_and_muon(check);
  check_update(check);
  check_exclusions(check);
  check_timeout(check);
  check_comms_logger(check);
  if (check.find("gradient_clipping") == nullptr) {
    check.notice(
        "gradient_clipping: not given: 1.0 as in DeepSpeed since 0.19.3 (0 before); write 0 to switch it "
        "off");
  }
}

}  // namespace zero::config
