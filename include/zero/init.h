#pragma once
// Building a model without every rank having a copy of it.
#include <memory>
#include <optional>

#include "zero/dtype.h"
#include "zero/group.h"

namespace zero {

/// While it lives, random initial values are drawn on the first data-parallel rank only: on the others the
/// weights of a module that is built take no memory, as nothing is written to them. initialize() takes the
/// first rank's values everywhere, so the training is that of a module built on every rank.
///
///   zero::GPT model = [&] {
///     zero::Init init(group);
///     return zero::GPT(options);
///   }();
///   auto engine = zero::initialize(model, config, {.group = group});
///
/// What is not drawn (zeros, ones, masks) is written on every rank as without, and the generator advances as
/// on the first one. Values must not be looked at before initialize(): within the scope that is a ModelError,
/// as is a tensor which was made from such values and is neither a parameter nor a buffer, at initialize().
/// Several models need a scope each, with initialize() in between. zerotorch.verify_parameters "verify"
/// compares values that these ranks have not. The module must be built on the thread that made the Init, and
/// initialize() refuses to run while one lives there: dropout would draw nothing. Local.
class Init {
 public:
  /// `group`: as InitializeOptions::group. `dtype`: of floating-point tensors that the module makes without saying one,
  /// fp32 or bf16; of a bf16 model, bf16 halves what the first rank needs, and master weights then begin with these
  /// rounded values. Throws ConfigError for another dtype.
  explicit Init(const Group& group, std::optional<DType> dtype = std::nullopt);
  ~Init();
  Init(const Init&) = delete;
  Init& operator=(const Init&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zero
