#pragma once
// initialize() and Engine: train any torch::nn::Module under ZeRO 0-3.
//
//   auto group  = zero::init_distributed();
//   auto model  = MyTransformer(options);
//   auto engine = zero::initialize(model, zero::Config::from_file("ds_config.json"));
//   auto loss   = criterion(engine(inputs), labels);   // or model->forward(...): the same
//   engine.backward(loss);
//   engine.step();                                     // acts at accumulation boundaries
//
// Every rank makes the same calls in the same order. One thread at a time uses an engine.
#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "zero/checkpoint.h"
#include "zero/config.h"
#include "zero/group.h"
#include "zero/memory.h"
#include "zero/model_view.h"
#include "zero/report.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace zero {

/// Parameters that share hyper-parameters. What is not given is the optimizer's; what it does not know, or a value that
/// optimizer.params does not take, is a ConfigError.
struct ParameterGroup {
  /// Full names (as in named_parameters()); a trailing or leading '*' matches any prefix or suffix. Each
  /// parameter belongs to the first group that names it, all others to an implicit last one.
  std::vector<std::string> names;
  std::optional<double> lr = {}, weight_decay = {}, eps = {};
  std::optional<std::pair<double, double>> betas = {};
  std::optional<bool> bias_correction = {}, amsgrad = {}, maximize = {};
  std::optional<double> momentum = {}, dampening = {};
  std::optional<bool> nesterov = {};
  std::optional<double> alpha = {};
  std::optional<bool> centered = {};
  std::optional<double> lr_decay = {}, initial_accumulator_value = {};
  std::optional<double> max_coeff = {}, min_coeff = {};
  /// Muon: whether it orthogonalises these parameters; not given: by their names and dimensions, see
  /// docs/optimizers.md. It makes two groups of each, 2g of its own and 2g + 1 of the rest.
  std::optional<bool> use_muon = {};
};

/// Where a parameter or buffer is among the ranks that hold one copy of the model together.
struct Placement {
  /// Every rank has a part along this dimension (negative: from the last), in the order of the ranks. Nothing: all
  /// have the same values, and see to it that its gradients are the same.
  std::optional<int> split_dim;
};

/// Makes an optimizer of the program's own over this rank's part of the fp32 master weights. `shards[g]`: of parameter
/// group g (InitializeOptions::parameter_groups and the implicit last one), for each of its parameters that are
/// trained the flat part that this rank updates, fp32 [0 or more elements], in the model's order; the same number of
/// tensors on every rank. Every group becomes one param group of the optimizer, in this order. Called once.
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<std::vector<at::Tensor>>& shards)>;

struct InitializeOptions {
  /// All ranks that train this model. Not given: init_distributed().
  std::optional<Group> group;
  /// The ranks that hold one copy of the model together, as with tensor parallelism: a split() of `group`. The
  /// module of each is its part, and moves activations over this group by itself. Not given: each rank has a copy.
  std::optional<Group> model_parallel;
  /// The ranks that hold the same part, over which ZeRO shards. Not given: those at the same place of their
  /// model_parallel groups.
  std::optional<Group> data_parallel;
  /// Called with the name of every parameter and buffer; needed with several model-parallel ranks.
  std::function<Placement(std::string_view name)> placement;
  std::vector<ParameterGroup> parameter_groups;
  /// A learning-rate schedule of the program's own, in place of the JSON's: the rate of the update after `step` updates
  /// (skipped ones do not count), of a group whose own rate is `base_lr`. A pure function, the same on every rank: a
  /// resumed run asks for the steps that come.
  std::function<double(std::int64_t step, double base_lr)> schedule;
  /// A client optimizer (torch::optim::AdamW, Adam, SGD, Adagrad or RMSprop, not stepped yet): its groups are taken
  /// over and stay live: rates and other hyper-parameters are read at every step, so schedulers of libtorch work on it.
  /// Its own states are never made: saving it throws. It may go before the engine; its last values then stay. The
  /// JSON must have no "optimizer" section.
  torch::optim::Optimizer* optimizer = nullptr;
  /// An optimizer of any class, also of the program's own, which the engine owns and steps: at every update grad() of
  /// its tensors is the averaged, clipped gradient of the same elements, undefined for parameters that are left alone.
  /// Elementwise optimizers are right; those that need whole parameters see parts (docs/optimizers.md). The JSON must
  /// have no "optimizer" section; parameter_groups give names only.
  OptimizerFactory optimizer_factory;
  /// What checkpoints and messages call that optimizer; empty: its C++ class.
  std::string optimizer_name;
  /// For a model that nobody trains: all parameters are frozen (requires_grad_(false)), and there are no masters,
  /// optimizer states and gradients. backward(), step() and all about gradients throw ModelError; load_checkpoint()
  /// takes weights and buffers only. An "optimizer" in the JSON is not used.
  bool evaluation_only = false;
  /// What a zero_grad() between two micro-batches of a window does to those that step() has ended: false drops them, as
  /// plain programs would; true keeps them, as DeepSpeed does for programs that call it in every micro-batch.
  bool zero_grad_keeps_window = false;
};

struct BackwardOptions {
  /// The graph stays, for another backward through it, as in torch::Tensor::backward.
  bool retain_graph = false;
  /// The loss counts so many times: gradient_accumulation_steps for one that the program has divided by it.
  double weight = 1;
};

/// How far another library has trained what this engine goes on with.
struct Progress {
  std::int64_t global_steps = 0;  ///< skipped ones included
  std::int64_t skipped_steps = 0;
  std::map<std::string, std::int64_t> updates;  ///< by parameter; of one that is not here: all that were not skipped
  std::optional<double> loss_scale;             ///< of fp16 with a dynamic scale
};

/// A part of a parameter's averaged gradient.
struct GradientPart {
  std::string_view name;    ///< of the parameter
  at::IntArrayRef sizes;    ///< of the parameter
  at::IntArrayRef strides;  ///< of its elements in memory order
  std::int64_t begin = 0;   ///< the part's first element, in that order
  at::Tensor values;        ///< [numel of the part] in Config::sum_dtype(), may be written in place
};

class Engine {
 public:
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  /// Parameters that are whole stay usable as ordinary tensors; sharded ones throw on use from now on. Local,
  /// but that it waits for what is under way after a backward() without step(), and, with parameters shared
  /// on several hosts, for the engines of the other ranks to go.
  ~Engine();

  /// Runs backward from a scalar `loss` and sends gradients to their owners; they are dropped from the
  /// module. Losses are averaged over micro-batches and ranks by step(). Where the program has said that this is no
  /// boundary (set_gradient_accumulation_boundary), it also ends the micro-batch. *Collective.* Throws ModelError
  /// (loss not a scalar, module moved by .to()), CommError; with the end of a micro-batch also as step().
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});

  /// For a loss.backward() of the program's own, with one loss or one of several: `loss` times loss_scale(), in fp32
  /// where it was of 16 bits, as part of its graph; `loss` itself where the scale is 1. backward() does it by itself.
  /// With a scale, gradients of a loss that was not scaled are refused (ModelError). Local.
  at::Tensor scale(const at::Tensor& loss);

  /// Takes back every gradient that has arrived since the last update, on all ranks: what a plain program's
  /// zero_grad() does. zero_grad() of the module or of its optimizer does the same, at the next call. After a
  /// step() there is nothing to take back. *Collective.*
  void zero_grad();

  /// Ends a micro-batch; at an accumulation boundary also clips, updates and publishes the parameters.
  /// Ranks may have used different parameters; one that no rank has used is left alone, or counts as a gradient
  /// of zero (zerotorch.unused_parameters). *Collective.* Throws CommError, ModelError (parameters were added,
  /// replaced or moved; ranks have frozen different ones; a gradient is not finite at the smallest loss scale, after
  /// which the step counts as skipped and training may go on), ConfigError (rates differ between ranks).
  void step();
  /// The same for some parameter groups, as where a GAN's two networks share one engine and are updated in turn:
  /// the others keep values and states, and their gradients are dropped as by zero_grad().
  void step(const std::vector<int>& parameter_groups);

  int rank() const;        ///< among the data-parallel ranks: whose share of the data to take
  int world_size() const;  ///< data-parallel ranks
  int local_rank() const;  ///< among all ranks on this host
  int model_parallel_rank() const;
  int model_parallel_size() const;  ///< 1 when every rank has a copy of the model
  at::Device device() const;
  const Group& group() const;  ///< the data-parallel ranks
  const Config& config() const;

  std::int64_t global_steps() const;   ///< optimizer steps so far, skipped ones included
  std::int64_t skipped_steps() const;  ///< steps not taken because a gradient was not finite
  std::int64_t micro_steps() const;    ///< micro-batches so far, of this rank
  /// Whether the last step() updated the parameters: false inside an accumulation window, and where it was skipped.
  bool was_step_applied() const;
  /// True when the next step() updates the parameters: the micro-batch that runs is number gradient_accumulation_steps
  /// of its window, counted from the last update, or the program has said so.
  bool is_gradient_accumulation_boundary() const;
  /// From the next window on `steps` micro-batches of a rank make an update, and the average divides by as many;
  /// config() follows, a checkpoint keeps it. Between windows only. Local; the same on every rank, which the end of
  /// the next micro-batch compares (ConfigError on all). Throws ConfigError (not from 1 on, or with step_in_backward
  /// another than 1), ModelError (inside a window).
  void set_gradient_accumulation_steps(std::int64_t steps);
  /// The same by samples of an update on all ranks; micro-batches keep their size. ConfigError also unless `samples` is
  /// a multiple of train_micro_batch_size_per_gpu * world_size().
  void set_train_batch_size(std::int64_t samples);
  /// Says whether micro-batches from here on end their window, whatever their number; nothing: they are counted
  /// again. While it is false, every backward() is a micro-batch and ends it, and step(), which need not be called,
  /// does nothing more. The average divides by gradient_accumulation_steps all the same, as in DeepSpeed; a window
  /// of another number is warned of once. Local; the same on every rank, compared as above. Throws ConfigError: false
  /// with step_in_backward.
  void set_gradient_accumulation_boundary(std::optional<bool> is_boundary);
  /// Parameter groups are InitializeOptions::parameter_groups and the implicit last one, or the client
  /// optimizer's.
  int parameter_groups() const;
  /// The group that updates a parameter; -1: none. Local. Throws ModelError for unknown names.
  int parameter_group_of(std::string_view name) const;
  double learning_rate(int parameter_group = 0) const;  ///< for the next update
  /// Overrides the schedule's and the client optimizer's value, of one group or of all, until follow_schedule().
  /// Same value on every rank: step() compares. With step_in_backward from the next window on. Local.
  void set_learning_rate(double lr);
  void set_learning_rate(int parameter_group, double lr);
  void follow_schedule();
  /// Gives a parameter group other hyper-parameters from the next update on; `values.names` is not read, what is not
  /// given stays. Not with a client optimizer or optimizer_factory, whose options say them. Same on every rank: step()
  /// compares. With step_in_backward from the next window on. Local. Throws ConfigError for what the optimizer does not
  /// take, and for what needs a state that it was not made with.
  void set_parameter_group(int parameter_group, const ParameterGroup& values);
  /// Global 2-norm of the averaged gradient at the last update, before clipping; 0 before the first.
  double grad_norm() const;
  double loss_scale() const;  ///< what the next backward() multiplies its loss with; 1 unless fp16

  MemoryReport memory_report() const;
  /// All ranks' memory by kind, before initialize() and now, as text (zero/memory.h). *Collective.* Takes
  /// some milliseconds a gigabyte: not for every step.
  std::string memory_summary() const;
  /// What this rank held for the model alone, before initialize().
  MemoryReport memory_before_initialize() const;
  CommunicationReport communication_report() const;
  /// Of offload to NVMe.
  OffloadReport offload_report() const;
  StepBreakdown step_breakdown() const;  ///< seconds of the last step, by kind
  /// What collectives have moved since initialize(), how fast, and which rank the others waited for. *Collective.*
  /// Throws ConfigError unless comms_logger.enabled.
  CommsSummary comms_summary();
  /// The step that flops_profiler.profile_step names. Local. Throws ConfigError unless flops_profiler.enabled.
  FlopsReport flops_report() const;

  /// Throws ModelError for an engine of a ModelView.
  torch::nn::Module& module() const;

  // By name, a parameter is this rank's part of it where it is split over model-parallel ranks.

  /// Full fp32 values of a parameter by name, [its sizes], the same on every rank. *Collective.* Throws
  /// ModelError for unknown names (says the nearest).
  at::Tensor full_weight(std::string_view name);
  /// Replaces a parameter's value (fp32 master and low-precision copy) on all ranks; `value` must be the
  /// same on every rank. *Collective.*
  void set_full_weight(std::string_view name, const at::Tensor& value);
  /// The averaged gradient of the running accumulation window, fp32, not clipped; zeros when there is none.
  /// Call between backward() and step(). *Collective.*
  at::Tensor full_gradient(std::string_view name);
  /// Between the window's last backward() and step(): calls `change` for this rank's part of every averaged
  /// gradient; what it writes is what the step uses, clips and counts in grad_norm(). Nothing is gathered: for
  /// masks, noise, clamps, logs. *Collective*, with calls that are local. Throws ModelError earlier in a window, and
  /// with step_in_backward.
  void for_each_gradient(const std::function<void(const GradientPart&)>& change);
  /// Replaces the averaged gradient of a parameter; `value` [its sizes] is the same on every rank. As
  /// for_each_gradient().
  void set_full_gradient(std::string_view name, const at::Tensor& value);
  /// Clamps every element of the averaged gradients to [-bound, bound]. As for_each_gradient().
  void clip_grad_value(double bound);
  /// Scales the averaged gradients so that their global 2-norm is at most `bound`; returns the norm before. What
  /// gradient_clipping in the configuration does in step() at no extra cost. As for_each_gradient().
  double clip_grad_norm(double bound);
  /// A state of the optimizer by its name in torch.optim ("exp_avg", "momentum_buffer", ...: docs/optimizers.md), fp32,
  /// of the parameter's shape. *Collective.* Throws ModelError for frozen parameters and for names that the optimizer
  /// has no state of.
  at::Tensor full_optimizer_state(std::string_view name, std::string_view state);
  /// The names of a parameter's states that full_optimizer_state() gives; none of a frozen one. Local.
  std::vector<std::string> optimizer_states(std::string_view name) const;
  /// Replaces such a state; `value`, of its shape, is the same on every rank. Between steps. *Collective.*
  void set_full_optimizer_state(std::string_view name, std::string_view state, const at::Tensor& value);

  /// What this rank updates of a parameter: its elements [begin, begin + values.numel()) in the order of its memory.
  struct LocalPart {
    std::int64_t begin = 0;
    at::Tensor values;  ///< a copy, fp32, flat; empty where this rank has nothing of it
  };
  /// This rank's part of the fp32 master weight. Local, but that all ranks call it where the program has written into
  /// parameters. Throws ModelError for unknown names and frozen parameters.
  LocalPart local_weight(std::string_view name);
  /// This rank's part of full_optimizer_state(), of states that have the parameter's shape. As local_weight().
  LocalPart local_optimizer_state(std::string_view name, std::string_view state);

  /// Saves everything training needs to go on to `folder`/`tag`, complete or not at all; `tag` empty:
  /// "global_step<N>". `client_state` is any JSON value of the caller's (rank 0's is kept). Call between
  /// steps, also inside an accumulation window. Every rank sees the same folder. *Collective.* Throws
  /// CheckpointError on every rank with each failed rank's reason; the checkpoints there are then as before
  /// and training can go on. ModelError between backward() and step().
  void save_checkpoint(const std::string& folder, const std::string& tag = {}, std::string_view client_state = "{}",
                       const SaveOptions& options = {});
  /// Waits until an asynchronous save is complete; throws its CheckpointError. *Collective.*
  void wait_checkpoint();
  /// Continues from a checkpoint of any number of ranks, stage, store and precision; `tag` empty: the one
  /// that `latest` names. Each rank reads and verifies what it needs. *Collective.* Throws CheckpointError on
  /// every rank; once values were changed the engine refuses to step until a load succeeds.
  LoadReport load_checkpoint(const std::string& folder, const std::string& tag = {}, const LoadOptions& options = {});

  /// Counts on from steps that another library has taken: schedules, the optimizer's corrections of its moments, the
  /// random streams. Weights and states are set apart (set_full_weight, set_full_optimizer_state). Between steps; the
  /// same on every rank. *Collective.* Throws ModelError for unknown names, ConfigError for negative numbers.
  void set_progress(const Progress& progress);

  /// Replaces the weights and buffers by those of a whole model, by name: safetensors (a file, an index, or a
  /// folder with either), Python's torch.save(module.state_dict()) or C++'s torch::save(module). Of any
  /// floating-point dtype; optimizer states and counters stay as they are. Only rank 0 reads `path`, one
  /// tensor at a time, and broadcasts it. *Collective.* Throws CheckpointError or IoError on every rank;
  /// nothing is changed by names or shapes that do not match.
  LoadReport load_full_weights(const std::string& path, const FullWeightsOptions& options = {});
  /// Writes the weights and buffers to `folder` as safetensors that Hugging Face's loaders read, in the dtype
  /// the module has (ExportOptions::dtype "module") or another. Gathered one parameter at a time, written by
  /// rank 0. *Collective.* Throws CheckpointError on every rank; an older export in `folder` is then as
  /// before.
  checkpoint::ExportReport save_full_weights(const std::string& folder,
                                             const checkpoint::ExportOptions& options = {.dtype = "module"},
                                             const checkpoint::Progress& progress = {});
  /// The same under DeepSpeed's name.
  checkpoint::ExportReport save_16bit_model(const std::string& folder,
                                            const checkpoint::ExportOptions& options = {.dtype = "module"},
                                            const checkpoint::Progress& progress = {}) {
    return save_full_weights(folder, options, progress);
  }

  /// Throws ModelError naming the parameter when the module was moved or converted behind the engine's back.
  void check_module() const;

  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Runs backward from a loss that several engines share (CycleGAN, an actor and a critic with one loss), so that
/// each takes the gradients of its own parameters; then step() each. *Collective.* As Engine::backward.
void backward(const at::Tensor& loss, std::initializer_list<Engine*> engines);

namespace detail {
/// Random numbers are the micro-batch's from here on (docs/reproducibility.md).
void begin_forward(const Engine& engine);
/// `input` in the parameters' dtype where fp16.auto_cast asks for it; undefined where it stays as it is.
at::Tensor cast_input(const Engine& engine, const at::Tensor& input);

/// What forward() gets for an argument of the call operator, for as long as the call.
template <class Arg>
class Input {
 public:
  Input(const Engine& engine, Arg&& arg) : arg_(std::forward<Arg>(arg)) {
    if constexpr (kIsTensor) cast_ = cast_input(engine, arg_);
  }
  Arg&& get() {
    if constexpr (kIsTensor) {
      if (cast_.defined()) return static_cast<Arg&&>(cast_);
    }
    return static_cast<Arg&&>(arg_);
  }

 private:
  static constexpr bool kIsTensor = std::is_same_v<std::remove_cvref_t<Arg>, at::Tensor>;
  Arg&& arg_;
  at::Tensor cast_;
};
}  // namespace detail

/// An engine that also calls its module: engine(inputs...) is module->forward(inputs...).
template <class ModulePtr>
class ModuleEngine : public Engine {
 public:
  ModuleEngine(Engine engine, ModulePtr module) : Engine(std::move(engine)), module_(std::move(module)) {}

  template <class... Args>
  auto operator()(Args&&... args) {
    check_module();
    detail::begin_forward(*this);
    return module_->forward(detail::Input<Args>(*this, std::forward<Args>(args)).get()...);
  }
  ModulePtr& typed_module() { return module_; }

 private:
  ModulePtr module_;
};

namespace detail {
/// `module`: what Engine::module() returns, or null.
Engine make_engine(ModelView model, std::shared_ptr<torch::nn::Module> module, Config config,
                   InitializeOptions options);
Engine make_engine(std::shared_ptr<torch::nn::Module> module, Config config, InitializeOptions options);
template <class T>
concept ModuleHolderLike = requires(T holder) {
  { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};
/// A `std::shared_ptr<M>`, whatever M is.
template <class T>
constexpr bool kIsSharedPtr = false;
template <class M>
constexpr bool kIsSharedPtr<std::shared_ptr<M>> = true;
}  // namespace detail

/// Takes over `model`'s parameters: makes them the same on all ranks, shards what the stage says, and
/// returns the engine. The module stays the caller's and keeps working, unchanged. Peak memory: the model
/// as it was plus one unit. *Collective.* Throws ConfigError, ModelError (ranks with different models,
/// unsupported dtypes), IoError (memory), CommError.
template <detail::ModuleHolderLike Holder>
ModuleEngine<Holder> initialize(const Holder& model, Config config, InitializeOptions options = {}) {
  return {detail::make_engine(model.ptr(), std::move(config), std::move(options)), model};
}
template <std::derived_from<torch::nn::Module> M>
ModuleEngine<std::shared_ptr<M>> initialize(const std::shared_ptr<M>& model, Config config,
                                            InitializeOptions options = {}) {
  return {detail::make_engine(model, std::move(config), std::move(options)), model};
}
/// What the engine cannot own: says what to pass instead.
template <class Model>
requires(!detail::ModuleHolderLike<Model> && !detail::kIsSharedPtr<std::remove_cv_t<Model>> &&
         !std::same_as<std::remove_cv_t<Model>, ModelView>) void initialize(const Model&, Config,
                                                                            InitializeOptions = {}) {
  static_assert(sizeof(Model) == 0,
                "zero::initialize needs a std::shared_ptr to the module (std::make_shared<Net>()) or a "
                "TORCH_MODULE holder, not a module on the stack, a reference, a raw pointer or a unique_ptr");
}
/// The same for anything that has named tensors: other front ends, parts of a program's own.
Engine initialize(ModelView model, Config config, InitializeOptions options = {});
/// The same with the configuration as JSON text.
template <class Model>
auto initialize(const Model& model, std::string_view json, InitializeOptions options = {}) {
  return initialize(model, Config::from_text(json), std::move(options));
}

/// While alive, libtorch's random numbers on the CPU are this model-parallel rank's own: for dropout and noise on what
/// is split over such ranks. Outside of it they draw the same, as what is not split needs. Every scope goes on where
/// the last one of this micro-batch ended. Local; one thread.
class ModelParallelRandom {
 public:
  explicit ModelParallelRandom(Engine& engine);
  ModelParallelRandom(const ModelParallelRandom&) = delete;
  ModelParallelRandom& operator=(const ModelParallelRandom&) = delete;
  ~ModelParallelRandom();

 private:
  std::shared_ptr<Engine::Impl*> engine_;  ///< points to null when the engine is gone
  at::Tensor outside_;                     ///< state of the generator
};

/// While alive, the given parameters are whole on every rank. With `modifier_rank` that rank may write
/// them in place (torch::nn::init, copy_, ...); the destructor (or close()) spreads what it wrote to all
/// ranks and to the fp32 master weights. Other ranks, and all without it, only read: what they write is refused, or
/// theirs alone until the scope ends. With model-parallel ranks, `modifier_rank` is one of each part's data-parallel
/// ranks, and what is not split takes what that of the first part wrote. *Collective* at both ends.
class GatheredParameters {
 public:
  enum class ReadersWrites : std::uint8_t {
    kRefused,  ///< ModelError
    kDropped,  ///< into memory of their own, which goes at the end
  };
  GatheredParameters(Engine& engine, std::vector<at::Tensor> parameters, std::optional<int> modifier_rank = {},
                     ReadersWrites readers_writes = ReadersWrites::kRefused);
  /// All parameters of the module.
  explicit GatheredParameters(Engine& engine, std::optional<int> modifier_rank = {});
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;
  ~GatheredParameters();
  /// As the destructor, but may throw CommError. Idempotent.
  void close();

 private:
  std::shared_ptr<Engine::Impl*> engine_;  ///< null when closed; points to null when the engine is gone
  std::vector<int> parameters_;
  std::vector<at::Tensor> before_;  ///< by parameter, this rank's values before the modifier's writes
  std::optional<int> modifier_rank_;
  ReadersWrites readers_writes_ = ReadersWrites::kRefused;
  int exceptions_ = 0;
};

}  // namespace zero
