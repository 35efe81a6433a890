#pragma once
// What an Engine is made of.
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/update_kind.h"
#include "engine/accumulation.h"
#include "engine/activation_home.h"
#include "engine/buffers.h"
#include "engine/entry.h"
#include "engine/gradients.h"
#include "engine/groups.h"
#include "engine/inventory.h"
#include "engine/learning_rates.h"
#include "engine/optimizers/optimizer_source.h"
#include "engine/random_streams.h"
#include "engine/training_state.h"
#include "engine/use_agreement.h"
#include "observe/step_observer.h"
#include "sharding/gradient_norm.h"
#include "sharding/gradient_reducer.h"
#include "sharding/local_steps.h"
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

/// When an engine was made and when it stepped last, on a clock of this process that counts these events.
struct EngineMoments {
  static std::uint64_t now();
  std::uint64_t made = now();
  std::uint64_t stepped = 0;
};

/// What is trained.
struct Trained {
  ModelView view;
  std::shared_ptr<torch::nn::Module> module;  ///< null: made of a view
  MemoryReport memory_before;
  Inventory inventory;
  std::set<std::string> without_values;  ///< parameters that were built without and are not loaded yet
  bool evaluation_only = false;
  std::vector<at::Tensor> frozen;  ///< parameters that required a gradient before this engine, for evaluation only

  void thaw() {
    for (const at::Tensor& parameter : std::exchange(frozen, {})) parameter.requires_grad_(true);
  }
};

/// What is sharded of it, and the parts that hold and move it.
struct Sharded {
  storage::Ledger ledger;
  sharding::ShardedModel model;
  sharding::Timeline timeline;
  std::unique_ptr<sharding::ParameterStore> store;
  std::unique_ptr<sharding::ShardedOptimizer> optimizer;
  std::unique_ptr<sharding::GradientReducer> reducer;
  std::unique_ptr<sharding::UpdateSchedule> update;
  std::unique_ptr<sharding::GradientNorm> norm;
  std::unique_ptr<sharding::LocalSteps> local_steps;  ///< null: there are no islands
};

/// How forward and backward compute.
struct Compute {
  std::vector<CpuProductsScope> cpu_products;  ///< by dtype; none where the module is not on the CPU
  std::optional<UsedActivationHome> activation_home;
  std::optional<BufferSync> buffers;
};

/// Of the step that runs, or the last one.
struct Step {
  std::vector<int> groups;         ///< that it updates; empty: all
  bool sums_are_averages = false;  ///< the program has changed this window's gradients
  bool applied = false;
  double grad_norm = 0;
  double grad_norm_scale = 0;  ///< from what Sharded::norm has summed to averages
  StepBreakdown times;
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> last_scaled;  ///< by scale()
};

/// Whether the engine may go on, and how it ends.
struct Life {
  std::shared_ptr<Engine::Impl*> self;  ///< null when it is gone: for what may outlive it
  EngineMoments moments = {};
  int exceptions_at_start = 0;
  bool aborts_on_exception = true;  ///< leaving by exception ends the other ranks too
  bool failed = false;
  bool half_loaded = false;  ///< a load failed after the first value was changed
  int gathered_scopes = 0;   ///< GatheredParameters alive
  bool zero_grad_keeps_window = false;
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
  engine::Trained trained;
  engine::TrainingState training;
  observe::Observers observers;
  engine::Sharded sharded;
  engine::Compute compute;
  std::unique_ptr<engine::OptimizerSource> optimizer_source;
  engine::LearningRates rates{config, training};
  engine::Accumulation accumulation{config, training, groups};
  engine::RandomStreams random{config, training, groups};
  engine::Uses uses{*this};
  std::unique_ptr<engine::Gradients> gradients;
  engine::UseAgreement used_parts;
  engine::Step step;
  engine::Life life{.self = std::make_shared<Impl*>(this)};
  std::shared_ptr<persistence::Checkpoints> checkpoints;  ///< made by the first save

  ~Impl();

  /// Reads rates and hyper-parameters for the next update. Not while one reads them. Throws ConfigError.
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
  /// Global 2-norm of the averaged gradient. *Collective.*
  double compute_norm();
  /// The calls that Engine::step() consists of. *Collective.* What it returns, where training cannot go on by itself,
  /// is to be thrown.
  std::optional<std::string> take_step();
  /// take_step(), and where a throw on the way leaves the ranks apart the engine is done for.
  std::optional<std::string> guarded_step();
  struct MicroBatch {
    bool counts;           ///< it is one
    bool buffers_changed;  ///< a rank's forward has written buffers
  };
  /// All ranks have this micro-batch's gradients. `may_be_none`: without any gradient it does not count.
  MicroBatch finish_micro_batch(bool may_be_none);
  /// Updates, or skips the step, and begins the next window after `window_end` micro-batches of all ranks. Returns as
  /// take_step().
  std::optional<std::string> finish_window(std::int64_t window_end);
  /// `average`: Accumulation::averaging() of the window. publish_update() is to follow.
  void apply_step(double average);
  /// A round of local steps is over: the islands meet. publish_update() is to follow. *Collective.* Throws ModelError.
  void exchange_islands();
  /// All ranks see what was written into the store's shards. *Collective.*
  void publish_update();
  /// Instead of apply_step(), for gradients that are not finite: says which. Returns as take_step(). *Collective.*
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

}  // namespace engine
}  // namespace zero
