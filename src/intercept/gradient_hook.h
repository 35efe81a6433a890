#pragma once
// Gradients leave autograd through the AccumulateGrad node of their parameter, and leave a marker behind.
//
// Once a gradient has been taken, a hooked parameter's grad() is a tensor of its sizes without memory. It says that
// the gradient is elsewhere: an operator that reads or writes it throws (Module::zero_grad, Optimizer::zero_grad and
// detach() may have it), so that a client's own clip_grad_norm_ or optimizer.step() never works on nothing. And
// it says when it is gone: somebody has dropped the gradient.
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

namespace zero::intercept {

/// Run on the autograd thread; an exception reaches the caller of backward().
struct GradientCalls {
  /// Once per backward, after autograd has summed all uses, with the gradient ([sizes of the parameter], any
  /// layout and strides).
  std::function<void(at::Tensor& gradient)> take;
  /// Before take(), and before grad() is the marker again. `dropped`: it was not as the hook had left it, somebody has
  /// dropped the gradient of an earlier backward.
  std::function<void(bool dropped)> arrives;
};

/// What a hooked parameter's grad() is.
enum class GradientState : std::uint8_t {
  kArmed,    ///< nothing since arm(): there was no gradient
  kMarked,   ///< the marker: the gradient was taken
  kDropped,  ///< nothing after mark(), or a marker that was set to zero: somebody dropped the gradient
  kSet,      ///< a tensor that somebody has put there
};

class GradientHook {
 public:
  /// Hooks `parameter`, a leaf that requires grad; grad() is undefined until mark(). Local.
  GradientHook(const at::Tensor& parameter, const std::string& name, GradientCalls calls);
  /// Unhooks: grad() is undefined again where it was the marker.
  ~GradientHook();
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

  /// False when the parameter has another AccumulateGrad node by now, as set_data() may give it: its gradients
  /// pass the hook by.
  bool is_current() const;
  GradientState state() const;
  /// Makes grad() the marker, whatever it was.
  void mark();
  /// Makes grad() undefined: there is no gradient that could be dropped, or a backward comes, which is then saved
  /// an operator.
  void arm();

 private:
  struct Node;
  std::unique_ptr<Node> node_;
};

/// True while the calling thread runs a backward pass.
bool in_backward();

/// Identity of the backward pass that the calling thread runs; -1: none. One that runs inside another (as
/// recomputation does) has its own.
int backward_id();

/// While it lives, `carried()` is `value` in this thread and in those that autograd runs for its backward passes (an
/// accelerator's nodes run in a thread of the device).
class Carried {
 public:
  explicit Carried(const void* value);
  ~Carried();
  Carried(const Carried&) = delete;
  Carried& operator=(const Carried&) = delete;

 private:
  struct Slot;
  std::unique_ptr<Slot> slot_;
};
/// Of the innermost one; null without.
const void* carried();

/// Calls `ended` once: with true when the backward pass that the calling thread runs is complete, with false when it
/// has failed; if its nodes run in the thread that called it, before its exception reaches whoever did, else at any
/// time after. `ended` does not throw.
void when_backward_ends(std::function<void(bool complete)> ended);

/// Tells autograd that the parameter's values changed, so that a backward through an older graph fails
/// instead of using the new values.
void bump_version(const at::Tensor& parameter);

}  // namespace zero::intercept
