#pragma once
// What a run may be set to, as far as some settings exclude others (config/exclusions.h).
#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "zero/config.h"

namespace zero::config {

/// A configuration, and what is known of the program that uses it. Facts that are not known exclude nothing.
struct Setting {
  const Config& config;
  std::optional<bool> module_on_gpu = {};
  bool shards_on_gpu = false;  ///< shards and optimizer states are in the memory of GPUs
  int hosts = 1;
  bool model_parallel = false;     ///< ranks hold parts of the model
  bool program_optimizer = false;  ///< InitializeOptions::optimizer_factory
};

/// True where the configuration wants what a module on an accelerator shards in host memory.
bool wants_host_memory(const Config& config);

/// A value of a key, or a fact about the program.
struct Feature {
  std::string_view path;   ///< of the key; empty: a fact
  std::string_view value;  ///< what it is set to, or the fact
  bool (*is_on)(const Setting&);
  std::string (*actual)(const Setting&) = nullptr;  ///< of values that are described: the one that is set

  std::string name() const;
};

namespace features {

using Own = Config::Zerotorch;

inline std::string optimizer_type(const Setting& s) { return s.config.optimizer.type; }

inline bool changes_tensors(const Setting& s) {
  const std::string& type = s.config.optimizer.type;
  return !s.program_optimizer && (type == "Muon" || type == "Adafactor");
}

inline bool needs_whole_tensors(const Setting& s) {
  return changes_tensors(s) || (!s.program_optimizer && s.config.optimizer.type == "Lamb");
}

inline bool divides_states(const Setting& s) {
  const auto& offload = s.config.zero_optimization.offload_optimizer;
  return offload.ratio < 1 && offload.device == Config::OffloadDevice::kCpu && s.module_on_gpu.value_or(false) &&
         !s.shards_on_gpu;
}

inline bool offloads_to_host(const Setting& s) { return wants_host_memory(s.config); }

// What follows has the form {key, value, when it is set}.

inline constexpr Feature kFp16{"fp16.enabled", "true", [](const Setting& s) { return s.config.fp16.enabled; }};
inline constexpr Feature kBf16{"bf16.enabled", "true", [](const Setting& s) { return s.config.bf16.enabled; }};
inline constexpr Feature kChecksOverflow{"bf16.check_grad_overflow", "true", [](const Setting& s) {
                                           return !s.config.fp16.enabled && s.config.skips_non_finite();
                                         }};
inline constexpr Feature kClipping{"gradient_clipping", "above 0",
                                   [](const Setting& s) { return s.config.gradient_clipping > 0; },
                                   [](const Setting& s) { return fmt::format("{:g}", s.config.gradient_clipping); }};
inline constexpr Feature kAccumulation{
    "gradient_accumulation_steps", "above 1", [](const Setting& s) { return s.config.gradient_accumulation_steps > 1; },
    [](const Setting& s) { return fmt::format("{}", s.config.gradient_accumulation_steps); }};
inline constexpr Feature kStage0{"zero_optimization.stage", "0",
                                 [](const Setting& s) { return s.config.zero_optimization.stage == 0; }};
inline constexpr Feature kBelowStage3{"zero_optimization.stage", "below 3",
                                      [](const Setting& s) { return s.config.zero_optimization.stage < 3; }};

inline constexpr Feature kStatesOnDisk{"zero_optimization.offload_optimizer.device", "nvme", [](const Setting& s) {
                                         return s.config.zero_optimization.offload_optimizer.device ==
                                                Config::OffloadDevice::kNvme;
                                       }};
inline constexpr Feature kStatesInMemory{"zero_optimization.offload_optimizer.device", "other than nvme",
                                         [](const Setting& s) { return !kStatesOnDisk.is_on(s); }};
inline constexpr Feature kRatio{"zero_optimization.offload_optimizer.ratio", "below 1", [](const Setting& s) {
                                  return s.config.zero_optimization.offload_optimizer.ratio < 1;
                                }};
inline constexpr Feature kDividedStates{"zero_optimization.offload_optimizer.ratio", "below 1, with a module on a GPU",
                                        divides_states};
inline constexpr Feature kParametersOnDisk{
    "zero_optimization.offload_param.device", "nvme",
    [](const Setting& s) { return s.config.zero_optimization.offload_param.device == Config::OffloadDevice::kNvme; }};
inline constexpr Feature kGradientsOnDisk{
    "zerotorch.offload_gradients.device", "nvme",
    [](const Setting& s) { return s.config.zerotorch.offload_gradients.device == Config::OffloadDevice::kNvme; }};
inline constexpr Feature kActivationsOnDisk{
    "zerotorch.offload_activations.device", "nvme",
    [](const Setting& s) { return s.config.zerotorch.offload_activations.device == Config::OffloadDevice::kNvme; }};
inline constexpr Feature kPartitionedActivations{
    "activation_checkpointing.partition_activations", "true",
    [](const Setting& s) { return s.config.activation_checkpointing.partition_activations; }};
inline constexpr Feature kPartsOfActivations{
    "activation_checkpointing.partition_activations", "true, with model-parallel ranks",
    [](const Setting& s) { return s.config.activation_checkpointing.partition_activations && s.model_parallel; }};
inline constexpr Feature kActivationsInHostMemory{
    "activation_checkpointing.cpu_checkpointing", "true",
    [](const Setting& s) { return s.config.activation_checkpointing.cpu_checkpointing; }};

inline constexpr Feature kNodeShared{"zerotorch.store", "node_shared", [](const Setting& s) {
                                       return s.config.zerotorch.store == Own::Store::kNodeShared;
                                     }};
inline constexpr Feature kCopying{"zerotorch.store", "copying",
                                  [](const Setting& s) { return s.config.zerotorch.store == Own::Store::kCopying; }};
inline constexpr Feature kWholePerHost{
    "zero_optimization.zero_hpz_partition_size", "above 1",
    [](const Setting& s) { return s.config.zero_optimization.zero_hpz_partition_size > 1; },
    [](const Setting& s) { return fmt::format("{}", s.config.zero_optimization.zero_hpz_partition_size); }};
inline constexpr Feature kQuantizedWeights{"zero_optimization.zero_quantized_weights", "true", [](const Setting& s) {
                                             return s.config.zero_optimization.zero_quantized_weights;
                                           }};
inline constexpr Feature kQuantizedUntrained{
    "zero_optimization.zero_quantized_nontrainable_weights", "true",
    [](const Setting& s) { return s.config.zero_optimization.zero_quantized_nontrainable_weights; }};
inline constexpr Feature kQuantizedGradients{
    "zero_optimization.zero_quantized_gradients", "true",
    [](const Setting& s) { return s.config.zero_optimization.zero_quantized_gradients; }};
inline constexpr Feature kPlainGradients{"zero_optimization.zero_quantized_gradients", "false",
                                         [](const Setting& s) { return !kQuantizedGradients.is_on(s); }};
inline constexpr Feature kHierarchicalReduce{
    "zerotorch.hierarchical_reduce", "above 1",
    [](const Setting& s) { return s.config.zerotorch.hierarchical_reduce > 1; },
    [](const Setting& s) { return fmt::format("{}", s.config.zerotorch.hierarchical_reduce); }};
inline constexpr Feature kErrorFeedback{"zero_optimization.zeropp_loco_param", "given", [](const Setting& s) {
                                          return s.config.zero_optimization.feeds_errors_back();
                                        }};
inline constexpr Feature kDeviceTransport{"zerotorch.device_transport", "other than auto", [](const Setting& s) {
                                            return s.config.zerotorch.device_transport != Own::DeviceTransport::kAuto;
                                          }};
inline constexpr Feature kOffloads{"zero_optimization.offload_optimizer",
                                   "and other sections that keep shards in host memory", offloads_to_host};
inline constexpr Feature kSkipsUnused{"zerotorch.unused_parameters", "skip", [](const Setting& s) {
                                        return s.config.zerotorch.unused_parameters == Own::UnusedParameters::kSkip;
                                      }};

inline constexpr Feature kWholeTensors{"optimizer.type", "Lamb, Muon or Adafactor", needs_whole_tensors,
                                       optimizer_type};
inline constexpr Feature kChangedTensors{"optimizer.type", "Muon or Adafactor", changes_tensors, optimizer_type};
inline constexpr Feature kNarrowSums{"data_types.grad_accum_dtype", "other than fp32",
                                     [](const Setting& s) { return s.config.sum_dtype() != DType::kFloat32; }};
inline constexpr Feature kNarrowMasters{
    "bf16.bf16_master_weights_and_grads", "and other keys of 16-bit masters, states and sums", [](const Setting& s) {
      return s.config.sum_dtype() != DType::kFloat32 || s.config.master_dtype() != DType::kFloat32 ||
             s.config.state_dtype() != DType::kFloat32;
    }};
inline constexpr Feature kHalfSums{"data_types.grad_accum_dtype", "fp16",
                                   [](const Setting& s) { return s.config.sum_dtype() == DType::kFloat16; }};
inline constexpr Feature kUnchecked{"bf16.check_grad_overflow", "false, or parameters in fp32",
                                    [](const Setting& s) { return !s.config.skips_non_finite(); }};
inline constexpr Feature kRoundsStochastically{"zerotorch.stochastic_rounding", "true",
                                               [](const Setting& s) { return s.config.zerotorch.stochastic_rounding; }};
inline constexpr Feature kWiderMasters{"data_types", "with masters other than bf16",
                                       [](const Setting& s) { return s.config.master_dtype() != DType::kBFloat16; }};

inline constexpr Feature kLocalSteps{
    "zerotorch.local_steps.steps", "above 0", [](const Setting& s) { return s.config.zerotorch.local_steps.steps > 0; },
    [](const Setting& s) { return fmt::format("{}", s.config.zerotorch.local_steps.steps); }};
inline constexpr Feature kUpdatesElsewhen{"zerotorch.update", "other than after_backward", [](const Setting& s) {
                                            return s.config.zerotorch.update != Own::Update::kAfterBackward;
                                          }};
inline constexpr Feature kMasters16Bit{"data_types", "and other keys of 16-bit master weights",
                                       [](const Setting& s) { return s.config.master_dtype() != DType::kFloat32; }};
inline constexpr Feature kModelParallel{"", "model-parallel ranks", [](const Setting& s) { return s.model_parallel; }};

inline constexpr Feature kProgramOptimizer{"", "InitializeOptions::optimizer_factory",
                                           [](const Setting& s) { return s.program_optimizer; }};
inline constexpr Feature kModelParallelUnused{
    "", "model-parallel ranks and zerotorch.unused_parameters \"skip\"",
    [](const Setting& s) { return s.model_parallel && kSkipsUnused.is_on(s); }};
inline constexpr Feature kModuleOnGpu{"", "a module on a GPU",
                                      [](const Setting& s) { return s.module_on_gpu.value_or(false); }};
inline constexpr Feature kModuleOnCpu{"", "a module on the CPU",
                                      [](const Setting& s) { return !s.module_on_gpu.value_or(true); }};
inline constexpr Feature kShardsOnGpu{"", "shards in the memory of GPUs",
                                      [](const Setting& s) { return s.shards_on_gpu; }};
inline constexpr Feature kSeveralHosts{"", "ranks on several hosts", [](const Setting& s) { return s.hosts > 1; }};

// Reasons and remedies of several.
inline constexpr std::string_view kNeedsSharding = "set zero_optimization.stage to 1, 2 or 3";
inline constexpr std::string_view kOwnStates = "it needs sharded optimizer states";
inline constexpr std::string_view kRemoveOne = "remove one of the two";

}  // namespace features

}  // namespace zero::config
