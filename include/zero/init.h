#pragma once
// deferred_init: builds a model that is never whole on any rank.
#include <memory>
#include <optional>

#include "zero/dtype.h"

namespace zero {

struct DeferredInitOptions {
  /// Of floating-point tensors for which the module names no dtype, fp32 or bf16. bf16 halves the memory of the largest
  /// unit's values; master weights then start from these rounded values. Not given: libtorch's default dtype.
  std::optional<DType> dtype;
  /// Random values are not drawn, neither here nor later, and the generator stays where it is: for a model whose
  /// weights are loaded. Until load_checkpoint(), load_full_weights() or set_full_weight() has given every such
  /// parameter its values, training, evaluating and saving throw ModelError that names one without.
  bool without_values = false;
};

/// While alive, tensors of 64 KiB or more that this thread makes on the CPU take no memory: what is done to them in
/// place (random fills, zeros, scaling, copies, also through views) is recorded, and carried out when an operator first
/// reads them, here or later. initialize() does so unit by unit, on the first rank; what other ranks recorded is
/// dropped. The values are the same, bit for bit, as those of a model that is built whole after the same seed, and the
/// generator is afterwards where it would be. Drawing takes place twice, which costs time: about 4 ns an element each.
///
///   auto model = zero::deferred_init([&] { return zero::GPT(options); });
///   auto engine = zero::initialize(model, config, {.group = group});
///
/// Whatever a constructor computes from such a tensor out of place (a product, a factorisation) is computed at once,
/// and so is a tensor that was written in place more than 64 times: right, but in memory. to(), clone() and type_as()
/// are recorded. Reading raw memory (data_ptr(), an accessor) of a tensor that has none yet throws; clone() gives one
/// that has. A model that never gets to initialize() works as any other. With model-parallel ranks, parameters that are
/// not split are written whole before they are compared.
/// Build on the thread that made it. May be nested; local.
class DeferredInit {
 public:
  /// Throws ConfigError for another dtype.
  explicit DeferredInit(const DeferredInitOptions& options = {});
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What `make` returns, made under a DeferredInit.
template <class Make>
auto deferred_init(Make&& make, const DeferredInitOptions& options = {}) {
  const DeferredInit scope(options);
  return make();
}

}  // namespace zero
