#pragma once
// StepObserver: something that watches training and changes nothing of it: traces, logs, measurements, checks. The
// engine tells a list of them of the course of a step, and knows none by name:
//
//   before_backward   where the engine's backward() is called; then loss
//   begin_backward    also of backwards that the engine was not told of
//     gradient        of a parameter, as autograd gives it
//   end_backward      or undo_backward, where it has failed
//   before_step       nothing of the step has happened
//   begin_step
//     end_micro_batch
//     end_accumulation, before the update; then updated
//   end_step
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "io/file_system.h"
#include "zero/group.h"

namespace zero::observe {

/// An accumulation that ends.
struct Accumulation {
  Group& group;                    ///< of the data-parallel ranks
  std::int64_t micro_batches = 0;  ///< of all ranks
  double grad_norm = 0;            ///< of the mean of their gradients
  double averaging = 0;            ///< makes that mean of a sum of what backward brings
  bool is_whole = true;            ///< the program has neither changed its gradients nor dropped some
};

/// After the update, or where it was skipped.
struct Update {
  std::int64_t samples = 0;  ///< of all ranks so far
  double lr = 0;             ///< of the first parameter group
  double grad_norm = 0;
  std::optional<double> loss_scale;  ///< fp16: of the next step
};

/// Functions are local where nothing else is said, and are called by the thread that trains.
class StepObserver {
 public:
  virtual ~StepObserver() = default;

  /// Throws ModelError where there can be no such backward.
  virtual void before_backward() {}
  virtual void loss(const at::Tensor& /*loss*/) {}
  /// `announced`: by the engine's backward().
  virtual void begin_backward(bool /*announced*/) {}
  virtual void gradient(int /*parameter*/, const at::Tensor& /*gradient*/) {}
  /// Of an announced one.
  virtual void end_backward() {}
  virtual void undo_backward() {}
  /// Throws ModelError; the engine can go on.
  virtual void before_step() {}
  /// What is thrown from here to end_step() ends the engine.
  virtual void begin_step() {}
  /// It counts.
  virtual void end_micro_batch() {}
  /// *Collective.*
  virtual void end_accumulation(const Accumulation& /*accumulation*/) {}
  virtual void updated(const Update& /*update*/) {}
  /// `ends_accumulation`: with an optimizer step, so that `global_steps` are done.
  virtual void end_step(std::int64_t /*global_steps*/, bool /*ends_accumulation*/) {}
  /// Gradients since the last update were dropped.
  virtual void drop_gradients() {}
  virtual void use_parameter() {}
  /// The engine's groups go.
  virtual void end_training() {}

  /// Files in place of `files`, which it watches.
  virtual io::FileSystem& watch(io::FileSystem& files) { return files; }
};

class Observers {
 public:
  template <class T, class... Args>
  T& add(Args&&... args) {
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    T& observer = *made;
    list_.push_back(std::move(made));
    return observer;
  }
  /// Null: there is none.
  template <class T>
  T* find() const {
    for (const auto& one : list_) {
      if (T* const found = dynamic_cast<T*>(one.get())) return found;
    }
    return nullptr;
  }
  template <class T>
  void remove() {
    std::erase_if(list_, [](const auto& one) { return dynamic_cast<T*>(one.get()) != nullptr; });
  }

  /// tell(&StepObserver::begin_backward, true): all of them, in the order in which they were added.
  template <class... Parameters, class... Args>
  void tell(void (StepObserver::*event)(Parameters...), Args&&... args) const {
    for (const auto& one : list_) (one.get()->*event)(args...);
  }
  io::FileSystem& watch(io::FileSystem& files) const {
    io::FileSystem* watched = &files;
    for (const auto& one : list_) watched = &one->watch(*watched);
    return *watched;
  }

 private:
  std::vector<std::unique_ptr<StepObserver>> list_;
};

}  // namespace zero::observe
