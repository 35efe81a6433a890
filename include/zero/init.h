#pragma once
// Init: builds a model without a full copy on every rank.
#include <memory>
#include <optional>

#include "zero/dtype.h"
#include "zero/group.h"

namespace zero {

/// While alive, random initial values are drawn on the first data-parallel rank only. On the other ranks nothing is
/// written to the weights of a module that is built, so they take no memory. initialize() copies the first rank's
/// values to all ranks, so training is the same as with a module built on every rank.
///
///   zero::GPT model = [&] {
///     zero::Init init(group);
///     return zero::GPT(options);
///   }();
///   auto engine = zero::initialize(model, config, {.group = group});
///
/// Values that are not random (zeros, ones, masks) are written on every rank as usual, and the generator advances as on
/// the first rank. Values must not be read before initialize(): reading them within the scope throws ModelError;
/// initialize() throws it for a tensor that was computed from them and is neither a parameter nor a buffer. Several
/// models need one scope each, with initialize() in between. zerotorch.verify_parameters "verify" compares values that
/// these ranks do not have. Build the module on the thread that made the Init; initialize() refuses to run while an
/// Init lives there, because dropout would draw nothing. Local.
class Init {
 public:
  /// `group`: as InitializeOptions::group. `dtype`: of floating-point tensors for which the module names no dtype, fp32
  /// or bf16. For a bf16 model, bf16 halves the first rank's memory, and master weights then start from these rounded
  /// values. Throws ConfigError for another dtype.
  explicit Init(const Group& group, std::optional<DType> dtype = std::nullopt);
  ~Init();
  Init(const Init&) = delete;
  Init& operator=(const Init&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zero
