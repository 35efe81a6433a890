// Every way a key can be wrong, and what is said about it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "zero/config.h"
#include "zero/errors.h"

namespace zero::config_errors_test {
namespace {

std::string error_of(std::string_view text) {
  try {
    Config::from_text(text, "c");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(ConfigErrors, UnknownKeys) {
  EXPECT_EQ(error_of("{\"zero_optimization\": {\n\"reduce_bucket_sizes\": 1}}"),
            "c:2: zero_optimization.reduce_bucket_sizes: unknown key; did you mean 'reduce_bucket_size'?");
  for (const std::string name : {"every_steps", "every_minutes", "keep_last", "async"}) {
    EXPECT_EQ(error_of("{\"checkpoint\": {\"" + name + "\": 1}}"),
              "c:1: checkpoint." + name + ": unknown key; '" + name + "' belongs in 'zerotorch.checkpoint'");
  }
  EXPECT_EQ(error_of(R"({"stage": 2})"), "c:1: stage: unknown key; 'stage' belongs in 'zero_optimization'");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "Adam", "gradient_clipping": 1}})"),
            "c:1: optimizer.gradient_clipping: unknown key; 'gradient_clipping' belongs at the top level");
  EXPECT_EQ(error_of(R"({"qqqqqqqqqq": 2})"),
            "c:1: qqqqqqqqqq: unknown key; docs/config.md lists the keys of the top level");
  EXPECT_EQ(error_of(R"({"fp16": {"enabled": false, "los_scale": 0}})"),
            "c:1: fp16.los_scale: unknown key; did you mean 'loss_scale'?");
  EXPECT_NE(error_of(R"({"": 1})"), "");
  EXPECT_NE(error_of(R"({"a.b": 1})"), "");
  EXPECT_NE(error_of(R"({"zero_optimization.stage": 1, "train_batch_size": 1})"), "") << "a dot is no path";
}

TEST(ConfigErrors, WrongKinds) {
  EXPECT_EQ(error_of(R"({"bf16": {"enabled": "true"}})"),
            "c:1: bf16.enabled: got \"true\", want true or false; remove the quotes");
  EXPECT_EQ(error_of(R"({"bf16": {"enabled": 1}})"), "c:1: bf16.enabled: got 1, want true or false");
  EXPECT_EQ(error_of(R"({"bf16": true})"), "c:1: bf16: got true, want an object {...}");
  EXPECT_EQ(error_of(R"({"train_batch_size": 1.5})"),
            "c:1: train_batch_size: got 1.5, want a whole number, 1 to 1000000000000");
  EXPECT_EQ(error_of(R"({"train_batch_size": true})"),
            "c:1: train_batch_size: got true, want a whole number, 1 to 1000000000000");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "Adam", "params": {"lr": "1e-3"}}})"),
            "c:1: optimizer.params.lr: got \"1e-3\", want a number, at least 0; remove the quotes");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})"),
            "c:1: optimizer.params.betas: got [0.9], want a list of two numbers, each at least 0 and below 1");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 0.99, 0.999]}}})"),
            "c:1: optimizer.params.betas: got [0.9,0.99,0.999], want a list of two numbers, each at least 0 and "
            "below 1");
  EXPECT_EQ(error_of(R"({"optimizer": {"params": {"betas": [0.9, 0.99, 1]}, "type": "AdEMAMix"}})"),
            "c:1: optimizer.params.betas: got [0.9,0.99,1], want a list of two or three numbers, each at least 0 and "
            "below 1");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "AdEMAMix", "params": {"betas": [0.9, 0.99, 0.9], "beta3": 0.9}}})"),
            "c:1: optimizer.params.beta3: given twice: the third of betas is the same setting; remove one");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "RMSprop", "params": {"alpha": 5}}})"),
            "c:1: optimizer.params.alpha: got 5, want a number, 0 to 1");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "AdEMAMix", "params": {"alpha": -1}}})"),
            "c:1: optimizer.params.alpha: got -1, want a number, at least 0");
  EXPECT_EQ(error_of(R"({"tensorboard": {"output_path": 3}})"), "c:1: tensorboard.output_path: got 3, want a string");
  EXPECT_EQ(error_of(R"({"zerotorch": {"unit_names": [1]}})"),
            "c:1: zerotorch.unit_names: got [1], want a list of strings");
  EXPECT_EQ(error_of(R"({"bf16": {"enabled": null}})"), "c:1: bf16.enabled: got null, want true or false");
  EXPECT_EQ(error_of("[1]"), "c:1: got [1], want an object {...}");
  EXPECT_NE(error_of("null"), "");
  EXPECT_EQ(error_of(R"({"train_batch_size": null, "bf16": null, "zerotorch": {"seed": null}})"), "");
}

TEST(ConfigErrors, Ranges) {
  EXPECT_EQ(error_of(R"({"zero_optimization": {"stage": 4}})"),
            "c:1: zero_optimization.stage: got 4, want a whole number, 0 to 3");
  EXPECT_NE(error_of(R"({"zero_optimization": {"stage": -1}})"), "");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "Adam", "params": {"lr": -1}}})"),
            "c:1: optimizer.params.lr: got -1, want a number, at least 0");
  EXPECT_NE(error_of(R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1.0]}}})"), "");
  EXPECT_NE(error_of(R"({"optimizer": {"type": "Adam", "params": {"betas": [-0.1, 0.9]}}})"), "");
  EXPECT_NE(error_of(R"({"train_batch_size": 0})"), "");
  EXPECT_NE(error_of(R"({"train_batch_size": 1e19})"), "");
  EXPECT_NE(error_of(R"({"train_batch_size": 18446744073709551615})"), "");
  EXPECT_NE(error_of(R"({"gradient_clipping": -0.5})"), "");
  EXPECT_NE(error_of(R"({"zerotorch": {"timeout_s": -1}})"), "");
  EXPECT_EQ(error_of(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}})"), "");
  EXPECT_NE(error_of(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": -1}}})"), "");
}

TEST(ConfigErrors, CountsInScientificNotation) {
  const auto prefetch = [](const char* text) {
    return Config::from_text(std::string(R"({"zero_optimization": {"stage3_prefetch_bucket_size": )") + text + "}}")
        .zero_optimization.stage3_prefetch_bucket_size;
  };
  EXPECT_EQ(prefetch("5e8"), 500'000'000);
  EXPECT_EQ(prefetch("5e+08"), 500'000'000);
  EXPECT_EQ(prefetch("5.0"), 5);
  EXPECT_EQ(prefetch("0"), 0);
  EXPECT_EQ(prefetch("9223372036854775807"), INT64_MAX);
  EXPECT_THROW(prefetch("5e-1"), ConfigError);
}

TEST(ConfigErrors, OptimizersAndSchedulesWeDoNotHave) {
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 1}}})"),
            "c:1: optimizer.type: 'OneBitAdam' is not built; available: AdamW, Adam, SGD, Adagrad, RMSprop, Lion, "
            "Lamb, Muon, Adafactor, AdamW8bit, Adam8bit, AdEMAMix");
  EXPECT_EQ(
      error_of(R"({"optimizer": {"type": "AdmaW"}})"),
      "c:1: optimizer.type: got \"AdmaW\", want one of \"AdamW\", \"Adam\", \"SGD\", \"Adagrad\", "
      "\"RMSprop\", "
      "\"Lion\", \"Lamb\", \"Muon\", \"Adafactor\", \"AdamW8bit\", \"Adam8bit\", \"AdEMAMix\"; did you mean 'AdamW'?");
  for (const char* type : {"lbfgs", "ZeroOneAdam", "OneBitLamb", "NAdam"}) {
    EXPECT_NE(error_of(std::string(R"({"optimizer": {"type": ")") + type + "\"}}").find("is not built"),
              std::string::npos);
  }
  EXPECT_NE(error_of(R"({"scheduler": {"type": "ReduceLROnPlateau"}})")
                .find("'ReduceLROnPlateau' is not built; available: WarmupLR, "),
            std::string::npos);
  EXPECT_EQ(error_of(R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1}}})"),
            "c:1: scheduler.type: OneCycle needs params.cycle_max_lr: the learning rate at its top");
  EXPECT_EQ(error_of(R"({"scheduler": {"type": "StepLR", "params": {"gamma": 1}}})"),
            "c:1: scheduler.type: StepLR needs params.step_size: the steps between two drops of the rate");
  EXPECT_EQ(error_of(R"({"optimizer": {"params": {"lr": 1}}})"),
            "c:1: optimizer: has params but no type; add \"type\": \"AdamW\"");
  EXPECT_NE(error_of(R"({"scheduler": {"params": {"warmup_num_steps": 3}}})").find("no type"), std::string::npos);
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.99]}}})"),
            "c:1: optimizer.params.betas: not a parameter of SGD, which takes lr, weight_decay, maximize, momentum, "
            "dampening, nesterov");
  EXPECT_NE(
      error_of(R"({"optimizer": {"type": "Lion", "params": {"maximize": true}}})").find("not a parameter of Lion"),
      std::string::npos);
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "SGD",
                                       "params": {"nesterov": true, "momentum": 0.9, "dampening": 0.1}}})"),
            "c:2: optimizer.params.nesterov: needs a momentum above 0 and a dampening of 0, got 0.9 and 0.1; set "
            "params.momentum and leave out params.dampening");
  EXPECT_NE(error_of(R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}})").find("gradient_clipping"),
            std::string::npos);
}

TEST(ConfigErrors, ScheduleParameters) {
  EXPECT_EQ(error_of(
                R"({"scheduler": {"type": "WarmupCosineLR",
              "params": {"total_num_steps": 9, "warmup_max_lr": 1}}})"),
            "c:2: scheduler.params.warmup_max_lr: not a parameter of WarmupCosineLR, which takes warmup_num_steps, "
            "warmup_type, warmup_min_ratio, cos_min_ratio, total_num_steps, last_batch_iteration");
  EXPECT_EQ(error_of(R"({"scheduler": {"type": "WarmupDecayLR", "params": {}}})"),
            "c:1: scheduler.type: WarmupDecayLR needs params.total_num_steps: the optimizer steps of the "
            "whole run");
  EXPECT_NE(error_of(R"({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 9}}})"), "");
}

TEST(ConfigErrors, DtypesMustAgree) {
  EXPECT_EQ(error_of(R"({"communication_data_type": "fp32"})"), "");
  EXPECT_EQ(error_of(R"({"communication_data_type": "bf16", "bf16": {"enabled": true}})"), "");
  EXPECT_EQ(error_of(R"({"communication_data_type": "fp32", "bf16": {"enabled": true}})"), "");
  EXPECT_EQ(error_of(R"({"communication_data_type": "fp16"})"), "");
  EXPECT_EQ(error_of(R"({"communication_data_type": "fp64"})"),
            "c:1: communication_data_type: got \"fp64\", want one of \"fp16\", \"bf16\", \"fp32\"; did you mean "
            "'fp16'?");
  EXPECT_EQ(error_of(R"({"fp16": {"enabled": true}, "data_types": {"param_dtype": "half"}})"), "");
  EXPECT_EQ(error_of(R"({"fp16": {"enabled": true}, "data_types": {"param_dtype": "bf16"}})"),
            "c:1: data_types.param_dtype: got \"bf16\", but fp16.enabled is true and bf16.enabled is false, so want "
            "\"fp16\": these choose the dtype; change one of them or remove the key");
  EXPECT_EQ(
      error_of(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
      "c:1: fp16.enabled: true with bf16.enabled true: there is one dtype of parameters; set one of the two to false");
  EXPECT_EQ(error_of(R"({"data_types": {"grad_accum_dtype": "fp32", "param_dtype": "float"}})"), "");
  EXPECT_EQ(error_of(R"({"data_types": {"grad_accum_dtype": "bf16"}})"), "");
  EXPECT_NE(error_of(R"({"data_types": {"grad_accum_dtype": "fp16"}})").find("sums beyond 65504"), std::string::npos);
  EXPECT_EQ(error_of(R"({"bf16": {"bf16_master_weights_and_grads": true}})"),
            "c:1: bf16.bf16_master_weights_and_grads: needs bf16.enabled; set it to true");
  EXPECT_EQ(error_of(R"({"fp16": {"fp16_master_weights_and_grads": true}})"),
            "c:1: fp16.fp16_master_weights_and_grads: needs fp16.enabled; set it to true");
  EXPECT_NE(error_of(R"({"bf16": {"enabled": true}, "zerotorch": {"stochastic_rounding": true}})")
                .find("set bf16.enabled and bf16.bf16_master_weights_and_grads to true"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"data_types": {"param_dtype": "bf16"}})"), "");
}

TEST(ConfigErrors, LossScales) {
  const auto fp16 = [](const std::string& members) {
    return error_of(R"({"fp16": {"enabled": true, )" + members + "}}");
  };
  EXPECT_EQ(fp16(R"("loss_scale": 0, "initial_scale_power": 32, "min_loss_scale": 0.5)"), "");
  EXPECT_EQ(fp16(R"("loss_scale": -1)"), "c:1: fp16.loss_scale: got -1, want a number, 0 to 4294967296");
  EXPECT_EQ(fp16(R"("initial_scale_power": 3, "min_loss_scale": 16)"),
            "c:1: fp16.min_loss_scale: the scale begins at 8 (2 to the power of initial_scale_power), below "
            "min_loss_scale, 16; change one of the two");
  EXPECT_NE(fp16(R"("loss_scale_window": 0)"), "");
  EXPECT_NE(fp16(R"("hysteresis": 0)"), "");
  EXPECT_EQ(
      error_of(R"({"fp16": {"enabled": true}, "gradient_clipping": 0, "zero_optimization": {"stage": 1},
                         "zerotorch": {"update": "in_backward"}})"),
      "c:2: zerotorch.update: in_backward with fp16.enabled true: a step cannot be skipped once it is under way; use "
      "bf16 with bf16.check_grad_overflow false");
}

TEST(ConfigErrors, CollectivesToLogHaveNames) {
  EXPECT_EQ(error_of(R"({"comms_logger": {"prof_ops": ["all_reduce", "all_gather_into_tensor"]}})"), "");
  EXPECT_EQ(error_of(R"({"comms_logger": {"prof_ops": ["all_gather", "all_to_all", "all_gathers"]}})"),
            "c:1: comms_logger.prof_ops: no such collective here: \"all_to_all\"; there are all_gather, "
            "reduce_scatter, all_reduce, broadcast, barrier, and longer names that begin so (all_gather_into_tensor)\n"
            "c:1: comms_logger.prof_ops: no such collective here: \"all_gathers\"; there are all_gather, "
            "reduce_scatter, all_reduce, broadcast, barrier, and longer names that begin so (all_gather_into_tensor)");
  EXPECT_EQ(error_of(R"({"flops_profiler": {"recompute_fwd_factor": 1.0}})"), "");
  EXPECT_NE(error_of(R"({"flops_profiler": {"profile_step": -1}})"), "");
  EXPECT_NE(error_of(R"({"flops_profiler": {"module_depth": -2}})"), "");
}

TEST(ConfigErrors, RefusedWhenOnAcceptedWhenOff) {
  for (const char* section : {"amp", "autotuning", "elasticity", "data_efficiency", "curriculum_learning", "eigenvalue",
                              "nebula", "progressive_layer_drop", "hybrid_engine", "torch_autocast", "expert_parallel",
                              "compile", "weight_quantization"}) {
    const std::string name = std::string("{\"") + section + "\": ";
    EXPECT_EQ(error_of(name + "{\"enabled\": false}}"), "") << section;
    EXPECT_EQ(error_of(name + "{}}"), "") << section;
    EXPECT_EQ(error_of(name + "null}"), "") << section;
    const std::string error = error_of(name + "{\"enabled\": true}}");
    EXPECT_TRUE(error.starts_with(std::string("c:1: ") + section)) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_EQ(error_of(R"({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": false}}}})"),
            "");
  EXPECT_NE(error_of(R"({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}})"),
            "");
  EXPECT_EQ(error_of(R"({"wandb": {"project": "x"}, "compile": {"enabled": null, "deepcompile": false}})"), "");
  EXPECT_EQ(error_of(R"({"compile": {"deepcompile": true}})"),
            "c:1: compile.deepcompile: true is not supported: graph compilation is not built; remove the section");
  EXPECT_EQ(error_of(R"({"wandb": {"enable": true}})"), "c:1: wandb.enable: unknown key; did you mean 'enabled'?");
  EXPECT_EQ(error_of(R"({"wandb": true})"), "c:1: wandb: got true, want an object {...}");
  EXPECT_EQ(error_of(R"({"elastcity": {"enabled": true}})"), "c:1: elastcity: unknown key; did you mean 'elasticity'?");
  EXPECT_NE(error_of(R"({"sparse_attention": {"mode": "fixed"}})"), "");
  EXPECT_NE(error_of(R"({"tensor_parallel": {"autotp_size": 4}})"), "");
  EXPECT_EQ(error_of(R"({"tensor_parallel": {"autotp_size": 0}})"), "");
  EXPECT_NE(error_of(R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}})"), "");
  EXPECT_NE(error_of(R"({"zero_optimization": {"stage": 2, "zero_quantized_weights": true}})"), "");
  EXPECT_EQ(error_of(R"({"zero_optimization": {"stage": 3, "zero_quantized_weights": true}})"), "");
  EXPECT_NE(error_of(R"({"zero_optimization": {"stage": 2, "zero_hpz_partition_size": 8}})"), "");
  EXPECT_EQ(error_of(R"({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}})"), "");
  EXPECT_NE(error_of(R"({"zero_optimization": {"zeropp_loco_param": {"err_beta": 0.5}}})"), "");
  EXPECT_NE(error_of(R"({"zero_optimization": {"zero_quantized_gradients": true,
                                               "zeropp_loco_param": {"err_beta": 1.5}}})"),
            "");
  EXPECT_EQ(error_of(R"({"zero_optimization": {"zero_hpz_partition_size": 1, "mics_shard_size": -1}})"), "");
  EXPECT_NE(error_of(R"({"zero_optimization": {"mics_shard_size": 4}})"), "");
  EXPECT_EQ(error_of(R"({"prescale_gradients": true, "gradient_predivide_factor": 2})"), "");
  EXPECT_EQ(error_of(R"({"prescale_gradients": false, "gradient_predivide_factor": 1})"), "");
  EXPECT_EQ(error_of(R"({"sparse_gradients": true})"), "");
  EXPECT_NE(error_of(R"({"gradient_allreduce_op": "max"})"), "");
}

std::vector<std::string> notices_of(std::string_view text) { return Config::from_text(text, "c").notices; }

TEST(ConfigErrors, ServicesAreNoPartOfTraining) {
  for (const std::string section : {"wandb", "comet"}) {
    for (const char* enabled : {"true", "\"auto\""}) {
      EXPECT_EQ(
          notices_of("{\"gradient_clipping\": 0, \"" + section + "\": {\"enabled\": " + enabled + "}}"),
          std::vector<std::string>{section + ": accepted, no effect: not built, it needs a service; \"csv_monitor\" "
                                             "and \"tensorboard\" write the same figures to files"});
    }
    for (const char* off : {"{\"enabled\": false}", "{}", "null"})
      EXPECT_TRUE(notices_of("{\"gradient_clipping\": 0, \"" + section + "\": " + off + "}").empty());
  }
}

TEST(ConfigErrors, NamesThatBeginWithAnUnderscoreAreComments) {
  EXPECT_EQ(
      notices_of(
          R"({"_comment": "text", "gradient_clipping": 0, "zero_optimization": {"stage": 1, "_stage3": {"a": 1}}})"),
      (std::vector<std::string>{
          "_comment: not read: a name that begins with '_' is taken for a comment",
          "zero_optimization._stage3: not read: a name that begins with '_' is taken for a comment"}));
}

TEST(ConfigErrors, NullIsNotGivenWhereDeepSpeedsFieldIsOptional) {
  const Config config = Config::from_text(
      R"({"gradient_clipping": 0,
          "zero_optimization": {"stage": 3, "sub_group_size": 0, "cpu_offload": null, "cpu_offload_param": null,
          "cpu_offload_use_pin_memory": null, "offload_param": {"device": "none", "nvme_path": null},
          "offload_optimizer": {"device": "none", "nvme_path": null}},
          "optimizer": {"type": null, "legacy_fusion": null}, "train_batch_size": null, "steps_per_print": null})",
      "c");
  EXPECT_EQ(config.zero_optimization.offload_optimizer.nvme_path, "");
  EXPECT_EQ(config.zero_optimization.sub_group_numel(), Config().zero_optimization.sub_group_numel());
  EXPECT_TRUE(config.notices.empty());
  EXPECT_NE(error_of(R"({"zero_optimization": {"stage": null}})"), "");
  EXPECT_NE(error_of(R"({"gradient_clipping": null})"), "");
}

bool mention(const std::vector<std::string>& notices, std::string_view part) {
  return std::ranges::any_of(notices, [&](const auto& notice) { return notice.find(part) != std::string::npos; });
}

TEST(ConfigErrors, OffloadToTheHostIsWhereStatesAreAndOtherOffloadIsRefused) {
  for (const char* where : {"offload_optimizer", "offload_param"}) {
    const std::string head = std::string(R"({"zero_optimization": {")") + where;
    const std::string cpu = head + R"(": {"device": "cpu", "pin_memory": true}, "stage": 3}})";
    EXPECT_TRUE(
        mention(notices_of(cpu), std::string("zero_optimization.") + where + ".device: no effect without a GPU"));
    EXPECT_FALSE(mention(notices_of(head + R"(": {"device": "none", "pin_memory": true}}})"), "offload"));
    EXPECT_EQ(error_of(head + R"(": {"pin_memory": true}}})"), "");
    EXPECT_NE(error_of(head + R"(": {"device": "disk"}}})"), "");
    EXPECT_NE(error_of(head + R"(": {"devise": "cpu"}}})"), "");
  }
  const auto too_low = notices_of(R"({"zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}})");
  EXPECT_TRUE(mention(too_low, "offload_param.device: no effect at stage 1"));
  EXPECT_FALSE(mention(too_low, "without a GPU"));
  EXPECT_NE(error_of(R"({"zero_optimization": {"offload_optimizer": {"super_offload": true}}})"), "");
  EXPECT_EQ(error_of(R"({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/x"}}})"),
            "c:1: zero_optimization.offload_param.device: nvme with zero_optimization.stage below 3: parameters are "
            "sharded at stage 3 only; set zero_optimization.stage to 3");
  for (const char* old : {"cpu_offload", "cpu_offload_param", "cpu_offload_params"}) {
    const std::string key = std::string(R"({"zero_optimization": {")") + old;
    EXPECT_TRUE(mention(notices_of(key + "\": true}}"), "no effect without a GPU"));
    EXPECT_FALSE(mention(notices_of(key + "\": false}}"), "no effect"));
  }
  EXPECT_EQ(error_of(R"({"zero_optimization": {"cpu_offload_use_pin_memory": true}})"), "");
}

TEST(ConfigErrors, OffloadToNvme) {
  const Config config = Config::from_text(R"({"zero_optimization": {"offload_optimizer": {"device": "NVMe",
      "nvme_path": "/nv", "buffer_count": 6, "pipeline_read": true, "fast_init": true, "ratio": 1.0}},
      "aio": {"block_size": 2097152, "queue_depth": 16, "thread_count": 2, "single_submit": false}})");
  const auto& offload = config.zero_optimization.offload_optimizer;
  EXPECT_EQ(offload.device, Config::OffloadDevice::kNvme);
  EXPECT_EQ(offload.nvme_path, "/nv");
  EXPECT_EQ(offload.buffer_count, 6);
  EXPECT_EQ(config.aio.block_size, 2097152);
  EXPECT_EQ(config.aio.queue_depth, 16);
  EXPECT_FALSE(mention(config.notices, "of a module"));
  EXPECT_EQ(
      error_of(R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})"),
      "c:1: zero_optimization.offload_optimizer.device: 'nvme' needs nvme_path beside it: a folder on a local disk");
  EXPECT_NE(error_of(R"({"aio": {"block_size": 100}})"), "");
  EXPECT_NE(error_of(R"({"aio": {"queue_depth": 0}})"), "");
  Config by_hand;
  by_hand.zero_optimization.offload_optimizer.device = Config::OffloadDevice::kNvme;
  EXPECT_THROW(by_hand.validate(), ConfigError);
}

TEST(ConfigErrors, CountersNearTheirLimits) {
  EXPECT_EQ(error_of(R"({"scheduler": {"type": "WarmupLR", "params": {"last_batch_iteration": 9223372036854775807}}})"),
            "c:1: scheduler.params.last_batch_iteration: got 9223372036854775807, want a whole number, -1 to "
            "1e+15");
  EXPECT_NE(error_of(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9e18}}})"), "");
  EXPECT_NE(error_of(R"({"train_batch_size": 9223372036854775807})"), "");
  EXPECT_NE(error_of(R"({"zero_optimization": {"sub_group_size": 9223372036854775807}})"), "");
  EXPECT_NE(error_of(R"({"zerotorch": {"checkpoint": {"every_minutes": 1e300}}})"), "");
  EXPECT_EQ(error_of(R"({"zerotorch": {"timeout_s": 1e-9}})"),
            "c:1: zerotorch.timeout_s: got 1e-09, want 0 (the group's default) or at least 0.001 seconds");
  EXPECT_EQ(error_of(R"({"zerotorch": {"timeout_s": 0.001}})"), "");
}

TEST(ConfigErrors, WhatIsReadCanBeWrittenAndReadHoweverLong) {
  // 4 bytes each in the file; on lines of their own, to_json() would write 13.
  std::string names;
  while (names.size() + 100 < (std::size_t{16} << 20)) names += "\"a\",";
  names += "\"a\"";
  const std::string text = R"({"zerotorch": {"unit_names": [)" + names + "]}}";
  EXPECT_NE(error_of(text).find("with all its defaults"), std::string::npos) << "no room for the defaults";
  names.resize(names.size() - 3 - 4 * 20'000);
  names += "\"a\"";
  const std::string fits = R"({"zerotorch": {"unit_names": [)" + names + "]}}";
  const Config config = Config::from_text(fits);
  EXPECT_EQ(Config::from_text(config.to_json()).zerotorch.unit_names.size(), config.zerotorch.unit_names.size());
}

// ---- fields that were filled in by hand ----------------------------------------------------------------

template <class Change>
std::string error_by_hand(Change change) {
  Config config;
  config.train_micro_batch_size_per_gpu = 1;
  change(config);
  try {
    config.validate();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(ConfigByHand, TheDefaultsAreValid) {
  EXPECT_EQ(error_by_hand([](Config&) {}), "");
  EXPECT_EQ(error_by_hand([](Config& c) {
              c.zero_optimization.stage = 3;
              c.scheduler.type = Config::Scheduler::Type::kWarmupLR;
              c.zerotorch.unit_names = {"a", "b.c"};
              c.zerotorch.seed = 3;
              c.zerotorch.store = Config::Zerotorch::Store::kCopying;
            }),
            "");
}

TEST(ConfigByHand, FieldsAreCheckedAsAFilesAre) {
  EXPECT_EQ(error_by_hand([](Config& c) { c.zero_optimization.stage = 7; }),
            "Config: zero_optimization.stage: got 7, want a whole number, 0 to 3");
  EXPECT_EQ(error_by_hand([](Config& c) { c.zero_optimization.stage = -1; }),
            "Config: zero_optimization.stage: got -1, want a whole number, 0 to 3");
  EXPECT_EQ(error_by_hand([](Config& c) { c.zero_optimization.sub_group_size = -1; }),
            "Config: zero_optimization.sub_group_size: got -1, want a whole number, 0 to 1e+18");
  EXPECT_EQ(error_by_hand([](Config& c) { c.optimizer.lr = NAN; }),
            "Config: optimizer.params.lr: got nan, want a number, at least 0");
  EXPECT_EQ(error_by_hand([](Config& c) { c.gradient_clipping = INFINITY; }),
            "Config: gradient_clipping: got inf, want a number, at least 0");
  EXPECT_NE(error_by_hand([](Config& c) { c.optimizer.beta2 = 1; }), "");
  EXPECT_NE(error_by_hand([](Config& c) { c.optimizer.type = "LBFGS"; }), "");
  EXPECT_NE(error_by_hand([](Config& c) { c.optimizer.type = ""; }), "");
  EXPECT_EQ(error_by_hand([](Config& c) { c.zerotorch.store = static_cast<Config::Zerotorch::Store>(9); }),
            "Config: zerotorch.store: got \"9\", want one of \"auto\", \"node_shared\", \"copying\"");
  EXPECT_NE(error_by_hand([](Config& c) { c.train_batch_size = -4; }), "");
  EXPECT_NE(error_by_hand([](Config& c) { c.zerotorch.timeout_s = -1; }), "");
  EXPECT_NE(error_by_hand([](Config& c) { c.zerotorch.unit_numel = INT64_MAX; }), "");
  EXPECT_NE(error_by_hand([](Config& c) { c.scheduler.last_batch_iteration = INT64_MAX; }), "")
      << "also of a schedule that is not used";
}

TEST(ConfigErrors, SwitchesThatAreOneChoiceNow) {
  const std::string stage = R"({"gradient_clipping": 0, "zero_optimization": {"stage": 2}, "zerotorch": {)";
  const Config off = Config::from_text(stage + R"("step_in_backward": false, "delayed_update": false}})");
  EXPECT_EQ(off.zerotorch.update, Config::Zerotorch::Update::kAfterBackward);
  EXPECT_TRUE(off.notices.empty()) << off.notices.front();
  const Config on = Config::from_text(stage + R"("step_in_backward": true, "delayed_update": false}})");
  EXPECT_EQ(on.zerotorch.update, Config::Zerotorch::Update::kInBackward);
  ASSERT_EQ(on.notices.size(), 1u);
  EXPECT_EQ(on.notices[0], "zerotorch.step_in_backward: old key; write 'zerotorch.update': \"in_backward\"");
  EXPECT_EQ(Config::from_text(on.to_json()).zerotorch.update, on.zerotorch.update);
  EXPECT_EQ(error_of(stage + "\n\"update\": \"in_backward\",\n\"delayed_update\": true}}"),
            "c:2: zerotorch.update: given twice: 'zerotorch.delayed_update' on line 3 is the same setting; remove one");
  EXPECT_EQ(error_of(stage + R"("delayed_update": 1}})"), "c:1: zerotorch.delayed_update: got 1, want true or false");
  EXPECT_EQ(error_of(stage + "\n\"delayed_update\": true}, \"optimizer\": {\"type\": \"Lamb\"}}"),
            "c:2: zerotorch.update: delayed with optimizer.type Lamb: the ranks exchange whole tensors "
            "in such an update, and cannot while they compute; choose another optimizer, or another zerotorch.update");
}

TEST(ConfigByHand, RulesBetweenFields) {
  EXPECT_EQ(
      error_by_hand([](Config& c) {
        c.zerotorch.update = Config::Zerotorch::Update::kInBackward;
        c.gradient_clipping = 0;
      }),
      "Config: zerotorch.update: in_backward with zero_optimization.stage 0: it needs sharded optimizer states; set "
      "zero_optimization.stage to 1, 2 or 3");
  EXPECT_NE(error_by_hand([](Config& c) {
              c.zerotorch.update = Config::Zerotorch::Update::kInBackward;
              c.zero_optimization.stage = 2;
            }).find("gradient_clipping to 0"),
            std::string::npos);
  EXPECT_NE(error_by_hand([](Config& c) { c.scheduler.type = Config::Scheduler::Type::kWarmupDecayLR; }), "");
}

TEST(ConfigByHand, ValuesThatAReaderWouldChange) {
  EXPECT_EQ(error_by_hand([](Config& c) {
              c.scheduler.type = Config::Scheduler::Type::kWarmupLR;
              c.scheduler.warmup_num_steps = 1;
            }),
            "Config: scheduler.params.warmup_num_steps: got 1, which is read as 2; write that");
  EXPECT_EQ(error_by_hand([](Config& c) { c.optimizer.adam_w_mode = false; }),
            "Config: optimizer.params.adam_w_mode: got false, which is read as true; write that");
  EXPECT_EQ(error_by_hand([](Config& c) {
              c.optimizer.type = "Adam";
              c.optimizer.adam_w_mode = false;
            }),
            "");
}

TEST(ConfigByHand, WhatTheOptimizersTypeDoesNotTakeIsAnError) {
  EXPECT_EQ(error_by_hand([](Config& c) {
              c.optimizer.type = "SGD";
              c.optimizer.beta1 = 0.5;
            }),
            "Config: optimizer.params.betas: got [0.5,0.999], but SGD takes lr, weight_decay, maximize, momentum, "
            "dampening, nesterov; leave it at [0.9,0.999]");
  EXPECT_EQ(error_by_hand([](Config& c) {
              c.optimizer = Config::Optimizer::defaults_of("RMSprop");
              c.optimizer.momentum = 0.5;
            }),
            "");
  EXPECT_NE(error_by_hand([](Config& c) {
              c.optimizer.type = "SGD";
              c.optimizer.nesterov = true;
            }),
            "");
}

TEST(ConfigByHand, TextThatIsNotUtf8IsWritten) {
  Config config;
  config.zerotorch.unit_names = {"\xff"};
  EXPECT_NE(config.to_json(), "");
}

TEST(ConfigErrors, AllProblemsAtOnceInTheOrderOfTheFile) {
  std::string text = "{\n\"zz\": 1,\n\"train_batch_size\": 0,\n\"bf16\": {\"enabled\": 3},\n\"zz\": 2,\n";
  EXPECT_EQ(error_of(text + "\"aa\": 1}"),
            "c:2: zz: unknown key; docs/config.md lists the keys of the top level\n"
            "c:3: train_batch_size: got 0, want a whole number, 1 to 1000000000000\n"
            "c:4: bf16.enabled: got 3, want true or false\n"
            "c:5: zz: given twice, first on line 2; remove one\n"
            "c:6: aa: unknown key; docs/config.md lists the keys of the top level");
  for (int i = 0; i < 40; ++i) text += "\"unknown_key_" + std::to_string(i) + "\": 1,\n";
  const std::string error = error_of(text + "}");
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 20);
  EXPECT_TRUE(error.ends_with("\nc: and 24 more")) << error;
}

}  // namespace
}  // namespace zero::config_errors_test
