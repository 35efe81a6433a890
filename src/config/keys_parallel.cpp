// Other kinds of parallelism, compilation and inference.
#include "config/schema.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr std::string_view kDataParallel = "only data parallelism is built; remove it";
constexpr std::string_view kTensor = "tensor parallelism is not built; remove the section";
constexpr std::string_view kExpert = "expert parallelism is not built; remove the section";
constexpr std::string_view kPipe = "only DeepSpeed's PipelineModule reads it, which is not built";
constexpr std::string_view kCompile = "graph compilation is not built; remove the section";
constexpr std::string_view kHybrid =
    "the hybrid engine (generation during training) is not built; remove the section";

constexpr Key refused(std::string_view path, Kind kind, std::string_view fallback, std::string_view note,
                      std::string_view harmless = {}) {
  return {.path = path,
          .kind = kind,
          .fallback = fallback,
          .status = kRefused,
          .note = note,
          .harmless = harmless};
}
constexpr Key gated(std::string_view path, std::string_view note, std::string_view gate = "enabled") {
  return {.path = path,
          .kind = Kind::kSection,
          .fallback = "null",
          .status = kRefused,
          .note = note,
          .gate = gate};
}
constexpr Key pipe(std::string_view path, Kind kind, std::string_view fallback) {
  return {.path = path, .kind = kind, .fallback = fallback, .status = kNoEffect, .note = kPipe};
}

constexpr Key kParallel[] = {
    refused("sequence_parallel_size", Kind::kCount, "1", kDataParallel, "1"),
    {.path = "data_parallel_size",
     .kind = Kind::kCount,
     .fallback = "null",
     .status = kNoEffect,
     .note = "the launcher says how many ranks there are"},
    {.path = "seq_parallel_communication_data_type",
     .kind = Kind::kChoice,
     .fallback = "\"fp32\"",
     .status = kNoEffect,
     .note = "sequence parallelism is not built",
     .choices = "fp32|bf16|fp16"},
    refused("use_data_before_expert_parallelism", Kind::kBool, "false", kDataParallel, "false"),

    {.path = "pipeline", .kind = Kind::kSection, .fallback = "null", .note = kPipe},
    pipe("pipeline.stages", Kind::kAny, "\"auto\""),
    pipe("pipeline.partition", Kind::kString, "\"best\""),
    pipe("pipeline.seed_layers", Kind::kBool, "false"),
    pipe("pipeline.activation_checkpoint_interval", Kind::kCount, "0"),
    pipe("pipeline.pipe_partitioned", Kind::kBool, "true"),
    pipe("pipeline.grad_partitioned", Kind::kBool, "true"),
    pipe("pipeline.use_reentrant", Kind::kBool, "true"),

    gated("tensor_parallel", kTensor, "autotp_size|preset_model|partition_config"),
    refused("tensor_parallel.autotp_size", Kind::kCount, "0", kTensor, "0|1"),
    refused("tensor_parallel.dtype", Kind::kString, "\"torch.float16\"", kTensor),
    refused("tensor_parallel.tp_overlap_comm", Kind::kBool, "false", kTensor),
    refused("tensor_parallel.tensor_parallel", Kind::kAny, "null", kTensor),
    refused("tensor_parallel.tp", Kind::kAny, "null", kTensor),
    refused("tensor_parallel.injection_policy_tuple", Kind::kAny, "null", kTensor),
    refused("tensor_parallel.partition_config", Kind::kAny, "null", kTensor),
    refused("tensor_parallel.preset_model", Kind::kString, "null", kTensor),
    refused("tensor_parallel.keep_module_on_host", Kind::kBool, "false", kTensor),
    refused("tensor_parallel.replace_with_kernel_inject", Kind::kBool, "false", kTensor),
    refused("tensor_parallel.kernel_inject", Kind::kBool, "false", kTensor),

    gated("expert_parallel", kExpert),
    refused("expert_parallel.enabled", Kind::kBool, "false", kExpert, "false"),
    refused("expert_parallel.*", Kind::kAny, "", kExpert),

    gated("compile", kCompile,
          "enabled|deepcompile|free_activation|offload_activation|offload_opt_states|offload_parameters|"
          "passes"),
    refused("compile.enabled", Kind::kBool, "false", kCompile, "false"),
    refused("compile.deepcompile", Kind::kBool, "false", kCompile, "false"),
    refused("compile.backend", Kind::kAny, "\"inductor\"", kCompile),
    refused("compile.kwargs", Kind::kAny, "{}", kCompile),
    refused("compile.free_activation", Kind::kBool, "false", kCompile, "false"),
    refused("compile.free_activation_threshold", Kind::kCount, "10485760", kCompile),
    refused("compile.offload_activation", Kind::kBool, "false", kCompile, "false"),
    refused("compile.offload_activation_pin_memory", Kind::kBool, "true", kCompile),
    refused("compile.offload_opt_states", Kind::kBool, "false", kCompile, "false"),
    refused("compile.offload_parameters", Kind::kBool, "false", kCompile, "false"),
    refused("compile.double_buffer", Kind::kBool, "true", kCompile),
    refused("compile.symmetric_memory", Kind::kBool, "false", kCompile),
    refused("compile.debug_log", Kind::kBool, "false", kCompile),
    refused("compile.sync_before_reduce", Kind::kBool, "false", kCompile),
    refused("compile.sync_after_reduce", Kind::kBool, "false", kCompile),
    refused("compile.sync_before_allgather", Kind::kBool, "false", kCompile),
    refused("compile.sync_after_allgather", Kind::kBool, "false", kCompile),
    refused("compile.keep_int_input_tensors", Kind::kBool, "true", kCompile),
    refused("compile.keep_all_input_tensors", Kind::kBool, "false", kCompile),
    refused("compile.passes", Kind::kStrings, "null", kCompile),

    gated("hybrid_engine", kHybrid),
    refused("hybrid_engine.enabled", Kind::kBool, "false", kHybrid, "false"),
    refused("hybrid_engine.max_out_tokens", Kind::kCount, "512", kHybrid),
    refused("hybrid_engine.inference_tp_size", Kind::kCount, "1", kHybrid),
    refused("hybrid_engine.release_inference_cache", Kind::kBool, "false", kHybrid),
    refused("hybrid_engine.pin_parameters", Kind::kBool, "true", kHybrid),
    refused("hybrid_engine.tp_gather_partition_size", Kind::kCount, "8", kHybrid),
    refused("hybrid_engine.enable_cuda_graph", Kind::kBool, "false", kHybrid),
};

}  // namespace

std::span<const Key> parallel_keys() { return kParallel; }

}  // namespace zero::config
