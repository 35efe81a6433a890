#include "config/update_kind.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "config/exclusions.h"

namespace zero::config {
namespace {

using namespace features;  // NOLINT(google-build-using-namespace)

/// In the order of Config::Zerotorch::Update.
constexpr UpdateKind kUpdateKinds[] = {
    {.name = "after_backward"},
    {.name = "in_backward",
     .summary = "updates happen in backward, no gradient is kept",
     .keeps_gradients = false,
     .overlaps = true},
    {.name = "speculative",
     .summary = "updates begin in backward, and are undone where gradients are clipped",
     .second_parameters = true,
     .second_states = true,
     .overlaps = true},
    {.name = "delayed",
     .summary = "updates overlap the next step, whose gradients lack them",
     .sets_of_sums = 2,
     .second_parameters = true,
     .overlaps = true,
     .ends_after_step = true},
};

static_assert(std::size(kUpdateKinds) == static_cast<std::size_t>(Own::Update::kDelayed) + 1);

template <Own::Update update>
bool updates(const Setting& s) {
  return s.config.zerotorch.update == update;
}

constexpr Feature kInBackward{"zerotorch.update", "in_backward", updates<Own::Update::kInBackward>};
constexpr Feature kSpeculative{"zerotorch.update", "speculative", updates<Own::Update::kSpeculative>};
constexpr Feature kDelayed{"zerotorch.update", "delayed", updates<Own::Update::kDelayed>};

constexpr std::string_view kOneSet = "the file has one set of parameters";
constexpr std::string_view kKeepParameters = "keep parameters in memory, or choose another zerotorch.update";
constexpr std::string_view kOneStep = "an optimizer of the program's own updates all parameters in one step()";
constexpr std::string_view kExchanges =
    "the ranks exchange whole tensors in such an update, and cannot while they compute";
constexpr std::string_view kUpdateOrOptimizer = "choose another optimizer, or another zerotorch.update";
constexpr std::string_view kChooseAnother = "choose another zerotorch.update";

constexpr Exclusion kExclusionsOfUpdates[] = {
    {&kInBackward, &kStage0, kOwnStates, kNeedsSharding},
    {&kInBackward, &kClipping, "parameters are updated before the norm of the gradients is known",
     "set gradient_clipping to 0"},
    {&kInBackward, &kFp16, "a step cannot be skipped once it is under way",
     "use bf16 with bf16.check_grad_overflow false"},
    {&kInBackward, &kChecksOverflow, "a step cannot be skipped once it is under way",
     "set bf16.check_grad_overflow to false"},
    {&kInBackward, &kAccumulation, "parameters are updated in every backward", "set gradient_accumulation_steps to 1",
     /*may_change=*/true},
    {&kInBackward, &kWholeTensors, "it keeps no gradients, and these optimizers need whole tensors of them",
     kUpdateOrOptimizer},
    {&kInBackward, &kGradientsOnDisk, "it keeps no sums of gradients", kRemoveOne},
    {&kInBackward, &kProgramOptimizer, kOneStep, kChooseAnother},
    {&kInBackward, &kModelParallelUnused,
     "whether another rank has used its part of a parameter is not known in backward",
     "set zerotorch.unused_parameters to \"zero\""},
    {&kInBackward, &kDividedStates, "the GPU's part is updated from sums of gradients in host memory", kRemoveOne},

    {&kSpeculative, &kStage0, kOwnStates, kNeedsSharding},
    {&kSpeculative, &kStatesInMemory, "it overlaps the disk's work with backward",
     "set zero_optimization.offload_optimizer.device to 'nvme' (zero train --nvme DIR), or choose another "
     "zerotorch.update",
     /*may_change=*/true},
    {&kSpeculative, &kParametersOnDisk, kOneSet, kKeepParameters},
    {&kSpeculative, &kGradientsOnDisk, "it reads sums of gradients while others are added to",
     "keep gradients in memory, or choose another zerotorch.update"},
    {&kSpeculative, &kWholeTensors, kExchanges, kUpdateOrOptimizer},
    {&kSpeculative, &kProgramOptimizer, kOneStep, kChooseAnother},

    {&kDelayed, &kStage0, kOwnStates, kNeedsSharding},
    {&kDelayed, &kParametersOnDisk, kOneSet, kKeepParameters},
    {&kDelayed, &kWholeTensors, kExchanges, kUpdateOrOptimizer},
    {&kDelayed, &kShardsOnGpu, "there updates take little time",
     "set zero_optimization.offload_optimizer.device to 'cpu', which keeps and updates states in host memory, or "
     "choose another zerotorch.update"},
    {&kDelayed, &kProgramOptimizer, kOneStep, kChooseAnother},
    {&kDelayed, &kDividedStates, "the GPU's part is updated within step()", kRemoveOne},
};

}  // namespace

const UpdateKind& kind_of(Config::Zerotorch::Update update) { return kUpdateKinds[static_cast<std::size_t>(update)]; }

Config::Zerotorch::Update update_without_gradients() {
  const auto found = std::ranges::find(kUpdateKinds, false, &UpdateKind::keeps_gradients);
  return static_cast<Config::Zerotorch::Update>(found - std::begin(kUpdateKinds));
}

std::span<const Exclusion> update_exclusions() { return kExclusionsOfUpdates; }

}  // namespace zero::config

namespace zero {

std::string_view update_summary(Config::Zerotorch::Update update) { return config::kind_of(update).summary; }

}  // namespace zero
