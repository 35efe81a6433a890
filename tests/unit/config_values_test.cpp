// What the accepted keys mean: defaults, aliases, notices, and that to_json() loses nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "zero/config.h"
#include "zero/errors.h"

namespace zero::config_values_test {
namespace {

bool has_notice(const Config& config, std::string_view part) {
  return std::any_of(config.notices.begin(), config.notices.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

TEST(ConfigValues, DefaultsAreDeepSpeeds) {
  const Config config = Config::from_text("{}");
  EXPECT_EQ(config.train_batch_size, 0);
  EXPECT_FALSE(config.optimizer.given);
  EXPECT_EQ(config.optimizer.type, "AdamW");
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.optimizer.beta1, 0.9);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.optimizer.eps, 1e-8);
  EXPECT_EQ(config.optimizer.weight_decay, 0.0);
  EXPECT_TRUE(config.optimizer.adam_w_mode);
  EXPECT_EQ(config.scheduler.type, Config::Scheduler::Type::kNone);
  EXPECT_FALSE(config.bf16.enabled);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.zero_optimization.stage, 0);
  EXPECT_FALSE(config.zero_optimization.overlap_comm.has_value());
  EXPECT_EQ(config.zero_optimization.stage3_max_live_parameters, 1'000'000'000);
  EXPECT_EQ(config.zero_optimization.stage3_prefetch_bucket_size, 50'000'000);
  EXPECT_EQ(config.zero_optimization.stage3_param_persistence_threshold, 100'000);
  EXPECT_EQ(config.zero_optimization.stage3_model_persistence_threshold, INT64_MAX);
  EXPECT_EQ(config.tensorboard.job_name, "DeepSpeedJobName");
  EXPECT_FALSE(config.csv_monitor.enabled);
  EXPECT_EQ(config.csv_monitor.job_name, "DeepSpeedJobName");
  EXPECT_EQ(config.zerotorch.store, Config::Zerotorch::Store::kAuto);
  EXPECT_TRUE(config.zerotorch.reseed_per_micro_batch);
  EXPECT_FALSE(config.zerotorch.seed.has_value());
  ASSERT_EQ(config.notices.size(), 1u);
  EXPECT_TRUE(has_notice(config, "gradient_clipping: not given: 1.0"));
}

TEST(ConfigValues, AdamAndAdamW) {
  const auto optimizer = [](const char* text) {
    return Config::from_text(std::string("{\"optimizer\": ") + text + "}").optimizer;
  };
  EXPECT_TRUE(optimizer(R"({"type": "Adam"})").adam_w_mode);
  EXPECT_EQ(optimizer(R"({"type": "ADAM"})").type, "Adam");
  EXPECT_FALSE(optimizer(R"({"type": "Adam", "params": {"adam_w_mode": false}})").adam_w_mode);
  EXPECT_TRUE(optimizer(R"({"type": "AdamW", "params": {"adam_w_mode": false}})").adam_w_mode);
  EXPECT_FALSE(optimizer(R"({"type": "Adam", "params": {"bias_correction": false}})").bias_correction);
  EXPECT_EQ(optimizer(R"({"type": "sgd"})").type, "SGD");
  EXPECT_EQ(optimizer(R"({"type": "SGD"})").lr, 1e-3);
  EXPECT_EQ(optimizer(R"({"type": "Adagrad"})").lr, 1e-2);
  EXPECT_EQ(optimizer(R"({"type": "Adagrad"})").eps, 1e-10);
  EXPECT_EQ(optimizer(R"({"type": "RMSprop"})").lr, 1e-2);
  EXPECT_EQ(optimizer(R"({"type": "RMSprop"})").alpha, 0.99);
  EXPECT_EQ(optimizer(R"({"type": "Lion"})").lr, 1e-3);
  EXPECT_EQ(optimizer(R"({"type": "Lion"})").beta2, 0.999);  // DeepSpeed's
  EXPECT_EQ(optimizer(R"({"type": "Lion", "params": {"betas": [0.8, 0.999]}})").beta2, 0.999);
  EXPECT_EQ(optimizer(R"({"type": "ademamix"})").type, "AdEMAMix");
  EXPECT_EQ(optimizer(R"({"type": "AdEMAMix"})").alpha, 5.0);
  EXPECT_EQ(optimizer(R"({"type": "AdEMAMix"})").beta3, 0.9999);
  const auto mixed = optimizer(R"({"type": "AdEMAMix",
    "params": {"betas": [0.8, 0.99, 0.999], "alpha": 8, "t_alpha": 100, "t_beta3": null}})");
  EXPECT_EQ(std::tuple(mixed.beta1, mixed.beta2, mixed.beta3), std::tuple(0.8, 0.99, 0.999));
  EXPECT_EQ(std::tuple(mixed.alpha, mixed.t_alpha, mixed.t_beta3), std::tuple(8.0, 100, 0));
  EXPECT_EQ(optimizer(R"({"type": "AdEMAMix", "params": {"betas": [0.8, 0.99], "beta3": 0.5}})").beta3, 0.5);
  EXPECT_FALSE(optimizer("{}").given);
  EXPECT_FALSE(optimizer("null").given);
  EXPECT_TRUE(has_notice(Config::from_text(R"({"optimizer": {"type": "AdamW"}})"), "weight_decay: not given: 0.0"));
}

/// DeepSpeed then builds torch.optim.AdamW without a word about weight decay.
TEST(ConfigValues, TorchAdamHasTorchsWeightDecay) {
  const auto of = [](const std::string& type, const std::string& params) {
    return Config::from_text(R"({"optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}}");
  };
  for (const char* type : {"Adam", "AdamW"}) {
    const Config config = of(type, R"("torch_adam": true)");
    EXPECT_EQ(config.optimizer.weight_decay, 0.01) << type;
    EXPECT_TRUE(has_notice(config, "weight_decay: not given: with torch_adam 0.01")) << type;
    EXPECT_EQ(Config::from_text(config.to_json()).optimizer.weight_decay, 0.01) << type;
    EXPECT_EQ(of(type, R"("torch_adam": true, "weight_decay": 0)").optimizer.weight_decay, 0) << type;
    EXPECT_EQ(of(type, R"("torch_adam": false)").optimizer.weight_decay, 0) << type;
  }
  EXPECT_EQ(of("Adam", R"("torch_adam": true, "adam_w_mode": false)").optimizer.weight_decay, 0);
}

TEST(ConfigValues, Schedules) {
  using Scheduler = Config::Scheduler;
  Scheduler s = Config::from_text(R"({"optimizer": {"type": "Adam", "params": {"lr": 0.25}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1, "warmup_type": "linear"}}})")
                    .scheduler;
  EXPECT_EQ(s.type, Scheduler::Type::kWarmupLR);
  EXPECT_EQ(s.warmup_max_lr, 0.25) << "the optimizer's";
  EXPECT_EQ(s.warmup_num_steps, 2) << "raised as in DeepSpeed";
  EXPECT_EQ(s.warmup_type, Scheduler::WarmupType::kLinear);
  s = Config::from_text(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000}}})").scheduler;
  EXPECT_EQ(s.warmup_max_lr, 0.001);
  EXPECT_EQ(s.total_num_steps, 5000);
  EXPECT_EQ(s.warmup_type, Scheduler::WarmupType::kLog);
  s = Config::from_text(R"({"scheduler": {"type": "WarmupCosineLR", "params":
      {"total_num_steps": 5e3, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.01}}})")
          .scheduler;
  EXPECT_EQ(s.total_num_steps, 5000);
  EXPECT_EQ(s.warmup_min_ratio, 0.1);
  EXPECT_EQ(s.cos_min_ratio, 0.01);
  EXPECT_EQ(s.warmup_num_steps, 1000);
  EXPECT_TRUE(has_notice(Config::from_text(R"({"scheduler": {"type": "WarmupDecayLR", "params":
      {"total_num_steps": 10}}})"),
                         "the warm-up is never finished"));
}

TEST(ConfigValues, AliasesReachTheirFieldAndAreNoticed) {
  const Config config = Config::from_text(R"({
    "train_micro_batch_size_per_device": 3, "bfloat16": {"enabled": true, "check_overflow": false},
    "zero_optimization": {"stage": 3, "max_live_parameters": 11, "max_reuse_distance": 12,
      "prefetch_bucket_size": 13,
      "param_persistence_threshold": 14, "model_persistence_threshold": 15,
      "stage3_gather_fp16_weights_on_model_save": true, "cpu_offload_use_pin_memory": false}})");
  EXPECT_EQ(config.train_micro_batch_size_per_gpu, 3);
  EXPECT_TRUE(config.bf16.enabled);
  EXPECT_FALSE(config.bf16.check_grad_overflow);
  EXPECT_EQ(config.zero_optimization.stage3_max_live_parameters, 11);
  EXPECT_EQ(config.zero_optimization.stage3_max_reuse_distance, 12);
  EXPECT_EQ(config.zero_optimization.stage3_prefetch_bucket_size, 13);
  EXPECT_EQ(config.zero_optimization.stage3_param_persistence_threshold, 14);
  EXPECT_EQ(config.zero_optimization.stage3_model_persistence_threshold, 15);
  EXPECT_TRUE(has_notice(config, "bfloat16: old name; write 'bf16'"));
  EXPECT_TRUE(has_notice(config, "zero_optimization.cpu_offload_use_pin_memory: old name; write"));
  EXPECT_EQ(config.notices.size(), 11u);
}

TEST(ConfigValues, AnAliasBesideItsNewNameIsRefused) {
  try {
    Config::from_text("{\"zero_optimization\": {\"prefetch_bucket_size\": 1,\n\"stage3_prefetch_bucket_size\": 2}}",
                      "c");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "c:2: zero_optimization.stage3_prefetch_bucket_size: given twice: "
              "'zero_optimization.prefetch_bucket_size' on line 1 is the same setting; remove one");
  }
  EXPECT_THROW(Config::from_text(R"({"bf16": {"enabled": true}, "bfloat16": {"enabled": false}})"), ConfigError);
}

TEST(ConfigValues, NoEffectIsSaidOnlyWhenSomethingElseWasAskedFor) {
  EXPECT_FALSE(has_notice(Config::from_text(R"({"zero_optimization": {"contiguous_gradients": true}})"), "no effect"));
  EXPECT_TRUE(has_notice(Config::from_text(R"({"zero_optimization": {"contiguous_gradients": false}})"), "no effect"));
  EXPECT_TRUE(
      has_notice(Config::from_text(R"({"aio": {"single_submit": true}})"), "aio.single_submit: accepted, no effect"));
  EXPECT_TRUE(has_notice(Config::from_text(R"({"zero_optimization": {"leaf_module": {"classes": ["x.Y"]}}})"),
                         "Python class names"));
}

constexpr const char* kEverything = R"({
  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "optimizer": {"type": "Adam", "params": {"lr": 0.00037, "betas": [0.91, 0.95], "eps": 1e-9,
                "weight_decay": 0.1, "bias_correction": false, "adam_w_mode": false}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-6,
                "warmup_max_lr": 0.3333333333333333, "warmup_num_steps": 7, "warmup_type": "linear",
                "total_num_steps": 77, "last_batch_iteration": 3}},
  "bf16": {"enabled": true, "check_grad_overflow": false}, "gradient_clipping": 0.1, "steps_per_print": 3,
  "wall_clock_breakdown": true, "memory_breakdown": true, "dump_state": true,
  "tensorboard": {"enabled": true, "output_path": "a \"b\"/\u00e4", "job_name": "j"},
  "csv_monitor": {"enabled": true, "output_path": "c", "job_name": "k"},
  "comms_logger": {"enabled": true, "prof_all": false, "prof_ops": ["barrier"], "verbose": true, "debug": true},
  "flops_profiler": {"enabled": true, "profile_step": 4, "module_depth": 2, "top_modules": 3, "detailed": false,
                     "output_file": "f"},
  "zero_optimization": {"stage": 2, "overlap_comm": true, "ignore_unused_parameters": false,
    "stage3_max_live_parameters": 1, "stage3_max_reuse_distance": 2, "stage3_prefetch_bucket_size": 3,
    "stage3_param_persistence_threshold": 4, "stage3_model_persistence_threshold": 5,
    "stage3_gather_16bit_weights_on_model_save": true, 
    "leaf_module": {"names": "a.b", "name_suffixes": ["c", "d"]}},
  "zerotorch": {"store": "copying", "unit_numel": 5e6, "unit_names": ["h.0"], "seed": 42,
    "reseed_per_micro_batch": false, "verify_parameters": "verify", "bind_cores_to_rank": true,
    "progress_thread": "always", "measured_prefetch": false, "caching_allocator": false,
    "timeout_s": 12.5,
    "debug_observer": true}})";

TEST(ConfigValues, OverlapFollowsTheStageUnlessItWasGiven) {
  const auto at_stage_3 = [](std::string_view text) {
    Config config = Config::from_text(Config::from_text(text).to_json());
    config.zero_optimization.stage = 3;
    return config.zero_optimization.overlaps_comm();
  };
  EXPECT_TRUE(at_stage_3(R"({"zero_optimization": {"stage": 1,},})"));
  EXPECT_TRUE(at_stage_3(R"({"config_params": {"zero_optimization": {"stage": 1}}})"));
  EXPECT_TRUE(at_stage_3(R"({"zero_optimization": {"stage": 1, "overlap_comm": null}})"));
  EXPECT_FALSE(at_stage_3(R"({"zero_optimization": {"stage": 1, "overlap_comm": false,},})"));
  EXPECT_FALSE(at_stage_3(R"({"config_params": {"zero_optimization": {"overlap_comm": false}}})"));
  Config by_hand;
  by_hand.zero_optimization.stage = 3;
  EXPECT_TRUE(by_hand.zero_optimization.overlaps_comm());
}

TEST(ConfigValues, ChoicesReachTheirEnumerators) {
  using Own = Config::Zerotorch;
  const auto own = [](const std::string& name, const std::string& value) {
    return Config::from_text("{\"zerotorch\": {\"" + name + "\": \"" + value + "\"}}").zerotorch;
  };
  EXPECT_EQ(own("store", "node_shared").store, Own::Store::kNodeShared);
  EXPECT_EQ(own("store", "copying").store, Own::Store::kCopying);
  EXPECT_EQ(own("verify_parameters", "verify").verify_parameters, Own::VerifyParameters::kVerify);
  EXPECT_EQ(own("buffers", "each").buffers, Own::Buffers::kEach);
  EXPECT_EQ(own("buffers", "mean").buffers, Own::Buffers::kMean);
  EXPECT_EQ(own("buffer_dtype", "parameters").buffer_dtype, Own::BufferDtype::kParameters);
  EXPECT_EQ(own("progress_thread", "always").progress_thread, Own::ProgressThread::kAlways);
  EXPECT_EQ(own("progress_thread", "never").progress_thread, Own::ProgressThread::kNever);
  EXPECT_EQ(own("unused_parameters", "zero").unused_parameters, Own::UnusedParameters::kZero);
}

TEST(ConfigValues, ToJsonLosesNothing) {
  const Config everything = Config::from_text(kEverything);
  EXPECT_TRUE(everything.notices.empty());
  const std::string text = everything.to_json();
  EXPECT_EQ(Config::from_text(text).to_json(), text);
  // Values that differ from their default must be written as such.
  const std::string defaults = Config::from_text("{}").to_json();
  for (const char* key : {"store", "seed", "timeout_s", "job_name", "stage3_max_live_parameters", "gradient_clipping",
                          "check_grad_overflow", "ignore_unused_parameters"}) {
    const auto line = [&](const std::string& json) {
      const std::size_t at = json.find(std::string("\"") + key + "\"");
      return json.substr(at, json.find('\n', at) - at);
    };
    EXPECT_NE(line(text), line(defaults)) << key;
  }
  for (const char* some : {"{}", R"({"scheduler": {"type": "WarmupLR"}})", R"({"optimizer": {"type": "AdamW"}})",
                           R"({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9000}}})"}) {
    const std::string once = Config::from_text(some).to_json();
    const Config again = Config::from_text(once);
    EXPECT_EQ(again.to_json(), once);
    EXPECT_TRUE(again.notices.empty()) << some;
  }
}

TEST(ConfigValues, ToJsonAfterResolvingTheBatch) {
  Config config = Config::from_text(R"({"train_batch_size": 8})");
  config.resolve_batch(2);
  Config again = Config::from_text(config.to_json());
  EXPECT_EQ(again.train_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(again.gradient_accumulation_steps, 1);
  EXPECT_TRUE(again.notices.empty());
}

TEST(Config, AnOptimizerThatIsFilledInByHandIsWritten) {
  Config config;
  EXPECT_FALSE(Config::from_text(config.to_json()).optimizer.given);
  config.optimizer.lr = 0.25;
  EXPECT_EQ(Config::from_text(config.to_json()).optimizer.lr, 0.25);
}

TEST(Config, SectionsThatAreNotBuiltAreRefusedWhereTheyAreOn) {
  EXPECT_THROW(Config::from_text(R"({"train_batch_size": 1, "tensor_parallel": {"enabled": true}})"), ConfigError);
  Config::from_text(R"({"train_batch_size": 1, "tensor_parallel": {"enabled": false, "autotp_size": 1}})");
}

}  // namespace
}  // namespace zero::config_values_test
