// P7: every key DeepSpeed knows is in the schema, and docs/config.md lists every key of the schema.
#include "config/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "config/exclusions.h"
#include "config/values.h"
#include "zero/errors.h"

namespace zero::config::config_schema_test {
namespace {

// DeepSpeed 0.19, section by section, with what older versions had. "section: key key ...".
constexpr const char* kDeepSpeedKeys[] = {
    ": train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
    "managed_gradient_accumulation "
    "optimizer scheduler communication_data_type seq_parallel_communication_data_type prescale_gradients "
    "gradient_predivide_factor gradient_allreduce_op sparse_gradients fp16 bf16 bfloat16 amp torch_autocast "
    "gradient_clipping zero_optimization zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
    "steps_per_print "
    "wall_clock_breakdown memory_breakdown dump_state disable_allgather autotuning flops_profiler "
    "activation_checkpointing sparse_attention data_efficiency curriculum_learning tensorboard wandb comet "
    "csv_monitor comms_logger compression_training checkpoint data_types elasticity aio pipeline eigenvalue "
    "progressive_layer_drop hybrid_engine compile tensor_parallel expert_parallel nebula datastates_ckpt "
    "weight_quantization quantize_training timers graph_harvesting vocabulary_size dataloader_drop_last "
    "log_level "
    "use_data_before_expert_parallelism sequence_parallel_size data_parallel_size allgather_size "
    "fp32_allreduce "
    "allreduce_always_fp32",
    "optimizer: type params legacy_fusion",
    "optimizer.params: lr betas eps weight_decay bias_correction adam_w_mode torch_adam amsgrad "
    "set_grad_none "
    "max_grad_norm fp32_optimizer_states momentum dampening nesterov maximize alpha centered lr_decay "
    "initial_accumulator_value foreach fused capturable differentiable",
    "scheduler: type params",
    "scheduler.params: warmup_min_lr warmup_max_lr warmup_num_steps warmup_type total_num_steps "
    "warmup_min_ratio "
    "cos_min_ratio last_batch_iteration",
    "fp16: enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis "
    "consecutive_hysteresis "
    "min_loss_scale fp16_master_weights_and_grads",
    "bf16: enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads "
    "bf16_optimizer_states "
    "check_overflow",
    "data_types: grad_accum_dtype param_dtype buffer_dtype",
    "torch_autocast: enabled dtype lower_precision_safe_modules",
    "amp: enabled opt_level",
    "zero_optimization: stage contiguous_gradients reduce_scatter reduce_bucket_size "
    "use_multi_rank_bucket_allreduce allgather_partitions allgather_bucket_size overlap_comm "
    "load_from_fp32_weights "
    "elastic_checkpoint offload_param offload_optimizer zenflow sub_group_size cpu_offload_param "
    "cpu_offload_params "
    "cpu_offload_use_pin_memory cpu_offload prefetch_bucket_size stage3_prefetch_bucket_size "
    "param_persistence_threshold stage3_param_persistence_threshold model_persistence_threshold "
    "stage3_model_persistence_threshold max_live_parameters stage3_max_live_parameters max_reuse_distance "
    "stage3_max_reuse_distance gather_16bit_weights_on_model_save stage3_gather_16bit_weights_on_model_save "
    "module_granularity_threshold stage3_module_granularity_threshold use_all_reduce_for_fetch_params "
    "stage3_use_all_reduce_for_fetch_params allgather_sequential stage3_allgather_sequential "
    "stage3_gather_fp16_weights_on_model_save gather_fp16_weights_on_model_save ignore_unused_parameters "
    "legacy_stage1 round_robin_gradients zero_hpz_partition_size zero_quantized_weights "
    "zero_quantized_nontrainable_weights zero_quantized_gradients zeropp_loco_param mics_shard_size "
    "mics_hierarchical_params_gather memory_efficient_linear pipeline_loading_checkpoint "
    "override_module_apply "
    "log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module "
    "grad_hooks",
    "zero_optimization.offload_param: device nvme_path buffer_count buffer_size max_in_cpu pin_memory",
    "zero_optimization.offload_optimizer: device nvme_path buffer_count pin_memory pipeline_read "
    "pipeline_write "
    "pipeline fast_init ratio super_offload cpuadam_cores_perc",
    "zero_optimization.leaf_module: classes names name_suffixes",
    "zero_optimization.zeropp_loco_param: err_beta reset_T",
    "zero_optimization.zenflow: topk_ratio select_strategy select_interval update_interval overlap_step "
    "offload "
    "auto_ratio full_warm_up_rounds pt_reserved_cores_perc steps_per_epoch",
    "tensorboard: enabled output_path job_name",
    "csv_monitor: enabled output_path job_name",
    "wandb: enabled group team project",
    "comet: enabled samples_log_interval project workspace api_key experiment_name experiment_key online "
    "mode",
    "comms_logger: enabled prof_all prof_ops verbose debug",
    "flops_profiler: enabled recompute_fwd_factor profile_step module_depth top_modules detailed output_file",
    "activation_checkpointing: partition_activations number_checkpoints contiguous_memory_optimization "
    "cpu_checkpointing synchronize_checkpoint_boundary profile",
    "checkpoint: tag_validation load_universal use_node_local_storage parallel_write "
    "checkpoint_serialization writer",
    "checkpoint.parallel_write: pipeline_stage",
    "checkpoint.writer: type io_buffer_size io_buffer_double io_multiplier show_statistics data_parallel "
    "decoupled",
    "aio: block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds",
    "nebula: enabled enable_nebula_load nebula_load_path persistent_storage_path persistent_time_interval "
    "num_of_version_in_retention",
    "timers.throughput: enabled synchronized",
    "pipeline: stages partition seed_layers activation_checkpoint_interval pipe_partitioned grad_partitioned",
    "hybrid_engine: enabled max_out_tokens inference_tp_size release_inference_cache pin_parameters "
    "tp_gather_partition_size enable_cuda_graph",
    "eigenvalue: enabled verbose max_iter tol stability gas_boundary_resolution layer_name layer_num",
    "progressive_layer_drop: enabled theta gamma",
    "compile: deepcompile free_activation free_activation_threshold offload_activation "
    "offload_activation_pin_memory "
    "offload_opt_states double_buffer symmetric_memory debug_log offload_parameters sync_before_reduce "
    "sync_after_reduce sync_before_allgather sync_after_allgather keep_int_input_tensors "
    "keep_all_input_tensors "
    "passes enabled backend kwargs",
    "tensor_parallel: dtype autotp_size tp_overlap_comm tensor_parallel tp injection_policy_tuple "
    "partition_config "
    "preset_model keep_module_on_host replace_with_kernel_inject kernel_inject",
    "expert_parallel: enabled autoep_size expert_tensor_parallel_size preset_model use_grouped_mm top_k",
    "autotuning: enabled fast results_dir exps_dir overwrite start_profile_step end_profile_step metric "
    "metric_path "
    "tuner_type tuner_early_stopping tuner_num_trials arg_mappings model_info model_info_path mp_size "
    "max_train_batch_size min_train_batch_size max_train_micro_batch_size_per_gpu "
    "min_train_micro_batch_size_per_gpu num_tuning_micro_batch_sizes",
    "elasticity: enabled max_train_batch_size micro_batch_sizes min_gpus max_gpus num_gpus_per_node "
    "model_parallel_size min_time prefer_larger_batch ignore_non_elastic_batch_info version",
    "data_efficiency: enabled seed data_routing data_sampling",
    "curriculum_learning: enabled curriculum_type min_difficulty max_difficulty schedule_type "
    "schedule_config",
    "compression_training: layer_reduction weight_quantization activation_quantization sparse_pruning "
    "row_pruning "
    "head_pruning channel_pruning",
    "sparse_attention: mode block different_layout_per_head num_local_blocks",
    "weight_quantization: enabled quantized_initialization post_init_quant",
};

/// A section without rows of its members, or one opaque value ("any"): they are covered by it.
bool is_whole(const Key& key) { return key.kind == Kind::kAny || (!key.gate.empty() && names_in(key.path).empty()); }

bool covered(const std::string& path) {
  if (find_key(path) != nullptr) return true;
  const Key* parent = find_key(path.substr(0, path.rfind('.')));
  return parent != nullptr && is_whole(*parent);
}

TEST(ConfigSchema, HasEveryDeepSpeedKey) {
  int count = 0;
  for (const std::string line : kDeepSpeedKeys) {
    const std::size_t colon = line.find(':');
    std::istringstream names(line.substr(colon + 1));
    for (std::string name; names >> name; ++count) {
      const std::string path = colon == 0 ? name : line.substr(0, colon) + "." + name;
      EXPECT_TRUE(covered(path)) << path;
    }
  }
  EXPECT_GT(count, 300);
}

TEST(ConfigSchema, RowsAreSound) {
  std::set<std::string_view> seen;
  for (const Key* key : all_keys()) {
    EXPECT_TRUE(seen.insert(key->path).second) << key->path << " is twice in the schema";
    EXPECT_TRUE(!key->note.empty() || !key->alias_of.empty()) << key->path;
    const std::size_t dot = key->path.rfind('.');
    if (dot != std::string_view::npos) {
      const Key* parent = find_key(key->path.substr(0, dot));
      ASSERT_NE(parent, nullptr) << key->path;
      EXPECT_EQ(parent->kind, Kind::kSection) << key->path;
    }
    if (!key->alias_of.empty()) {
      const Key* target = find_key(key->alias_of);
      ASSERT_NE(target, nullptr) << key->path;
      EXPECT_EQ(target->status, key->status) << key->path;
      EXPECT_TRUE(target->alias_of.empty()) << key->path;
    }
    const bool leaf = key->kind != Kind::kSection && key->alias_of.empty();
    const bool read_elsewhere = key->path == "data_types.param_dtype" || key->path == "optimizer.params.torch_adam";
    EXPECT_EQ(key->field.bind != nullptr, leaf && key->status == KeyStatus::kHonoured && !read_elsewhere) << key->path;
    EXPECT_EQ(key->field.bind != nullptr, key->field.unbind != nullptr) << key->path;
    EXPECT_EQ(key->kind == Kind::kChoice, !key->choices.empty()) << key->path;
    for (const std::string_view gate : split(key->gate)) {
      if (gate.front() == '*' || is_whole(*key)) continue;
      EXPECT_NE(find_key(std::string(key->path) + "." + std::string(gate)), nullptr) << key->path;
    }
    for (const std::string_view value : split(key->harmless)) {
      EXPECT_TRUE(nlohmann::json::accept(value)) << key->path << ' ' << value;
    }
  }
}

TEST(ConfigSchema, ASectionIsHonouredWhereAMemberIs) {
  for (const Key* section : all_keys()) {
    if (section->kind != Kind::kSection || !section->alias_of.empty()) continue;
    const std::string prefix = std::string(section->path) + ".";
    const bool honoured = std::ranges::any_of(all_keys(), [&](const Key* key) {
      return key->path.starts_with(prefix) && key->kind != Kind::kSection && key->status == KeyStatus::kHonoured;
    });
    EXPECT_EQ(section->status == KeyStatus::kHonoured, honoured) << section->path;
  }
}

TEST(ConfigSchema, RowsOfOptimizersNameWhatIsThere) {
  for (const OptimizerInfo& optimizer : kOptimizers) {
    for (const std::string_view name : split(optimizer.parameters))
      EXPECT_NE(find_key("optimizer.params." + std::string(name)), nullptr) << optimizer.types << ' ' << name;
    for (const OptimizerDefault& one : optimizer.defaults) {
      if (one.name.empty()) continue;
      EXPECT_TRUE(std::ranges::count(kHyperParameters, one.name, &HyperParameterInfo::name)) << one.name;
      EXPECT_TRUE(one.value >= one.range.minimum && one.value <= one.range.maximum) << one.name;
      EXPECT_TRUE(one.name == "lr" || one.name.starts_with("beta") || is_among(one.name, optimizer.parameters))
          << optimizer.types << ' ' << one.name;
    }
    for (const std::string_view type : split(optimizer.types)) EXPECT_EQ(find_optimizer(type), &optimizer);
  }
}

TEST(ConfigSchema, DefaultsFitTheirKind) {
  for (const Key* key : all_keys()) {
    if (key->fallback.empty() || key->fallback == "null") continue;
    const auto value = nlohmann::json::parse(key->fallback, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << key->path;
    EXPECT_TRUE(check_value(*key, value).ok()) << key->path << ": " << check_value(*key, value).problem;
  }
}

TEST(ConfigSchema, DefaultsAreThoseOfTheFields) {
  // Binding every honoured default onto a fresh Config must change nothing.
  Config config;
  for (const Key* key : all_keys()) {
    const bool resolved_later = key->path == "scheduler.type" || key->fallback.empty() || key->fallback == "null";
    if (key->field.bind == nullptr || resolved_later) continue;
    key->field.bind(config, check_value(*key, nlohmann::json::parse(key->fallback)).value);
    EXPECT_EQ(config.to_json(), Config().to_json()) << key->path;
  }
  EXPECT_EQ(config.optimizer.beta2, Config().optimizer.beta2);
  EXPECT_EQ(config.scheduler.cos_min_ratio, Config().scheduler.cos_min_ratio);
}

/// Values that the key takes: some of every kind, its bounds and its choices.
std::vector<nlohmann::json> values_of(const Key& key) {
  auto values = nlohmann::json::parse(
      R"([true, false, -1, 0, 1, 2, 3, 12345, 0.25, 0.9, 1e-9, "", "a b", [], ["a", "b.c"], [0.25, 0.5], [0.9, 0]])");
  values.insert(values.end(), {key.minimum, key.maximum});
  for (const std::string_view choice : split(key.choices)) values.push_back(choice);
  std::erase_if(values.get_ref<nlohmann::json::array_t&>(), [&](const auto& value) {
    return !check_value(key, value).ok() || (key.kind == Kind::kStrings && value.is_string());
  });
  return values;
}

std::string first_name_of(const std::string& dtype) {
  if (dtype == "bfloat16" || dtype == "torch.bfloat16") return "bf16";
  return dtype == "float" || dtype == "float32" || dtype == "torch.float32" ? "fp32" : "fp16";
}

TEST(ConfigSchema, WhatAKeySetsIsWhatItWrites) {
  int count = 0;
  for (const Key* key : all_keys()) {
    if (key->field.bind == nullptr) continue;
    const auto values = values_of(*key);
    EXPECT_GE(values.size(), 2u) << key->path;
    for (const auto& value : values) {
      Config config;
      config.optimizer.given = true;
      key->field.bind(config, check_value(*key, value).value);
      const auto written = json_of(*key, key->field.unbind(config));
      // Of several names for one thing it writes the first.
      const bool renamed = key->path == "data_types.grad_accum_dtype" && written != value;
      EXPECT_EQ(written, renamed ? nlohmann::json(first_name_of(value)) : value) << key->path;
      ++count;
    }
  }
  EXPECT_GT(count, 100);
}

/// {"a": {"b": value}} for the path a.b.
nlohmann::json nested(std::string_view path, const nlohmann::json& value) {
  const std::size_t dot = path.find('.');
  if (dot == std::string_view::npos) return {{std::string(path), value}};
  return {{std::string(path.substr(0, dot)), nested(path.substr(dot + 1), value)}};
}

bool inside_gated_section(std::string_view path) {
  for (std::size_t dot = path.rfind('.'); dot != std::string_view::npos; dot = path.rfind('.', dot - 1)) {
    if (!find_key(path.substr(0, dot))->gate.empty()) return true;
  }
  return false;
}

TEST(ConfigSchema, EveryKeyWithEveryKindOfValueLoadsOrSaysWhy) {
  const auto values = nlohmann::json::parse(
      R"([null, true, false, -1, 0, 1, 1.5, 1e300, "", "x", "auto", [], [1, 2], ["a"], {},
          {"enabled": true}])");
  for (const Key* key : all_keys()) {
    for (const auto& value : values) {
      const std::string text = nested(key->path, value).dump();
      const std::string name(key->path.substr(key->path.rfind('.') + 1));
      try {
        const Config config = Config::from_text(text, "c");
        const bool spoken = std::any_of(config.notices.begin(), config.notices.end(),
                                        [&](const auto& line) { return line.starts_with(key->path); });
        const bool silent_is_fine = value.is_null() || key->status == KeyStatus::kHonoured ||
                                    is_harmless(*key, value) || inside_gated_section(key->path) ||
                                    key->kind == Kind::kSection;
        EXPECT_TRUE(spoken || silent_is_fine) << text << " was ignored silently";
        EXPECT_FALSE(key->status == KeyStatus::kRefused && !silent_is_fine) << text << " was not refused";
        EXPECT_EQ(Config::from_text(config.to_json()).to_json(), config.to_json()) << text;
      } catch (const ConfigError& error) {
        EXPECT_TRUE(std::string_view(error.what()).starts_with("c:1: ")) << error.what();
        const std::string section(key->path.substr(0, key->path.find('.')));
        EXPECT_NE(std::string_view(error.what()).find(section), std::string_view::npos) << error.what();
      }
    }
  }
}

TEST(ConfigSchema, PublicViewMatches) {
  const auto infos = schema();
  ASSERT_EQ(infos.size(), all_keys().size());
  for (std::size_t i = 0; i < infos.size(); ++i) {
    EXPECT_EQ(infos[i].path, all_keys()[i]->path);
    EXPECT_EQ(infos[i].status, all_keys()[i]->status);
  }
}

std::filesystem::path source_folder() {
#ifdef ZERO_SOURCE_DIR
  return ZERO_SOURCE_DIR;
#else
  return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
#endif
}

TEST(ConfigSchema, ExamplesAreWrittenAsTheyWereRead) {
  for (const char* example : {"examples/ds_config.json", "examples/nvme.json", "examples/in_memory.json",
                              "tests/install/consumer/ds_config.json"}) {
    const std::string once = Config::from_file(source_folder() / example).to_json();
    const Config again = Config::from_text(once);
    EXPECT_EQ(again.to_json(), once) << example;
    EXPECT_TRUE(again.notices.empty()) << example;
  }
}

TEST(ConfigSchema, DocsListWhatExcludesWhat) {
  std::ifstream file(source_folder() / "docs/config.md");
  ASSERT_TRUE(file.is_open()) << source_folder();
  std::vector<std::string> rows;
  std::string line;
  while (std::getline(file, line) && line != "## What excludes what") {
  }
  while (std::getline(file, line) && !line.starts_with("## ")) {
    if (line.starts_with("| ") && !line.starts_with("| setting ")) rows.push_back(line);
  }
  std::vector<std::string> want;
  for (const Exclusion& row : exclusions())
    want.push_back(fmt::format("| {} | {} | {} | {} |", row.one->name(), row.other->name(), row.reason, row.remedy));
  EXPECT_EQ(fmt::format("{}", fmt::join(rows, "\n")), fmt::format("{}", fmt::join(want, "\n")));
}

TEST(ConfigSchema, ExclusionsNameKeysAndChoices) {
  for (const Exclusion& row : exclusions()) {
    EXPECT_FALSE(row.reason.empty() || row.remedy.empty()) << row.one->name();
    EXPECT_TRUE(row.one->path.empty() || find_key(row.one->path)) << row.one->path;
    EXPECT_TRUE(row.other->path.empty() || find_key(row.other->path)) << row.other->path;
    const Key* const key = row.one->path.empty() ? nullptr : find_key(row.one->path);
    if (key == nullptr || key->path != "zerotorch.update") continue;
    const auto choices = split(key->choices);
    EXPECT_NE(std::ranges::find(choices, row.one->value), choices.end()) << row.one->value;
  }
}

TEST(ConfigSchema, DocsListEveryKeyWithItsStatus) {
  std::ifstream file(source_folder() / "docs/config.md");
  ASSERT_TRUE(file.is_open()) << source_folder();
  std::set<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `")) continue;
    // | `path` | status | ...
    const std::size_t end = line.find("` | ");
    ASSERT_NE(end, std::string::npos) << line;
    const std::size_t status_end = line.find(" |", end + 4);
    rows.insert(line.substr(3, end - 3) + " = " + line.substr(end + 4, status_end - end - 4));
  }
  for (const KeyInfo& info : schema()) {
    const std::string row = std::string(info.path) + " = " + std::string(status_name(info.status));
    EXPECT_EQ(rows.erase(row), 1u) << "docs/config.md lacks: " << row;
  }
  EXPECT_TRUE(rows.empty()) << "docs/config.md has a row that the schema has not: " << *rows.begin();
}

}  // namespace
}  // namespace zero::config::config_schema_test
