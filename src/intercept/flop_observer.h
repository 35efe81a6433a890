#pragma once
// FlopObserver: while alive, counts what the operators of this thread, and of the backwards that it begins, compute
// for one engine's parameters, module by module.
//
// libtorch has no module hooks in C++. In forward an operator belongs to the module that owns a parameter among its
// arguments; one without a parameter (attention, a product of activations) to the parent of the module whose parameter
// was used last. In backward it belongs to the module of the forward operator that it is the gradient of. Of nested
// operators the outermost that counts is counted. What runs with gradients off, outside of backward, is not.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "intercept/parameter_handle.h"

namespace zero::intercept {

class FlopObserver {
 public:
  struct Flops {
    std::int64_t forward = 0, backward = 0;
  };
  struct Counts {
    std::vector<Flops> by_module;
    std::map<std::string, std::int64_t> by_operator;  ///< "addmm"
    /// From the first use of a parameter to the first node of backward, and from there to the end of the last.
    double forward_seconds = 0, backward_seconds = 0;
    std::int64_t first_ns = 0;  ///< of the first use of a parameter; 0: none
  };

  /// `uses` observes the parameters that count; `owner[p]` is the module of parameter p, `parent[m]` that of module m,
  /// which of the root is itself.
  FlopObserver(const UseObserver* uses, std::vector<int> owner, std::vector<int> parent);
  /// By the thread that has made it; by another the thread keeps a callback that does nothing.
  ~FlopObserver();
  FlopObserver(const FlopObserver&) = delete;
  FlopObserver& operator=(const FlopObserver&) = delete;

  /// Forward is next. Local.
  void end_micro_batch();
  /// So far, of whole micro-batches. Thread-safe.
  Counts counts() const;

 private:
  struct State;
  struct Callback;
  std::shared_ptr<State> state_;
};

}  // namespace zero::intercept
