#pragma once
// What a call of the program's needs of an engine. Engine::Impl::enter() checks it: every public call that reads or
// changes values begins with it.
#include <cstdint>

namespace zero::engine {

/// Every call needs an engine of which no earlier call has failed half-way. *Collective* where it says so.
enum class Entry : std::uint8_t {
  kZeroGrad,         ///< nothing more. Local
  kBackward,         ///< the module is as it was, and gradients of earlier backwards are this engine's own. Local
  kStep,             ///< as kBackward, and no zero::GatheredParameters is alive. Local
  kReadWeights,      ///< the module is as it was; what the program has written is part of the weights. *Collective*
  kSetWeight,        ///< as kReadWeights, and no zero::GatheredParameters is alive. *Collective*
  kBetweenSteps,     ///< as kSetWeight, and no gradients have come since the last step(). *Collective*
  kReadGradients,    ///< gradients are kept until step(). Local
  kChangeGradients,  ///< as kReadGradients, in the last micro-batch of a window. Local
};

}  // namespace zero::engine
