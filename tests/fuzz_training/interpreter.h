#pragma once
// Interprets a program on a backend: plain libtorch in one process, or zerotorch on a rank. What both do
// alike, and what is noted for the comparison, is written once.
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "model.h"
#include "program.h"
#include "zero/group.h"

namespace zero::fuzz_training {

/// What a run has shown: (event, micro-batch, what) -> values. Floats and doubles, as doubles.
using Key = std::tuple<int, int, std::string>;
using Records = std::map<Key, std::vector<double>>;

/// Where a program is, without tensors: found again by reading its events up to a resume.
struct Progress {
  int blocks = 0;   ///< events kTrain so far
  int windows = 0;  ///< optimizer steps so far of models 0 and 1 together
  std::array<std::set<int>, 2> frozen;
  std::array<std::optional<double>, 2> rates;  ///< set_learning_rate() by parameter group
  int schedule_steps = 0;
  // For the end of the running window, then forgotten.
  std::vector<Event> changes;  ///< of gradients, in order
  std::optional<int> only_group;
  bool read_gradients = false;
};

/// What ends a window.
struct WindowEnd {
  std::vector<Event> changes;
  std::optional<int> only_group;
};

class Backend {
 public:
  virtual ~Backend() = default;
  /// Micro-batches of a block that are this process's: first, first + stride, ...
  virtual int first() const = 0;
  virtual int stride() const = 0;
  virtual FuzzModel& model(int which) = 0;
  /// By one loss of models `models` (0, 1, or 2: both).
  virtual void backward(const at::Tensor& loss, int models, bool by_loss) = 0;
  /// `end`: where this is the window's last.
  virtual void end_micro_batch(int which, const WindowEnd* end) = 0;
  virtual void zero_grad(int which, int mode) = 0;
  /// A backward of a window without gradients has thrown, and nothing is said of it: the window is as it was. Where the
  /// engine says that it is lost (at the next backward), it is dropped.
  virtual void forget_failed_backward(int which) = 0;
  /// Throws when the model would take the gradients that another one's backward has left in it without a word.
  virtual void expect_foreign_gradients_are_noticed(int) {}
  /// `parameters` (unique indices) whole on all ranks meanwhile; `write` runs on the modifier rank only.
  virtual void gathered(int which, const std::vector<int>& parameters, std::optional<int> modifier,
                        const std::function<void()>& inside) = 0;
  virtual at::Tensor weight(int which, int parameter) = 0;
  virtual void set_weight(int which, int parameter, const at::Tensor& value) = 0;
  virtual at::Tensor gradient(int which, int parameter) = 0;
  virtual at::Tensor first_moment(int which, int parameter) = 0;
  virtual at::Tensor second_moment(int which, int parameter) = 0;
  virtual double norm(int which) = 0;
  virtual void set_rate(int group, std::optional<double> rate) = 0;
  virtual void step_schedule() = 0;
  virtual void save(const std::string& tag) = 0;
  virtual void load(const std::string& tag) = 0;
  virtual void pause(std::uint64_t) {}
};

/// The program in plain libtorch, alone.
Records run_plain(const Program& program);
/// The program on this rank, before or after its resume, with checkpoints below `folder`. *Collective.*
Records run_zero(const Program& program, const Run& run, bool after_resume, const Group& group,
                 const std::string& folder);

class Interpreter {
 public:
  /// `counts`: unique parameters of each model.
  Interpreter(const Program& program, std::array<int, 2> counts);

  /// Events [begin, end) on a backend.
  void run(Backend& backend, int begin, int end);
  /// Events [0, end) without one: finds what is frozen and set there.
  void skip_to(int end);
  /// Weights and optimizer states, at the end.
  void read_all(Backend& backend);
  const Progress& progress() const { return now_; }
  Records& records() { return records_; }
  /// Makes the module's requires_grad flags those of `now`.
  static void freeze(FuzzModel& model, const std::set<int>& frozen);
  /// The index of the first kResume, or -1.
  static int resume_of(const Program& program);

 private:
  void act(const Event& event, int index);
  void train(const Event& event, int index);
  void train_model(const Event& event, int index, int which);
  /// Noise where the models are.
  at::Tensor data(at::IntArrayRef sizes, std::uint64_t seed) const;
  at::Tensor loss_of(const Event& event, const MicroBatch& micro_batch);
  at::Tensor fit_loss(FuzzModel& model, const MicroBatch& micro_batch, bool input_penalty);
  at::Tensor critic_loss(const MicroBatch& micro_batch);
  at::Tensor generator_loss(const MicroBatch& micro_batch);
  void weight_penalty(const Event& event, int which, const MicroBatch& micro_batch);
  void discard(const Event& event, int index);
  int drop_mode(const Event& event) const;
  bool goes_on_after_failed_backward(const Event& event, int index) const;
  void evaluate(const Event& event, int index);
  void gathered(const Event& event, int index);
  void read_weights(int index, bool states);
  bool between_windows() const { return now_.blocks % program_.blocks == 0; }
  int models() const { return program_.is_gan() ? 2 : 1; }
  bool mine(int rank) const { return rank % backend_->stride() == backend_->first(); }
  void record(int event, int micro_batch, std::string what, const at::Tensor& values);
  void record(int event, int micro_batch, std::string what, double value);

  std::vector<int> chosen_parameters(const Event& event) const;
  void after(const Event& event, int index);

  const Program& program_;
  std::array<int, 2> counts_;
  Backend* backend_ = nullptr;
  Progress now_, saved_;
  int saved_at_ = -1;
  Records records_;
};

}  // namespace zero::fuzz_training
