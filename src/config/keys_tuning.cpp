// Autotuning, elasticity, curricula, layer drop: what changes the run from outside.
#include "config/schema.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr std::string_view kAutotuning =
    "autotuning is not built; zero plan shows the memory of a configuration";
constexpr std::string_view kElastic =
    "elasticity is not built; keep train_batch_size and restart from a checkpoint with any number of ranks";
constexpr std::string_view kCurriculum = "data curricula are not built; order the data in the program";
constexpr std::string_view kLayerDrop = "progressive layer drop is not built; remove the section";
constexpr std::string_view kEigenvalue = "eigenvalues are not built; remove the section";

constexpr Key refused(std::string_view path, Kind kind, std::string_view fallback, std::string_view note) {
  return {.path = path,
          .kind = kind,
          .fallback = fallback,
          .status = kRefused,
          .note = note,
          .harmless = path.ends_with(".enabled") ? "false" : ""};
}
constexpr Key gated(std::string_view path, std::string_view note) {
  return {.path = path,
          .kind = Kind::kSection,
          .fallback = "null",
          .status = kRefused,
          .note = note,
          .gate = "enabled"};
}

constexpr Key kTuning[] = {
    gated("autotuning", kAutotuning),
    refused("autotuning.enabled", Kind::kBool, "false", kAutotuning),
    refused("autotuning.fast", Kind::kBool, "true", kAutotuning),
    refused("autotuning.results_dir", Kind::kString, "\"autotuning_results\"", kAutotuning),
    refused("autotuning.exps_dir", Kind::kString, "\"autotuning_exps\"", kAutotuning),
    refused("autotuning.overwrite", Kind::kBool, "true", kAutotuning),
    refused("autotuning.start_profile_step", Kind::kCount, "3", kAutotuning),
    refused("autotuning.end_profile_step", Kind::kCount, "5", kAutotuning),
    refused("autotuning.metric", Kind::kString, "\"throughput\"", kAutotuning),
    refused("autotuning.metric_path", Kind::kString, "null", kAutotuning),
    refused("autotuning.tuner_type", Kind::kString, "\"gridsearch\"", kAutotuning),
    refused("autotuning.tuner_early_stopping", Kind::kCount, "5", kAutotuning),
    refused("autotuning.tuner_num_trials", Kind::kCount, "50", kAutotuning),
    refused("autotuning.arg_mappings", Kind::kAny, "null", kAutotuning),
    refused("autotuning.model_info", Kind::kAny, "null", kAutotuning),
    refused("autotuning.model_info_path", Kind::kString, "null", kAutotuning),
    refused("autotuning.mp_size", Kind::kCount, "1", kAutotuning),
    refused("autotuning.max_train_batch_size", Kind::kCount, "null", kAutotuning),
    refused("autotuning.min_train_batch_size", Kind::kCount, "1", kAutotuning),
    refused("autotuning.max_train_micro_batch_size_per_gpu", Kind::kCount, "1024", kAutotuning),
    refused("autotuning.min_train_micro_batch_size_per_gpu", Kind::kCount, "1", kAutotuning),
    refused("autotuning.num_tuning_micro_batch_sizes", Kind::kCount, "3", kAutotuning),

    gated("elasticity", kElastic),
    refused("elasticity.enabled", Kind::kBool, "false", kElastic),
    refused("elasticity.max_train_batch_size", Kind::kCount, "2000", kElastic),
    refused("elasticity.micro_batch_sizes", Kind::kAny, "[2, 4, 6]", kElastic),
    refused("elasticity.min_gpus", Kind::kCount, "1", kElastic),
    refused("elasticity.max_gpus", Kind::kCount, "10000", kElastic),
    refused("elasticity.num_gpus_per_node", Kind::kCount, "1", kElastic),
    refused("elasticity.model_parallel_size", Kind::kCount, "1", kElastic),
    refused("elasticity.min_time", Kind::kCount, "0", kElastic),
    refused("elasticity.prefer_larger_batch", Kind::kBool, "true", kElastic),
    refused("elasticity.ignore_non_elastic_batch_info", Kind::kBool, "false", kElastic),
    refused("elasticity.version", Kind::kNumber, "0.2", kElastic),

    gated("curriculum_learning", kCurriculum),
    refused("curriculum_learning.enabled", Kind::kBool, "false", kCurriculum),
    refused("curriculum_learning.*", Kind::kAny, "", kCurriculum),
    gated("data_efficiency", kCurriculum),
    refused("data_efficiency.enabled", Kind::kBool, "false", kCurriculum),
    refused("data_efficiency.seed", Kind::kCount, "1234", kCurriculum),
    refused("data_efficiency.data_routing", Kind::kAny, "null", kCurriculum),
    refused("data_efficiency.data_sampling", Kind::kAny, "null", kCurriculum),

    gated("progressive_layer_drop", kLayerDrop),
    refused("progressive_layer_drop.enabled", Kind::kBool, "false", kLayerDrop),
    refused("progressive_layer_drop.theta", Kind::kNumber, "1.0", kLayerDrop),
    refused("progressive_layer_drop.gamma", Kind::kNumber, "0.001", kLayerDrop),

    gated("eigenvalue", kEigenvalue),
    refused("eigenvalue.enabled", Kind::kBool, "false", kEigenvalue),
    refused("eigenvalue.verbose", Kind::kBool, "false", kEigenvalue),
    refused("eigenvalue.max_iter", Kind::kCount, "100", kEigenvalue),
    refused("eigenvalue.tol", Kind::kNumber, "0.01", kEigenvalue),
    refused("eigenvalue.stability", Kind::kNumber, "1e-6", kEigenvalue),
    refused("eigenvalue.gas_boundary_resolution", Kind::kCount, "1", kEigenvalue),
    refused("eigenvalue.layer_name", Kind::kString, "\"bert.encoder.layer\"", kEigenvalue),
    refused("eigenvalue.layer_num", Kind::kCount, "0", kEigenvalue),
};

}  // namespace

std::span<const Key> tuning_keys() { return kTuning; }

}  // namespace zero::config
