#pragma once
// Values of fresh tensors, written when somebody needs them.
//
// While a DeferValues lives, tensors that its thread makes on the CPU get no memory, and what is done to them in place
// is recorded with the state that the random generator had. The first operator that reads such a tensor, wherever it
// runs, has the record carried out: the values are those that would have been there without. A tensor that goes before
// anybody has read it never takes memory. Raw access to one that is not written yet throws.
//
// The record belongs to the storage and travels as its DataPtr's context, as a ParameterHandle does: views and detached
// tensors share it.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

#include "intercept/compat.h"

namespace zero::intercept {

/// Smaller tensors are made as ever.
inline constexpr std::size_t kDeferredNbytes = 64 << 10;

class DeferValues {
 public:
  /// Without `draw`, random numbers are not drawn at all: tensors that they were for have no values (is_undrawn()).
  explicit DeferValues(bool draw);
  ~DeferValues();
  DeferValues(const DeferValues&) = delete;
  DeferValues& operator=(const DeferValues&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard sees_all_operators_{kParameterKey};
  const bool drew_before_;
};

bool defers_values();          ///< on this thread
bool deferred_values_exist();  ///< anywhere in the process

/// Whether the tensor has no memory yet.
bool is_deferred(const at::Tensor& tensor);
/// Whether it is deferred and what it would hold depends on numbers that were not drawn.
bool is_undrawn(const at::Tensor& tensor);
/// Gives a deferred tensor, and all that share its storage, memory and values. Throws ModelError for one that is
/// undrawn.
void write_values(const at::Tensor& tensor);

/// What an operator is to deferred values, found once for each.
struct DeferredOp {
  enum class Kind : std::uint8_t {
    kReads,       ///< of the values that it is given
    kMakesEmpty,  ///< the tensor that it returns
    kIsMadeOf,    ///< other operators, which come here by themselves
    kWrites,      ///< in place, and may be recorded
  };
  Kind kind = Kind::kReads;
  int generator = -1;  ///< the argument
};
DeferredOp deferred_op_of(const c10::OperatorHandle& op);

/// What the fallback does first with an operator while a thread defers or deferred values exist. Returns whether the
/// operator is done with; if not, none of its arguments is deferred any more.
bool run_deferred(const c10::OperatorHandle& op, const DeferredOp& info, c10::DispatchKeySet keys,
                  torch::jit::Stack& stack);

}  // namespace zero::intercept
