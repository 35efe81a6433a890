#include "config/exclusions.h"

#include <fmt/format.h>

#include <iterator>

#include "config/update_kind.h"
#include "zero/errors.h"

namespace zero::config {
namespace {

using namespace features;  // NOLINT(google-build-using-namespace)

constexpr Exclusion kExclusions[] = {
    {&kFp16, &kBf16, "there is one dtype of parameters", "set one of the two to false"},
    {&kRatio, &kStatesOnDisk, "it divides states between a GPU and host memory", kRemoveOne},
    {&kDividedStates, &kStage0, kOwnStates, kNeedsSharding},
    {&kDividedStates, &kGradientsOnDisk, "the GPU copies sums of gradients from memory", kRemoveOne},
    {&kDividedStates, &kSeveralHosts, "it is built for one host", kRemoveOne},
    {&kStatesOnDisk, &kProgramOptimizer, "an optimizer of the program's own keeps its states in memory",
     "remove zero_optimization.offload_optimizer, or give the optimizer by the configuration"},
    {&kParametersOnDisk, &kBelowStage3, "parameters are sharded at stage 3 only", "set zero_optimization.stage to 3"},
    {&kParametersOnDisk, &kNodeShared, "the node-shared store keeps all parameters in memory", kRemoveOne},
    {&kParametersOnDisk, &kShardsOnGpu, "it is for a module on the CPU", "move it there, or remove the section"},
    {&kParametersOnDisk, &kSeveralHosts, "ranks read each other's files", "remove the section"},
    {&kGradientsOnDisk, &kStage0, "it needs a rank's own sums of gradients", kNeedsSharding},
    {&kGradientsOnDisk, &kChangedTensors, "these optimizers work in the memory of the gradients", kRemoveOne},
    {&kGradientsOnDisk, &kShardsOnGpu, "it is for a module on the CPU", "move it there, or remove the section"},
    {&kGradientsOnDisk, &kProgramOptimizer, "an optimizer of the program's own takes its gradients from memory",
     "remove zerotorch.offload_gradients, or give the optimizer by the configuration"},
    {&kActivationsOnDisk, &kPartitionedActivations, "both say where activations are", kRemoveOne},
    {&kActivationsOnDisk, &kActivationsInHostMemory, "both say where activations are", kRemoveOne},
    {&kActivationsOnDisk, &kModuleOnGpu, "it takes activations from host memory",
     "set the device to 'cpu', which keeps them in host memory, or remove the key"},
    {&kPartsOfActivations, &kModuleOnGpu, "it takes activations from host memory",
     "set zerotorch.offload_activations.device to 'cpu', or remove the key"},
    {&kNodeShared, &kModuleOnGpu, "ranks share host memory", "use 'copying' or 'auto'"},
    {&kWholePerHost, &kBelowStage3, "parameters are sharded at stage 3 only", "set zero_optimization.stage to 3"},
    {&kWholePerHost, &kCopying, "both say where gathered parameters are", kRemoveOne},
    {&kWholePerHost, &kParametersOnDisk, "both say where parameters are", kRemoveOne},
    {&kWholePerHost, &kModuleOnGpu, "ranks share host memory", "remove the key"},
    {&kQuantizedWeights, &kBelowStage3, "parameters are gathered at stage 3 only", "set zero_optimization.stage to 3"},
    {&kQuantizedWeights, &kWholePerHost, "parameters that are once per host are read there, not gathered", kRemoveOne},
    {&kQuantizedWeights, &kNodeShared, "its parameters are read in place, not gathered", kRemoveOne},
    {&kQuantizedWeights, &kParametersOnDisk, "shards are read from the disk, not from other ranks", kRemoveOne},
    {&kQuantizedWeights, &kModuleOnGpu, "it is built for a module on the CPU", "remove the key"},
    {&kQuantizedUntrained, &kBelowStage3, "parameters are gathered at stage 3 only",
     "set zero_optimization.stage to 3"},
    {&kQuantizedUntrained, &kWholePerHost, "parameters that are once per host are read there, not gathered",
     kRemoveOne},
    {&kQuantizedUntrained, &kNodeShared, "its parameters are read in place, not gathered", kRemoveOne},
    {&kQuantizedUntrained, &kParametersOnDisk, "shards are read from the disk, not from other ranks", kRemoveOne},
    {&kQuantizedUntrained, &kModuleOnGpu, "it is built for a module on the CPU", "remove the key"},
    {&kQuantizedGradients, &kModuleOnGpu, "it is built for a module on the CPU", "remove the key"},
    {&kHierarchicalReduce, &kQuantizedGradients, "sums of a host have no quantised form", kRemoveOne},
    {&kHierarchicalReduce, &kNarrowSums, "sums of a host are fp32", "set data_types.grad_accum_dtype to \"fp32\""},
    {&kHierarchicalReduce, &kModuleOnGpu, "it is built for a module on the CPU", "remove the key"},
    {&kErrorFeedback, &kPlainGradients, "there are no errors to feed back",
     "set zero_optimization.zero_quantized_gradients to true, or remove the section"},
    {&kErrorFeedback, &kFp16, "errors are in units of the loss scale, which changes",
     "train in bf16, or remove the section"},
    {&kDeviceTransport, &kModuleOnCpu, "it is for a module on a GPU",
     "move it there before initialize(), or remove the key"},
    {&kDeviceTransport, &kOffloads, "it moves shards between the memories of GPUs", kRemoveOne},
    {&kWholeTensors, &kNarrowSums, "these optimizers work in the memory of the gradients, in fp32",
     "set data_types.grad_accum_dtype to \"fp32\""},
    {&kHalfSums, &kUnchecked, "sums beyond 65504 are infinite, and no step would be skipped for that",
     "write \"bf16\" or \"fp32\", or train in fp16 or bf16 with their checks"},
    {&kRoundsStochastically, &kWiderMasters, "only bf16 master weights are rounded so",
     "set bf16.enabled and bf16.bf16_master_weights_and_grads to true, or remove the key"},
    {&kNarrowMasters, &kProgramOptimizer, "an optimizer of the program's own has fp32 masters and gradients",
     "remove the keys of 16-bit master weights and states, and data_types.grad_accum_dtype"},
    {&kLocalSteps, &kUpdatesElsewhen, "islands exchange what an update has left, when it is over",
     "set zerotorch.update to \"after_backward\""},
    {&kLocalSteps, &kMasters16Bit, "a step of 16 bits loses what islands have learnt", "keep fp32 master weights"},
    {&kLocalSteps, &kProgramOptimizer, "checkpoints have no place for its states of several islands",
     "give the optimizer by the configuration"},
    {&kLocalSteps, &kModelParallel, "islands are built of ranks that hold whole models",
     "remove zerotorch.local_steps, or shard with ZeRO alone"},
    {&kLocalSteps, &kModuleOnGpu, "it is built for modules on the CPU", "remove zerotorch.local_steps"},
};

}  // namespace

bool wants_host_memory(const Config& config) {
  const auto& zero = config.zero_optimization;
  using Device = Config::OffloadDevice;
  return zero.offload_optimizer.device != Device::kNone || zero.offload_param.device != Device::kNone ||
         zero.cpu_offload || zero.cpu_offload_param ||
         config.zerotorch.offload_gradients.device != Config::OffloadDevice::kNone;
}

std::string Feature::name() const { return path.empty() ? std::string(value) : fmt::format("{} {}", path, value); }

std::string Exclusion::message(const Setting& setting) const {
  const auto value_of = [&](const Feature& feature) {
    return feature.actual ? feature.actual(setting) : std::string(feature.value);
  };
  return fmt::format("{}{}{} with {}{}{}: {}; {}", one->path, one->path.empty() ? "" : ": ", value_of(*one),
                     other->path, other->path.empty() ? "" : " ", value_of(*other), reason, remedy);
}

const std::vector<Exclusion>& exclusions() {
  static const std::vector<Exclusion> all = [] {
    std::vector<Exclusion> rows(std::begin(kExclusions), std::end(kExclusions));
    const auto of_updates = update_exclusions();
    rows.insert(rows.end(), of_updates.begin(), of_updates.end());
    return rows;
  }();
  return all;
}

std::vector<const Exclusion*> violations(const Setting& setting) {
  std::vector<const Exclusion*> found;
  for (const Exclusion& row : exclusions()) {
    if (row.one->is_on(setting) && row.other->is_on(setting)) found.push_back(&row);
  }
  return found;
}

void refuse_excluded(const Setting& setting) {
  const auto found = violations(setting);
  if (!found.empty()) throw ConfigError(found.front()->message(setting));
}

}  // namespace zero::config
