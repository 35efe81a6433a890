#pragma once
// Gradients: how gradients of the module come from autograd to the reducer, and when they do not count.
//
// Plain programs treat a gradient as a tensor in grad(): they drop it (zero_grad), freeze its parameter, run the
// backward of another network through it, or catch an exception of a backward and go on. What each of these
// means for gradients that have left the module is decided here. Calls marked collective are made by every
// rank at the same place of its program.
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "intercept/gradient_hook.h"
#include "zero/engine.h"

namespace zero::engine {

class Gradients {
 public:
  explicit Gradients(Engine::Impl& impl);
  ~Gradients();

  /// Hooks every parameter that requires grad; gradients from before are dropped with a word. Local.
  void hook();

  /// Before anything is added to the window: what was dropped or frozen meanwhile, a backward that failed.
  /// *Collective.* Throws ModelError when the window cannot be gone on with.
  void look(const char* caller);
  /// Around a backward that this engine is told of. Local.
  void begin_backward();
  void end_backward();
  /// The backward threw: takes back what it added, or marks the window as lost.
  void fail_backward() noexcept;
  /// Backwards that reach `loss` are of a scaled loss. Local.
  void expect_scaled(const at::Tensor& loss);
  /// Takes back all of the window. *Collective.*
  void zero_grad();
  /// Frozen parameters get master weights, states of zero and sums, for values that somebody has of them. *Collective.*
  void make_trainable(const std::vector<int>& parameters);
  /// The parameter's values were replaced by set_data(), which may have taken it from its hook. Local.
  void follow_set_data(int p);
  /// There are gradients now, of a checkpoint or of the program's making, that it can drop. Local.
  void mark_all() noexcept;
  /// A step is over: gradients from here on are the next window's. Local.
  void end_window();

  /// A hash of which parameters require grad, for the ranks to compare.
  std::uint64_t trainable_hash() const;
  /// Explains a difference of trainable_hash(). *Collective.* Throws ModelError on every rank.
  [[noreturn]] void throw_trainable_difference(Group& group);

 private:
  struct Parameter {
    std::unique_ptr<intercept::GradientHook> hook;  ///< null while it never required grad
  };

  void hook_parameter(int p);
  /// Hooks, maybe anew, a parameter that a backward may have reached since: takes the gradient that is there.
  void hook_late(int p);
  void take(int p, at::Tensor& gradient);
  void add(int p, const at::Tensor& gradient);
  void note_backward();
  bool has_failed_beside();
  void check_scaled(int p);
  /// The gradient of parameter `p` is about to be taken; `dropped`: that of an earlier backward is gone.
  void arrives(int p, bool dropped);
  /// Follows a zero_grad() that the engine was not told of: drops the window where all gradients are gone.
  /// `arriving`: a parameter that a backward has just reached, and whether its gradient was gone before. Throws
  /// ModelError.
  struct Arriving {
    int parameter;
    bool dropped;
  };
  void check_dropped(const char* caller, Arriving arriving);
  void check_dropped(const char* caller) { check_dropped(caller, {-1, false}); }
  /// Of what the reducer has; gradients that it has not seen yet stay where they are. *Collective.*
  void drop_window();
  void follow_freezing();
  void activate(const std::vector<int>& unfrozen);
  void arm_all() noexcept;

  Engine::Impl& impl_;
  std::vector<Parameter> parameters_;
  std::vector<int> running_;  ///< backwards nobody announced that are not complete, by id
  /// Those that have failed in a thread of a device, by id: what it means is found out at the next call.
  struct Beside {
    std::mutex mutex;
    std::vector<int> failed;
  };
  std::shared_ptr<Beside> beside_ = std::make_shared<Beside>();
  bool announced_ = false;           ///< inside begin_backward() .. end_backward()
  std::optional<std::string> lost_;  ///< why the window is lost
  bool foreign_ = false;             ///< gradients came in the backward of another engine
  bool warned_of_drop_ = false, warned_of_keeping_ = false;
  std::shared_ptr<Gradients*> self_;  ///< for callbacks that outlive it
};

/// The engines whose backward the calling thread runs; restored at the end of the scope.
class BackwardScope {
 public:
  explicit BackwardScope(std::span<Engine::Impl* const> engines);
  ~BackwardScope();
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

  /// True when a backward that was announced is not for `engine`.
  static bool is_of_others(const Engine::Impl& engine);

 private:
  std::span<Engine::Impl* const> engines_;
  intercept::Carried in_its_threads_;
};

}  // namespace zero::engine
