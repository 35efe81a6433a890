// DeepSpeed files as people have them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "zero/config.h"
#include "zero/errors.h"

namespace zero::config_examples_test {
namespace {

std::string error_of(std::string_view text) {
  try {
    Config::from_text(text, "ds.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(ConfigExamples, StagesWithAndWithoutFp16) {
  for (const int stage : {1, 2, 3}) {
    const std::string tail = ",\n\"train_batch_size\": 32,\n\"gradient_accumulation_steps\": 1}";
    const std::string head = "{\n\"zero_optimization\": {\"stage\": " + std::to_string(stage) + "}";
    EXPECT_EQ(Config::from_text(head + ",\n\"fp16\": {\"enabled\": true}" + tail).param_dtype(), DType::kFloat16);
    const Config config = Config::from_text(head + ",\n\"fp16\": {\"enabled\": false}" + tail);
    EXPECT_EQ(config.zero_optimization.stage, stage);
    EXPECT_EQ(config.zero_optimization.overlaps_comm(), stage == 3);
    EXPECT_EQ(config.train_batch_size, 32);
    EXPECT_EQ(config.gradient_accumulation_steps, 1);
    EXPECT_EQ(config.notices.size(), 1u) << "only the default of gradient_clipping";
  }
}

TEST(ConfigExamples, OldCpuOffloadIsTakenWithFp16) {
  EXPECT_EQ(error_of("{\n\"train_batch_size\": 32,\n\"fp16\": {\"enabled\": true},\n"
                     "\"zero_optimization\": {\"stage\": 3, \"cpu_offload\": true}}"),
            "");
}

TEST(ConfigExamples, OverlapAndBuckets) {
  const Config config = Config::from_text(R"({
    "train_batch_size": 32,
    "zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true,
                          "sub_group_size": 1e9, "reduce_bucket_size": 5e8}})");
  EXPECT_TRUE(config.zero_optimization.overlaps_comm());
  EXPECT_EQ(config.zero_optimization.stage, 3);
}

TEST(ConfigExamples, TheUsualTemplate) {
  const Config config = Config::from_text(R"({
    "fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
             "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": true},
    "optimizer": {"type": "adamw",
                  "params": {"lr": 3e-5, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 3e-7}},
    "scheduler": {"type": "WarmupLR",
                  "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500}},
    "zero_optimization": {
      "stage": 3,
      "offload_optimizer": {"device": "none", "pin_memory": true},
      "offload_param": {"device": "none", "pin_memory": true},
      "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9, "reduce_bucket_size": 1e6,
      "stage3_prefetch_bucket_size": 0.94e6, "stage3_param_persistence_threshold": 1e4,
      "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
      "stage3_gather_16bit_weights_on_model_save": true},
    "gradient_accumulation_steps": 1, "gradient_clipping": 0.5, "steps_per_print": 2000,
    "train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "wall_clock_breakdown": false})");
  EXPECT_TRUE(config.bf16.enabled);
  EXPECT_TRUE(config.optimizer.given);
  EXPECT_EQ(config.optimizer.type, "AdamW");
  EXPECT_EQ(config.optimizer.lr, 3e-5);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.99);
  EXPECT_EQ(config.optimizer.eps, 1e-7);
  EXPECT_EQ(config.optimizer.weight_decay, 3e-7);
  EXPECT_EQ(config.scheduler.type, Config::Scheduler::Type::kWarmupLR);
  EXPECT_EQ(config.scheduler.warmup_max_lr, 3e-5);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 500);
  EXPECT_EQ(config.zero_optimization.stage3_prefetch_bucket_size, 940'000);
  EXPECT_EQ(config.zero_optimization.stage3_param_persistence_threshold, 10'000);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_EQ(config.steps_per_print, 2000);
  EXPECT_EQ(config.zero_optimization.reduce_bucket_size, 1'000'000);
  EXPECT_EQ(config.zero_optimization.sub_group_size, 1'000'000'000);
  EXPECT_TRUE(config.notices.empty());
}

TEST(ConfigExamples, HuggingFaceAutoSaysWhatToPut) {
  const std::string error = error_of(
      "{\n\"train_batch_size\": \"auto\",\n\"bf16\": {\"enabled\": \"auto\"},\n\"fp16\": {\"enabled\": "
      "\"auto\"},\n"
      "\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\"},\n"
      "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": \"auto\"}}}");
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 4) << error;
  EXPECT_NE(error.find("ds.json:2: train_batch_size: \"auto\" is filled in by Hugging Face's trainer, which is not "
                       "here; write a whole number, 1 to 1000000000000"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("ds.json:3: bf16.enabled: \"auto\""), std::string::npos);
  EXPECT_NE(error.find("ds.json:4: fp16.enabled: \"auto\""), std::string::npos);
  EXPECT_NE(error.find("write 5e8 or remove the key"), std::string::npos);
  EXPECT_NE(error.find("scheduler.params.total_num_steps: \"auto\""), std::string::npos);
}

TEST(ConfigExamples, AutoInsideASectionThatIsOffIsNobodysBusiness) {
  EXPECT_EQ(error_of(R"({"fp16": {"enabled": false, "loss_scale": "auto"}, "train_batch_size": 1})"), "");
}

TEST(ConfigExamples, ConfigParamsWrapperAndBooleanZero) {
  const Config config = Config::from_text(R"({"config_params": {"train_batch_size": 4, "zero_optimization": true}})");
  EXPECT_EQ(config.train_batch_size, 4);
  EXPECT_EQ(config.zero_optimization.stage, 1);
  EXPECT_TRUE(config.notices.at(0).starts_with("config_params:"));
  EXPECT_EQ(config.notices.at(1), "zero_optimization: old form; write {\"stage\": 1}");
  EXPECT_EQ(Config::from_text(R"({"zero_optimization": false})").zero_optimization.stage, 0);
  EXPECT_NE(error_of("{\"config_params\": {\n\"train_batch_size\": 0}}").find("ds.json:2: train_batch_size: got 0"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"config_params": {"optimizer": {"type": "OneBitLamb", "params": {"max_coeff": 1}}}})")
                .find("'OneBitLamb' is not built"),
            std::string::npos);
}

TEST(ConfigExamples, FromFile) {
  const auto path = std::filesystem::temp_directory_path() / "zero_config_examples_test.json";
  std::ofstream(path) << "{\"train_batch_size\": 8, // eight\n}";
  EXPECT_EQ(Config::from_file(path.string()).train_batch_size, 8);
  std::ofstream(path) << "{\"stge\": 8}";
  EXPECT_THROW(Config::from_file(path.string()), ConfigError);
  std::filesystem::remove(path);
  try {
    Config::from_file(path.string());
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos) << error.what();
  }
  EXPECT_THROW(Config::from_file("/"), IoError) << "a folder";
}

}  // namespace
}  // namespace zero::config_examples_test
