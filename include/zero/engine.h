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

/// Parameters that share hyper-parameters. Fields that are not set take the optimizer's values. Throws ConfigError: a
/// field that the optimizer does not have, or a value that optimizer.params does not accept.
struct ParameterGroup {
  /// Full names (as in named_parameters()); a trailing or leading '*' matches any prefix or suffix. Each
  /// parameter belongs to the first group that names it, all others to an implicit last one.
  std::vector<std::string> names;
  std::optional<double> lr = {}, weight_decay = {}, eps = {};
  std::optional<std::pair<double, double>> betas = {};
  // bias_correction, momentum, ...: the rows of zero/optimizers.h that are in groups.
#define ZERO_FIELD(where, type, name, value, range, meaning) ZERO_IF_GROUP(where, std::optional<type> name = {};)
  ZERO_HYPER_PARAMETERS(ZERO_FIELD)
#undef ZERO_FIELD
  /// Muon: whether it orthogonalises these parameters; not given: decided by names and dimensions, see
  /// docs/optimizers.md. With Muon every group becomes two: 2g holds the orthogonalised parameters, 2g + 1 the others.
  std::optional<bool> use_muon = {};
};

/// How a parameter or buffer is placed over the ranks that hold one copy of the model together.
struct Placement {
  /// Split along this dimension (negative: counted from the last), parts in rank order. Not given: replicated; all
  /// ranks hold the same values, and the program must make its gradients the same on all of them.
  std::optional<int> split_dim;
};

/// Makes a user-defined optimizer over this rank's shard of the fp32 master weights. `shards[g]` belongs to parameter
/// group g (InitializeOptions::parameter_groups and the implicit last one): for each trainable parameter of the group,
/// in the model's order, the flat part that this rank updates, fp32 [0 or more elements]. Every rank gets the same
/// number of tensors. Every group becomes one param group of the optimizer, in this order. Called once.
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<std::vector<at::Tensor>>& shards)>;

struct InitializeOptions {
  /// All ranks that train this model. Not given: init_distributed().
  std::optional<Group> group;
  /// The ranks that together hold one copy of the model, as with tensor parallelism: a split() of `group`. Each rank
  /// passes a module that holds its part and exchanges activations over this group itself. Not given: every rank has a
  /// full copy.
  std::optional<Group> model_parallel;
  /// The ranks that hold the same part of the model, over which ZeRO shards. Not given: the ranks with the same rank in
  /// their model_parallel groups.
  std::optional<Group> data_parallel;
  /// Where the module computes. Parameters of a module on the CPU are taken there unit by unit, so that with
  /// zero::DeferredInit the model is never whole in either memory, and its buffers as by Module::to(). Without a number
  /// it is the current device of its type. Not given: where the module is.
  std::optional<c10::Device> device;
  /// Called with the name of every parameter and buffer; required with several model-parallel ranks.
  std::function<Placement(std::string_view name)> placement;
  std::vector<ParameterGroup> parameter_groups;
  /// A user-defined learning-rate schedule, which replaces the JSON's: returns the rate of the update that follows
  /// `step` updates (skipped steps do not count) for a group with base rate `base_lr`. Must be a pure function, the
  /// same on every rank: a resumed run calls it for the steps that remain.
  std::function<double(std::int64_t step, double base_lr)> schedule;
  /// A client optimizer (torch::optim::AdamW, Adam, SGD, Adagrad or RMSprop, not stepped yet). The engine takes over
  /// its groups and reads rates and other hyper-parameters from them at every step, so libtorch's schedulers work on
  /// it. Its own states are never created: saving it throws. It may be destroyed before the engine, which then keeps
  /// the last values. The JSON must have no "optimizer" section.
  torch::optim::Optimizer* optimizer = nullptr;
  /// An optimizer of any class, user-defined ones included, which the engine owns and steps. At every update, grad() of
  /// its tensors is the averaged, clipped gradient of the same elements; it is undefined for parameters that this
  /// update leaves alone. Correct for elementwise optimizers; one that needs whole parameters sees only shards
  /// (docs/optimizers.md). The JSON must have no "optimizer" section; parameter_groups may set names only.
  OptimizerFactory optimizer_factory;
  /// Name of that optimizer in checkpoints and messages; empty: its C++ class. Without optimizer_factory: whose the
  /// JSON's "optimizer" section is, where a program has written it for an optimizer of its own.
  std::string optimizer_name;
  /// For inference: all parameters are frozen (requires_grad_(false)) until the engine ends, and there are no master
  /// weights, optimizer states or gradients. What would train throws ModelError; load_checkpoint() loads weights and
  /// buffers only. An "optimizer" in the JSON is ignored.
  bool evaluation_only = false;
  /// What zero_grad() between two micro-batches of an accumulation window does to the micro-batches that step() has
  /// already ended: false drops them, as in plain libtorch; true keeps them, as DeepSpeed does for programs that call
  /// it in every micro-batch. Dropped, too, with a warning, where a backward failed when some of its gradients had been
  /// added to theirs; zero_grad() between a backward and its step() within a window is a ModelError then.
  bool zero_grad_keeps_window = false;
};

struct BackwardOptions {
  /// Keeps the graph for another backward through it, as in torch::Tensor::backward.
  bool retain_graph = false;
  /// Factor applied to the loss: gradient_accumulation_steps for a loss that the program has already divided by it.
  double weight = 1;
};

/// How far another library has trained the model that this engine continues with.
struct Progress {
  std::int64_t global_steps = 0;  ///< skipped ones included
  std::int64_t skipped_steps = 0;
  std::map<std::string, std::int64_t> updates;  ///< by parameter; default: all steps that were not skipped
  std::optional<double> loss_scale;             ///< fp16 with a dynamic scale
};

/// A part of a parameter's averaged gradient.
struct GradientPart {
  std::string_view name;    ///< of the parameter
  at::IntArrayRef sizes;    ///< of the parameter
  at::IntArrayRef strides;  ///< of its elements in memory order
  std::int64_t begin = 0;   ///< the part's first element, in that order
  at::Tensor values;        ///< [numel of the part] in Config::sum_dtype(); writable in place
};

class Engine {
 public:
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  /// Parameters that are whole remain usable as ordinary tensors; sharded ones throw on use from now on. Local, except
  /// that it waits for the communication that is under way after a backward() without step(), and, with parameters
  /// shared on several hosts, for the engines of the other ranks to be destroyed.
  ~Engine();

  /// Runs backward from a scalar `loss`, sends gradients to their owners and drops them from the module. step()
  /// averages over micro-batches and ranks. If the program has said that this is no accumulation boundary
  /// (set_gradient_accumulation_boundary), it also ends the micro-batch. *Collective.* Throws ModelError (loss not a
  /// scalar, module moved by .to()), CommError; where it ends the micro-batch, also what step() throws.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});

  /// For programs that call loss.backward() themselves, on one loss or several: returns `loss` times loss_scale(), in
  /// fp32 if `loss` has 16 bits, as part of the graph; `loss` itself if the scale is 1. backward() scales by itself.
  /// With a loss scale, gradients of an unscaled loss are refused (ModelError). Local.
  at::Tensor scale(const at::Tensor& loss);

  /// Drops every gradient that has arrived on any rank since the last update, like zero_grad() in a plain program.
  /// zero_grad() of the module or of its optimizer does the same, at the engine's next call. Does nothing after an
  /// update. *Collective.*
  void zero_grad();

  /// Ends a micro-batch; at an accumulation boundary also clips, updates and publishes the parameters. Ranks may have
  /// used different parameters; a parameter that no rank has used is left alone, or gets a zero gradient
  /// (zerotorch.unused_parameters). *Collective.* Throws CommError, ModelError (parameters were added, replaced or
  /// moved; ranks have frozen different ones; a gradient is not finite at the smallest loss scale, after which the step
  /// counts as skipped and training may go on), ConfigError (learning rates differ between ranks).
  void step();
  /// The same for some parameter groups only, e.g. when a GAN's two networks share one engine and are updated in turn.
  /// The other groups keep values and states, and their gradients are dropped as by zero_grad().
  void step(const std::vector<int>& parameter_groups);

  /// Data-parallel rank: selects this rank's share of the data. With islands of several ranks (zerotorch.local_steps)
  /// it is not the rank in group().
  int rank() const;
  int world_size() const;  ///< data-parallel ranks
  int local_rank() const;  ///< among all ranks on this host
  int model_parallel_rank() const;
  int model_parallel_size() const;  ///< 1 when every rank has a copy of the model
  at::Device device() const;
  const Group& group() const;      ///< the data-parallel ranks
  const Group& all_ranks() const;  ///< every rank that trains this model: data-parallel times model-parallel
  const Config& config() const;

  std::int64_t global_steps() const;   ///< optimizer steps so far, skipped ones included
  std::int64_t skipped_steps() const;  ///< steps not taken because a gradient was not finite
  std::int64_t micro_steps() const;    ///< micro-batches so far, of this rank
  /// Whether the last step() updated the parameters: false inside an accumulation window, and for a skipped step.
  bool was_step_applied() const;
  /// True when the next step() updates the parameters: the current micro-batch is number gradient_accumulation_steps of
  /// its window, counted from the last update, or the program has said that it is a boundary.
  bool is_gradient_accumulation_boundary() const;
  /// From the next window on, every rank runs `steps` micro-batches per update, and gradients are averaged over as
  /// many. config() shows the new value and checkpoints keep it. Call between windows, with the same value on every
  /// rank: ranks compare it at the end of the next micro-batch (ConfigError on all). Local. Throws ConfigError (`steps`
  /// < 1, or not 1 where zerotorch.update keeps no gradients), ModelError (inside a window).
  void set_gradient_accumulation_steps(std::int64_t steps);
  /// The same, given the samples per update over all ranks; the micro-batch size does not change. Also throws
  /// ConfigError unless `samples` is a multiple of train_micro_batch_size_per_gpu * world_size().
  void set_train_batch_size(std::int64_t samples);
  /// Says whether micro-batches from now on end their window, however many it has; nullopt: counts them again. While it
  /// is false, every backward() is a whole micro-batch and ends it, and step() is optional and does nothing. Gradients
  /// are still averaged over gradient_accumulation_steps, as in DeepSpeed; a window of another length is warned about
  /// once. Same value on every rank, compared as above. Local. Throws ConfigError: false where zerotorch.update keeps
  /// no gradients.
  void set_gradient_accumulation_boundary(std::optional<bool> is_boundary);
  /// Parameter groups are InitializeOptions::parameter_groups and the implicit last one, or the client
  /// optimizer's.
  int parameter_groups() const;
  /// The group that updates a parameter; -1: none. Local. Throws ModelError for unknown names.
  int parameter_group_of(std::string_view name) const;
  double learning_rate(int parameter_group = 0) const;  ///< for the next update
  /// Overrides the learning rate of the schedule or client optimizer, for one group or all, until follow_schedule().
  /// Same value on every rank: step() compares. If zerotorch.update runs in backward, it applies from the next window
  /// on. Local.
  void set_learning_rate(double lr);
  void set_learning_rate(int parameter_group, double lr);
  void follow_schedule();
  /// Changes hyper-parameters of a parameter group from the next update on; `values.names` is ignored, fields that are
  /// not set stay. Not with a client optimizer or optimizer_factory: change that optimizer's own options. Same on every
  /// rank: step() compares. If zerotorch.update runs in backward, it applies from the next window on. Local. Throws
  /// ConfigError for hyper-parameters that the optimizer does not have, and for values that need a state it was made
  /// without.
  void set_parameter_group(int parameter_group, const ParameterGroup& values);
  /// Global 2-norm of the averaged gradient at the last update, before clipping; 0 before the first.
  double grad_norm() const;
  /// The same of each unit (a module, or several small ones: zerotorch.unit_numel), in layout order, without frozen
  /// ones; their squares add up to that of grad_norm(). Of a model that is split over model-parallel ranks: of this
  /// rank's part. Empty before the first update. Local.
  std::vector<UnitNorm> unit_grad_norms() const;
  /// If the last step's update is still under way (zerotorch.update), it becomes part of the parameters. So it does in
  /// every function below that reads or writes weights or states, and when a checkpoint is saved. Not between forward
  /// and backward. *Collective.* Throws IoError where states are on a disk that fails.
  void finish_update();
  /// Between hosts step() returns before all updated parameters have come (zerotorch.overlap_all_gather); an operator
  /// that uses one waits for it. From this call to the next step() the program may also read their memory without an
  /// operator, where parameters are not sharded. Pointers that it kept from before the step are not waited for. Local.
  /// Throws CommError.
  void wait_for_parameters();
  /// From the next window on, or no longer: computes squared norms of every micro-batch's gradient on its way, which
  /// costs about as much as reading all gradients once more. The second backward() of a micro-batch then throws
  /// ModelError. The same on every rank. Local. Throws ConfigError where the model is split over model-parallel ranks,
  /// and between a backward and its update or zero_grad().
  void measure_gradient_noise(bool on = true);
  /// Of the last update; nullopt where it was not measured, had one micro-batch, was skipped, or the program has
  /// changed its gradients. The same bits on any number of ranks. Local.
  std::optional<GradientNoise> gradient_noise() const;
  double loss_scale() const;  ///< factor of the next backward()'s loss; 1 unless fp16

  MemoryReport memory_report() const;
  /// All ranks' memory by kind, before initialize() and now, as text (zero/memory.h). Takes some milliseconds per
  /// gigabyte: do not call it in every step. *Collective.*
  std::string memory_summary() const;
  /// Memory of the model alone on this rank, before initialize().
  MemoryReport memory_before_initialize() const;
  CommunicationReport communication_report() const;
  /// Traffic of offload to NVMe.
  OffloadReport offload_report() const;
  StepBreakdown step_breakdown() const;  ///< seconds of the last step, by kind
  /// What collectives have moved since initialize(), how fast, and which rank the others waited for. *Collective.*
  /// Throws ConfigError unless comms_logger.enabled.
  CommsSummary comms_summary();
  /// FLOPs of the step that flops_profiler.profile_step selects. Local. Throws ConfigError unless
  /// flops_profiler.enabled.
  FlopsReport flops_report() const;

  /// Throws ModelError for an engine of a ModelView.
  torch::nn::Module& module() const;

  // In the functions below that take a name, a parameter that is split over model-parallel ranks means this rank's
  // part.

  /// Full fp32 values of a parameter by name, [its sizes], the same on every rank. *Collective.* Throws ModelError for
  /// unknown names (suggests the nearest).
  at::Tensor full_weight(std::string_view name);
  /// Replaces a parameter's value (fp32 master and low-precision copy) on all ranks; `value` must be the
  /// same on every rank. *Collective.*
  void set_full_weight(std::string_view name, const at::Tensor& value);
  /// The averaged gradient of the current accumulation window, fp32, not clipped; zeros when there is none. Call
  /// between backward() and step(). *Collective.*
  at::Tensor full_gradient(std::string_view name);
  /// Calls `change` for this rank's part of every averaged gradient. Values that it writes are what step() clips,
  /// counts in grad_norm() and applies. Gathers nothing: suited to masks, noise, clamps and logs. Call between the
  /// window's last backward() and step(). *Collective*, but the calls of `change` are local. Throws ModelError earlier
  /// in a window, and where zerotorch.update keeps no gradients.
  void for_each_gradient(const std::function<void(const GradientPart&)>& change);
  /// Replaces the averaged gradient of a parameter; `value` [its sizes] must be the same on every rank. As
  /// for_each_gradient().
  void set_full_gradient(std::string_view name, const at::Tensor& value);
  /// Clamps every element of the averaged gradients to [-bound, bound]. As for_each_gradient().
  void clip_grad_value(double bound);
  /// Scales the averaged gradients so that their global 2-norm is at most `bound`; returns the norm before.
  /// gradient_clipping in the configuration does the same in step() at no extra cost. As for_each_gradient().
  double clip_grad_norm(double bound);
  /// An optimizer state by its name in torch.optim ("exp_avg", "momentum_buffer", ...: docs/optimizers.md), fp32, of
  /// the parameter's shape. *Collective.* Throws ModelError for frozen parameters and for states that the optimizer
  /// does not have.
  at::Tensor full_optimizer_state(std::string_view name, std::string_view state);
  /// Names of a parameter's states, as full_optimizer_state() takes them; empty for a frozen parameter. Local.
  std::vector<std::string> optimizer_states(std::string_view name) const;
  /// Replaces such a state; `value`, of the state's shape, must be the same on every rank. Call between steps.
  /// *Collective.*
  void set_full_optimizer_state(std::string_view name, std::string_view state, const at::Tensor& value);

  /// Elements [begin, end) of a parameter, in memory order.
  struct LocalRange {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  /// The part of a parameter that this rank updates; {0, 0} if it has none. Local. Throws ModelError for unknown names
  /// and frozen parameters.
  LocalRange local_range(std::string_view name) const;
  /// That part's values: elements [begin, begin + values.numel()).
  struct LocalPart {
    std::int64_t begin = 0;
    at::Tensor values;  ///< a copy, fp32, flat; empty if this rank has no part
  };
  /// This rank's part of the fp32 master weight. Local, except that all ranks must call it if the program has written
  /// into parameters, or an update is delayed. Throws ModelError for unknown names and frozen parameters.
  LocalPart local_weight(std::string_view name);
  /// This rank's part of full_optimizer_state(), for states of the parameter's shape. As local_weight().
  LocalPart local_optimizer_state(std::string_view name, std::string_view state);

  /// Saves everything that training needs to continue to `folder`/`tag`, completely or not at all; empty `tag`:
  /// "global_step<N>". `client_state` is any JSON value of the caller's (rank 0's is kept). Call between steps, also
  /// inside an accumulation window. Every rank must see the same folder. *Collective.* Throws CheckpointError on every
  /// rank with each failed rank's reason; existing checkpoints are then unchanged and training can go on. Throws
  /// ModelError between backward() and step().
  void save_checkpoint(const std::string& folder, const std::string& tag = {}, std::string_view client_state = "{}",
                       const SaveOptions& options = {});
  /// Waits until an asynchronous save is complete; throws its CheckpointError. *Collective.*
  void wait_checkpoint();
  /// Loads a checkpoint of any number of ranks, stage, store and precision; empty `tag`: the one that `latest` names.
  /// Each rank reads and verifies the parts it needs. *Collective.* Throws CheckpointError on every rank; if values
  /// were already changed, the engine refuses to step until a load succeeds.
  LoadReport load_checkpoint(const std::string& folder, const std::string& tag = {}, const LoadOptions& options = {});

  /// Continues the counters of another library's training: schedules, the optimizer's bias corrections, random streams.
  /// Set weights and states separately (set_full_weight, set_full_optimizer_state). Call between steps; the same on
  /// every rank. *Collective.* Throws ModelError for unknown names, ConfigError for negative numbers.
  void set_progress(const Progress& progress);

  /// Replaces weights and buffers, by name, with those of a whole model: safetensors (a file, an index, or a folder
  /// with either), Python's torch.save(module.state_dict()) or C++'s torch::save(module), in any floating-point dtype.
  /// Optimizer states and counters stay as they are. Only rank 0 reads `path`, one tensor at a time, and broadcasts it.
  /// *Collective.* Throws CheckpointError or IoError on every rank; names or shapes that do not match are found before
  /// anything is changed.
  LoadReport load_full_weights(const std::string& path, const FullWeightsOptions& options = {});
  /// Writes weights and buffers to `folder` as safetensors that Hugging Face's loaders read, in the module's dtype
  /// (ExportOptions::dtype "module") or another. Gathers one parameter at a time; rank 0 writes. *Collective.* Throws
  /// CheckpointError on every rank; an older export in `folder` is then unchanged.
  checkpoint::ExportReport save_full_weights(const std::string& folder,
                                             const checkpoint::ExportOptions& options = {.dtype = "module"},
                                             const checkpoint::Progress& progress = {});
  /// The same under DeepSpeed's name.
  checkpoint::ExportReport save_16bit_model(const std::string& folder,
                                            const checkpoint::ExportOptions& options = {.dtype = "module"},
                                            const checkpoint::Progress& progress = {}) {
    return save_full_weights(folder, options, progress);
  }

  /// Throws ModelError, naming the parameter, if the program has moved or converted the module.
  void check_module() const;

  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Runs backward from a loss that several engines share (CycleGAN, an actor and a critic with one loss): each engine
/// takes the gradients of its own parameters. Then step() each. *Collective.* As Engine::backward.
void backward(const at::Tensor& loss, std::initializer_list<Engine*> engines);

namespace detail {
/// Switches libtorch's generator to the random stream of the current micro-batch (docs/reproducibility.md).
void begin_forward(const Engine& engine);
/// What an engine for evaluation only has frozen requires a gradient again, now and not when it ends.
void thaw(const Engine& engine);
/// `input` cast to fp16 if fp16.auto_cast asks for it; undefined if it is passed on unchanged.
at::Tensor cast_input(const Engine& engine, const at::Tensor& input);

/// Holds one argument of the call operator, cast if needed, for the duration of the call.
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
/// `module`: returned by Engine::module(); may be null.
Engine make_engine(ModelView model, std::shared_ptr<torch::nn::Module> module, Config config,
                   const InitializeOptions& options);
Engine make_engine(std::shared_ptr<torch::nn::Module> module, Config config, const InitializeOptions& options);
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

/// Takes over `model`'s parameters: makes them the same on all ranks, shards what the stage asks for, and returns the
/// engine. The caller keeps the module, which works as before. Peak memory: the model as it was plus one unit.
/// *Collective.* Throws ConfigError, ModelError (ranks with different models, unsupported dtypes), IoError (memory),
/// CommError.
template <detail::ModuleHolderLike Holder>
ModuleEngine<Holder> initialize(const Holder& model, Config config, const InitializeOptions& options = {}) {
  return {detail::make_engine(model.ptr(), std::move(config), options), model};
}
template <std::derived_from<torch::nn::Module> M>
ModuleEngine<std::shared_ptr<M>> initialize(const std::shared_ptr<M>& model, Config config,
                                            const InitializeOptions& options = {}) {
  return {detail::make_engine(model, std::move(config), options), model};
}
/// Any other argument: a compile-time error that says what to pass instead.
template <class Model>
requires(!detail::ModuleHolderLike<Model> && !detail::kIsSharedPtr<std::remove_cv_t<Model>> &&
         !std::same_as<std::remove_cv_t<Model>, ModelView>) void initialize(const Model&, const Config&,
                                                                            const InitializeOptions& = {}) {
  static_assert(sizeof(Model) == 0,
                "zero::initialize needs a std::shared_ptr to the module (std::make_shared<Net>()) or a "
                "TORCH_MODULE holder, not a module on the stack, a reference, a raw pointer or a unique_ptr");
}
/// The same for any set of named tensors: other front ends, or parts of a program.
Engine initialize(ModelView model, Config config, const InitializeOptions& options = {});
/// The same with the configuration as JSON text.
template <class Model>
auto initialize(const Model& model, std::string_view json, const InitializeOptions& options = {}) {
  return initialize(model, Config::from_text(json), options);
}

/// While alive, libtorch's CPU generator draws from this model-parallel rank's own random stream: for dropout and noise
/// on tensors that are split over model-parallel ranks. Outside it all model-parallel ranks draw the same numbers, as
/// replicated tensors need. Each scope continues where the last one of the same micro-batch ended. Local; one thread.
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

/// While alive, the given parameters are whole on every rank. With `modifier_rank`, that rank may write them in place
/// (torch::nn::init, copy_, ...), and the destructor (or close()) copies its writes to all ranks and to the fp32 master
/// weights. All other ranks, or all ranks without `modifier_rank`, may only read: their writes are refused, or go to a
/// private copy that is dropped when the scope ends (ReadersWrites). With model-parallel ranks, `modifier_rank` is a
/// data-parallel rank of each part, and replicated parameters take the values written on the first part. *Collective*
/// at both ends. A scope that ends by an exception writes nothing, and waits for nobody; a rank that goes on waits at
/// its next use of a parameter, where ranks of a host share them, until the modifier has left the scope, too: with an
/// exception values are those from before; otherwise the next collective call is an error.
class GatheredParameters {
 public:
  enum class ReadersWrites : std::uint8_t {
    kRefused,  ///< ModelError
    kDropped,  ///< writes go to a private copy, freed at the end of the scope
  };
  GatheredParameters(Engine& engine, const std::vector<at::Tensor>& parameters, std::optional<int> modifier_rank = {},
                     ReadersWrites readers_writes = ReadersWrites::kRefused);
  /// All parameters of the module.
  explicit GatheredParameters(Engine& engine, std::optional<int> modifier_rank = {});
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;
  ~GatheredParameters();
  /// What the destructor does, but throws CommError on failure. Idempotent.
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
