// What changes a run from outside, measures it, or spreads it in other ways: sections that are refused as a whole.
#include "config/schema.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr std::string_view kService =
    "not built, it needs a service; \"csv_monitor\" and \"tensorboard\" write the same figures to files";
constexpr std::string_view kDataParallel = "only data parallelism is built; remove it";
constexpr std::string_view kPipe = "only DeepSpeed's PipelineModule reads it, which is not built";
constexpr std::string_view kCurriculum = "data curricula are not built; order the data in the program";
constexpr std::string_view kQuantize = "quantised training is not built; remove the section";

constexpr std::string_view kReadByNobody = "files have it, and DeepSpeed does not read it";

constexpr Key kKeys[] = {
    not_built("amp", "Apex AMP does not exist in C++; use \"bf16\": {\"enabled\": true}"),
    not_built("torch_autocast",
              "autocast gathers fp32, casts all weights in every micro-batch and keeps the copies until backward, "
              "which defeats stage 3; use \"bf16\": {\"enabled\": true} (the Python package has it for bf16)"),
    service("wandb", kService),
    service("comet", kService),
    not_built("nebula", "a checkpoint service of its own; checkpoints here go to a folder"),
    refused("datastates_ckpt", Kind::kAny, "null", "DataStates is not built; remove the section", "false|{}"),
    not_built("autotuning", "autotuning is not built; zero plan shows the memory of a configuration"),
    not_built("elasticity",
              "elasticity is not built; keep train_batch_size and restart from a checkpoint with any number "
              "of ranks"),
    not_built("curriculum_learning", kCurriculum),
    not_built("data_efficiency", kCurriculum),
    not_built("progressive_layer_drop", "progressive layer drop is not built; remove the section"),
    not_built("eigenvalue", "eigenvalues are not built; remove the section"),
    not_built("tensor_parallel", "tensor parallelism is not built; remove the section",
              "enabled|autotp_size|preset_model|partition_config", "false|0|1"),
    not_built("expert_parallel", "expert parallelism is not built; remove the section"),
    not_built("compile", "graph compilation is not built; remove the section",
              "enabled|deepcompile|free_activation|offload_activation|offload_opt_states|offload_parameters|"
              "passes"),
    not_built("hybrid_engine", "the hybrid engine (generation during training) is not built; remove the section"),
    not_built("compression_training", "compression is not built; remove the section", "**"),
    not_built("quantize_training", kQuantize, "**"),
    not_built("weight_quantization", kQuantize, "*"),
    not_built("sparse_attention", "sparse attention belongs to the model; remove the section", "*"),

    no_effect("disable_python_gc", Kind::kBool, "false", "Python's garbage collector is left alone", "false"),
    refused("sequence_parallel_size", Kind::kCount, "1", kDataParallel, "1"),
    refused("use_data_before_expert_parallelism", Kind::kBool, "false", kDataParallel, "false"),
    no_effect("cuda_visible_devices", Kind::kAny, "null", kReadByNobody),
    no_effect("comms_config", Kind::kAny, "null", kReadByNobody),
    no_effect("monitor_config", Kind::kAny, "null", kReadByNobody),
    no_effect("log", Kind::kAny, "null", kReadByNobody),
    no_effect("fp16.opt_level", Kind::kString, "null", kReadByNobody),
    no_effect("data_parallel_size", Kind::kCount, "null", "the launcher says how many ranks there are"),
    {.path = "seq_parallel_communication_data_type",
     .kind = Kind::kChoice,
     .fallback = "\"fp32\"",
     .status = kNoEffect,
     .note = "sequence parallelism is not built",
     .choices = "fp32|bf16|fp16"},

    section("pipeline", kPipe, kNoEffect),
    no_effect("pipeline.stages", Kind::kAny, "\"auto\"", kPipe),
    no_effect("pipeline.partition", Kind::kString, "\"best\"", kPipe),
    no_effect("pipeline.seed_layers", Kind::kBool, "false", kPipe),
    no_effect("pipeline.activation_checkpoint_interval", Kind::kCount, "0", kPipe),
    no_effect("pipeline.pipe_partitioned", Kind::kBool, "true", kPipe),
    no_effect("pipeline.grad_partitioned", Kind::kBool, "true", kPipe),
    no_effect("pipeline.use_reentrant", Kind::kBool, "true", kPipe),
};

}  // namespace

std::span<const Key> not_built_keys() { return kKeys; }

}  // namespace zero::config
