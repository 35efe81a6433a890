// Config -> JSON with DeepSpeed's keys.
#include "config/to_json.h"

#include "config/jsonc.h"

namespace zero {
namespace {

using nlohmann::ordered_json;

ordered_json optimizer_json(const Config::Optimizer& optimizer) {
  return {{"type", optimizer.type},
          {"params",
           {{"lr", optimizer.lr},
            {"betas", {optimizer.beta1, optimizer.beta2}},
            {"eps", optimizer.eps},
            {"weight_decay", optimizer.weight_decay},
            {"bias_correction", optimizer.bias_correction},
            {"adam_w_mode", optimizer.adam_w_mode}}}};
}

ordered_json scheduler_json(const Config::Scheduler& scheduler) {
  using Type = Config::Scheduler::Type;
  ordered_json params = {
      {"warmup_num_steps", scheduler.warmup_num_steps},
      {"warmup_type", scheduler.warmup_type == Config::Scheduler::WarmupType::kLog ? "log" : "linear"},
      {"last_batch_iteration", scheduler.last_batch_iteration}};
  if (scheduler.type == Type::kWarmupCosineLR) {
    params["warmup_min_ratio"] = scheduler.warmup_min_ratio;
    params["cos_min_ratio"] = scheduler.cos_min_ratio;
  } else {
    params["warmup_min_lr"] = scheduler.warmup_min_lr;
    params["warmup_max_lr"] = scheduler.warmup_max_lr;
  }
  if (scheduler.type != Type::kWarmupLR) params["total_num_steps"] = scheduler.total_num_steps;
  const char* type = scheduler.type == Type::kWarmupLR        ? "WarmupLR"
                     : scheduler.type == Type::kWarmupDecayLR ? "WarmupDecayLR"
                                                              : "WarmupCosineLR";
  return {{"type", type}, {"params", params}};
}

ordered_json zero_json(const Config::ZeroOptimization& zero) {
  return {{"stage", zero.stage},
          {"overlap_comm", zero.overlap_comm},
          {"reduce_bucket_size", zero.reduce_bucket_size},
          {"allgather_bucket_size", zero.allgather_bucket_size},
          {"sub_group_size", zero.sub_group_size},
          {"ignore_unused_parameters", zero.ignore_unused_parameters},
          {"stage3_max_live_parameters", zero.stage3_max_live_parameters},
          {"stage3_max_reuse_distance", zero.stage3_max_reuse_distance},
          {"stage3_prefetch_bucket_size", zero.stage3_prefetch_bucket_size},
          {"stage3_param_persistence_threshold", zero.stage3_param_persistence_threshold},
          {"stage3_model_persistence_threshold", zero.stage3_model_persistence_threshold},
          {"leaf_module",
           {{"names", zero.leaf_module_names}, {"name_suffixes", zero.leaf_module_name_suffixes}}}};
}

ordered_json zerotorch_json(const Config::Zerotorch& own) {
  using Store = Config::Zerotorch::Store;
  using Verify = Config::Zerotorch::VerifyParameters;
  const char* store = own.store == Store::kAuto         ? "auto"
                      : own.store == Store::kNodeShared ? "node_shared"
                                                        : "copying";
  using Progress = Config::Zerotorch::ProgressThread;
  const char* progress = own.progress_thread == Progress::kAuto     ? "auto"
                         : own.progress_thread == Progress::kAlways ? "always"
                                                                    : "never";
  using Buffers = Config::Zerotorch::Buffers;
  const char* buffers = own.buffers == Buffers::kRank0  ? "rank0"
                        : own.buffers == Buffers::kEach ? "each"
                                                        : "mean";
  return {{"store", store},
          {"unit_numel", own.unit_numel},
          {"unit_names", own.unit_names},
          {"seed", own.seed ? ordered_json(*own.seed) : ordered_json()},
          {"reseed_per_micro_batch", own.reseed_per_micro_batch},
          {"verify_parameters", own.verify_parameters == Verify::kVerify ? "verify" : "broadcast"},
          {"buffers", buffers},
          {"buffer_dtype", own.buffer_dtype == Config::Zerotorch::BufferDtype::kModule ? "module" : "parameters"},
          {"progress_thread", progress},
          {"measured_prefetch", own.measured_prefetch},
          {"caching_allocator", own.caching_allocator},
          {"bind_cores_to_rank", own.bind_cores_to_rank},
          {"step_in_backward", own.step_in_backward},
          {"timeout_s", own.timeout_s},
          {"unused_parameters",
           own.unused_parameters == Config::Zerotorch::UnusedParameters::kZero ? "zero" : "skip"},
          {"debug_observer", own.debug_observer}};
}

}  // namespace

namespace config {

ordered_json to_json_tree(const Config& config, bool whole) {
  const auto count = [](std::int64_t value) { return value == 0 ? ordered_json() : ordered_json(value); };
  ordered_json root;
  root["train_batch_size"] = count(config.train_batch_size);
  root["train_micro_batch_size_per_gpu"] = count(config.train_micro_batch_size_per_gpu);
  root["gradient_accumulation_steps"] = count(config.gradient_accumulation_steps);
  if (whole || config.optimizer.given) root["optimizer"] = optimizer_json(config.optimizer);
  if (config.scheduler.type != Config::Scheduler::Type::kNone) root["scheduler"] = scheduler_json(config.scheduler);
  root["bf16"] = {{"enabled", config.bf16.enabled}, {"check_grad_overflow", config.bf16.check_grad_overflow}};
  root["gradient_clipping"] = config.gradient_clipping;
  root["steps_per_print"] = config.steps_per_print;
  root["wall_clock_breakdown"] = config.wall_clock_breakdown;
  root["memory_breakdown"] = config.memory_breakdown;
  root["dump_state"] = config.dump_state;
  root["tensorboard"] = {{"enabled", config.tensorboard.enabled},
                         {"output_path", config.tensorboard.output_path},
                         {"job_name", config.tensorboard.job_name}};
  root["checkpoint"] = {{"every_steps", config.checkpoint.every_steps},
                        {"every_minutes", config.checkpoint.every_minutes},
                        {"keep_last", config.checkpoint.keep_last},
                        {"async", config.checkpoint.async}};
  root["zero_optimization"] = zero_json(config.zero_optimization);
  root["zerotorch"] = zerotorch_json(config.zerotorch);
  return root;
}

}  // namespace config

std::string Config::to_json() const {
  constexpr auto kReplace = ordered_json::error_handler_t::replace;
  const ordered_json root = config::to_json_tree(*this, /*whole=*/false);
  std::string text = root.dump(2, ' ', false, kReplace) + "\n";
  // The spaces of a long list must not make it too long to be read.
  if (text.size() > config::kMaxTextNbytes) text = root.dump(-1, ' ', false, kReplace);
  return text;
}

}  // namespace zero
