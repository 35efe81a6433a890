#pragma once
// What an Engine is made of. Only this room sees all others.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/update_kind.h"
#include "engine/activation_home.h"
#include "engine/buffers.h"
#include "engine/entry.h"
#include "engine/gradients.h"
#include "engine/groups.h"
#include "engine/inventory.h"
#include "engine/micro_batch_random.h"
#include "engine/optimizer_source.h"
#include "engine/training_state.h"
#include "observe/step_observer.h"
#include "optim/lr_schedule.h"
#include "sharding/gradient_norm.h"
#include "sharding/gradient_reducer.h"
#include "sharding/parameter_store.h"
#include "sharding/sharded_model.h"
#include "sharding/sharded_optimizer.h"
#include "sharding/update/schedule.h"
#include "storage/ledger.h"
#include "zero/engine.h"

namespace zero {
namespace persistence {
class Checkpoints;
}
namespace engine {

/// An engine's number among those of this process that live, from 0: two do not draw the same noise.
struct EngineNumber {
  EngineNumber();
  ~EngineNumber();
  EngineNumber(const EngineNumber&) = delete;
  EngineNumber& operator=(const EngineNumber&) = delete;
  /// The engine's own seed where several have the same one.
  std::uint64_t seed_from(std::uint64_t base) const {
    return base + static_cast<std::uint64_t>(value) * 0xD1342543DE82EF95ull;
  }
  const int value;
};
}  // namespace engine

namespace engine {
/// What the program has said of accumulation windows, beside their length: config.gradient_accumulation_steps.
struct Accumulation {
  std::optional<bool> boundary;    ///< of the micro-batches from here on; nothing: they are counted
  bool ended_in_backward = false;  ///< the last micro-batch: a step() has nothing to end
  bool warned_of_length = false;
  bool dropped = false;  ///< micro-batches of this window, by zero_grad(), which has said so
};

/// When an engine was made and when it stepped last, on a clock of this process that counts these events.
struct EngineMoments {
  static std::uint64_t now();
  std::uint64_t made = now();
  std::uint64_t stepped = 0;
};

/// Uses of parameters, on their way to the store.
class Uses final : public intercept::UseObserver {
 public:
  explicit Uses(Engine::Impl& impl) : impl_(impl) {}
  void before_use(intercept::ParameterHandle& handle) override;
  void after_use(intercept::ParameterHandle& handle) noexcept override;
  void before_write(intercept::ParameterHandle& handle, const char* op_name) override;

 private:
  Engine::Impl& impl_;
};
}  // namespace engine

struct Engine::Impl {
  // In order of construction; destroyed in reverse.
  Config config;
  engine::Groups groups;
  ModelView view;
  std::shared_ptr<torch::nn::Module> module;  ///< null: made of a view
  MemoryReport memory_before;
  storage::Ledger ledger;
  std::vector<CpuProductsScope> cpu_products;  ///< by dtype; none where the module is not on the CPU
  std::optional<engine::UsedActivationHome> activation_home;
  observe::Observers observers;
  engine::Inventory inventory;
  sharding::ShardedModel model;
  sharding::Timeline timeline;
  StepBreakdown last_times;
  std::unique_ptr<sharding::ParameterStore> store;
  engine::Uses uses{*this};
  std::unique_ptr<sharding::ShardedOptimizer> optimizer;
  std::unique_ptr<sharding::GradientReducer> reducer;
  std::unique_ptr<sharding::UpdateSchedule> update;
  std::unique_ptr<engine::Gradients> gradients;
  std::optional<engine::BufferSync> buffers;

  std::unique_ptr<engine::OptimizerSource> optimizer_source;
  std::function<double(std::int64_t step, double base_lr)> schedule;  ///< the program's; empty: the configuration's
  std::vector<double> rates;                                          ///< by optimizer group, of the next update
  engine::TrainingState training;
  engine::Accumulation accumulation;
  bool evaluation_only = false;
  std::vector<at::Tensor> frozen;  ///< parameters that required a gradient before this engine, for evaluation only
  bool zero_grad_keeps_window = false;
  double grad_norm = 0;
  double grad_norm_scale = 0;  ///< from what `norm` has summed to averages, of the last update
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> last_scaled;  ///< by scale()
  bool step_applied = false;                                            ///< by the last step()
  bool sums_are_averages = false;   ///< the program has changed this window's gradients
  std::vector<int> stepped_groups;  ///< of this step; empty: all
  int gathered_scopes = 0;          ///< GatheredParameters alive
  engine::EngineNumber number;
  engine::EngineMoments moments;
  std::shared_ptr<Impl*> self = std::make_shared<Impl*>(this);  ///< null when it is gone: for what may outlive it
  int exceptions_at_start = 0;
  std::unique_ptr<sharding::GradientNorm> norm;
  engine::MicroBatchRandom random;
  std::uint64_t program_seed = 0;  ///< of the program's numbers, when the engine last looked
  /// Memory of agree_on_use(): by parameter, by model-parallel rank and parameter, by rank.
  struct {
    std::vector<std::uint8_t> mine, all;
    std::vector<std::int64_t> counts;
  } use_buffers;
  at::Tensor model_parallel_random;  ///< where ModelParallelRandom goes on in this micro-batch; undefined: its start
  bool failed = false;
  std::set<std::string> without_values;                   ///< parameters that were built without and are not loaded yet
  bool half_loaded = false;                               ///< a load failed after the first value was changed
  std::shared_ptr<persistence::Checkpoints> checkpoints;  ///< made by the first save
  bool aborts_on_exception = true;                        ///< leaving by exception ends the other ranks too

  ~Impl();

  void thaw() {
    for (const at::Tensor& parameter : std::exchange(frozen, {})) parameter.requires_grad_(true);
  }
  /// What the sum of a step's gradients is divided by.
  double averaged_micro_batches() const {
    const bool over_ranks = config.gradient_allreduce_op == Config::GradientAllreduceOp::kMean;
    return static_cast<double>(config.gradient_accumulation_steps * (over_ranks ? groups.data_parallel.size() : 1));
  }
  /// What turns a sum of gradients of scaled losses into the average over the micro-batches of a step.
  double averaging() const { return 1.0 / (averaged_micro_batches() * training.scaler.scale()); }
  double lr_of(std::size_t optimizer_group) const;
  /// Updates before the next one, as schedules count them.
  std::int64_t schedule_step() const;
  /// Reads schedule, overrides and the optimizer's options for the next update. Not while one may be under way.
  void refresh_rates();
  /// False: they are used up in backward.
  bool keeps_gradients() const { return config::kind_of(config.zerotorch.update).keeps_gradients; }
  /// Why a call that needs gradients after backward is refused; empty: it is not.
  std::string without_gradients(const char* caller) const;
  /// A hash of what the ranks must do alike in the next update: rates, frozen parameters.
  std::uint64_t update_hash() const;
  /// Explains a difference of update_hash(). *Collective.* Throws on every rank.
  [[noreturn]] void throw_update_difference();
  /// Begins a call of the program's, `caller`: throws unless what it needs holds. *Collective* as Entry says. Throws
  /// CommError, CheckpointError, ModelError.
  void enter(engine::Entry entry, const char* caller);
  /// Throws ModelError for an engine that was made for evaluation only. Local.
  void check_trains(const char* caller) const;
  /// Throws if an earlier call failed half-way: what the ranks hold no longer agrees.
  void check_usable() const;
  void check_values(const char* caller) const;
  /// After a load: the parameters that it has given values. Local.
  void note_loaded(const LoadReport& report);
  /// This rank's micro-batches so far.
  std::int64_t micro_steps() const { return training.micro_batches / groups.data_parallel.size(); }
  /// Micro-batches of all ranks inside the running accumulation window.
  std::int64_t window_micro_batches() const { return training.micro_batches - training.window_begin; }
  /// True when the micro-batch that runs is the last of its window.
  bool is_boundary() const {
    return accumulation.boundary.value_or(window_micro_batches() / groups.data_parallel.size() + 1 >=
                                          config.gradient_accumulation_steps);
  }
  /// backward() is to end the micro-batch.
  bool ends_in_backward() const { return accumulation.boundary == false; }
  /// For windows from the next on. Throws ConfigError when the product with micro-batch and ranks is too large. Local.
  void set_accumulation_steps(std::int64_t steps);
  /// Says once that a window has another number of micro-batches than its average divides by. Local.
  void check_window_length(std::int64_t micro_batches);
  /// Throws ModelError when the module has other parameters than it had, or in another dtype or place; takes over
  /// values that set_data() has put there. Local.
  void check_module();
  /// Updates under way, and what the program has written into parameters, become part of the weights. *Collective.*
  void commit_weights();
  /// The same of a pending update alone. *Collective.*
  void finish_pending_update();
  /// A backward begins. Throws IoError.
  void begin_update();
  /// As enter() for gradients. What has arrived is in the sums; they are averages where they are to be changed.
  /// *Collective.*
  void open_gradients(engine::Entry entry, const char* caller);
  /// What libtorch's generators give from here on, until the backward is over, is the micro-batch's, keyed by the
  /// program's own seed where it has called manual_seed() since. Nothing where gradients are off. Local.
  void begin_random_stream();
  /// The micro-batch is over, or another one is to come. Local.
  void end_random_stream();
  /// The seed of the stream of the micro-batch that comes next; each `branch` is another one.
  std::uint64_t stream_seed(int branch) const;
  /// A parameter of which one model-parallel rank has used its part was used: its other parts have gradients of zero.
  /// *Collective* over model-parallel ranks.
  void agree_on_use();
  /// Global 2-norm of the averaged gradient. *Collective.*
  double compute_norm();
  /// The calls that Engine::step() consists of. *Collective.* What step() returns, where training cannot go on by
  /// itself, is to be thrown.
  std::optional<std::string> step();
  /// step(), and where a throw on the way leaves the ranks apart the engine is done for.
  std::optional<std::string> guarded_step();
  struct MicroBatch {
    bool counts;           ///< it is one
    bool buffers_changed;  ///< a rank's forward has written buffers
  };
  /// All ranks have this micro-batch's gradients. `may_be_none`: without any gradient it does not count.
  MicroBatch finish_micro_batch(bool may_be_none);
  /// Updates, or skips the step, and begins the next window after `window_end` micro-batches of all ranks. Returns as
  /// step().
  std::optional<std::string> finish_window(std::int64_t window_end);
  /// `average`: averaging() of the window.
  void apply_step(double average);
  /// All ranks see what was written into the store's shards. *Collective.*
  void publish_update();
  /// Instead of apply_step(), for gradients that are not finite: says which. Returns as step(). *Collective.*
  std::optional<std::string> skip_step(double scale_before, optim::LossScaler::Decision decision);
  /// Assembles a parameter's fp32 values from the ranks' parts; `part_of(unit, range)` gives mine.
  template <class PartOf>
  at::Tensor gather_full(int parameter, std::string_view label, PartOf part_of);
};

namespace engine {
/// Throws ConfigError unless there is such a parameter group.
std::size_t checked_group(const Engine::Impl& impl, int group);

/// Builds the engine; see zero::initialize.
std::unique_ptr<Engine::Impl> build(ModelView model, std::shared_ptr<torch::nn::Module> module, Config config,
                                    const InitializeOptions& options);

/// For offload to NVMe of engines that are made from here on; null: the system's. For tests.
void use_files_for_offload(io::FileSystem* files);
/// Files in `folder` as the "aio" section says, with so many slots in memory.
offload::DiskOptions disk_of(const Config& config, const std::string& folder, std::int64_t buffers);

struct OptimizerSetup {
  optim::Algorithm algorithm = optim::Algorithm::kAdam;
  sharding::OptimizerOptions options;
  std::unique_ptr<OptimizerSource> source;
  std::string description;  ///< for the log
};
/// Hyper-parameters from the JSON or the client optimizer, and which parameter uses which. Local. Throws
/// ConfigError.
OptimizerSetup set_up_optimizer(const Config& config, const InitializeOptions& options, const Inventory& inventory);
}  // namespace engine
}  // namespace zero
