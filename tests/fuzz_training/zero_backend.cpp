// The program as a user of zerotorch writes it, on one of the ranks.
#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <unistd.h>

#include <exception>
#include <string_view>
#include <utility>

#include "interpreter.h"
#include "support/simulated_device.h"
#include "support/to_device.h"
#include "zero/zero.h"

namespace zero::fuzz_training {
namespace {

constexpr const char* kResumeTag = "resume";

class ZeroBackend : public Backend {
 public:
  /// Ranks start with other weights than rank 0, and a resumed run with others than the first had.
  ZeroBackend(const Program& program, const Setting& setting, Group group, std::string folder, bool after_resume)
      : program_(program), setting_(setting), group_(std::move(group)), folder_(std::move(folder)) {
    const auto offset =
        static_cast<std::uint64_t>((group_.rank() > 0 ? 100 + group_.rank() : 0) + (after_resume ? 500 : 0));
    models_.emplace_back(program.layers, program.dim, program.seed + offset);
    if (program.is_gan()) models_.emplace_back(program.generator, program.dim, program.seed + 1 + offset);
    if (!on_simulated_device) return;
    testing::simulated::start({.seed = mixed(program.seed, offset)});
    for (FuzzModel& model : models_) testing::to_device(*model, testing::simulated::device());
  }

  void start(const Progress& progress) {
    const std::string json = json_of(program_, setting_);
    for (std::size_t m = 0; m < models_.size(); ++m) {
      Interpreter::freeze(models_[m], progress.frozen[m]);
      InitializeOptions options{.group = group_};
      if (program_.groups == Groups::kGroups)
        options.parameter_groups = {{.names = {"*weight"}, .lr = 0.02, .weight_decay = 0.3}};
      if (program_.groups == Groups::kClient) options.optimizer = make_client(models_[m], progress.schedule_steps);
      engines_.push_back(std::make_unique<Zero>(initialize(models_[m], json, std::move(options))));
    }
    for (int g = 0; g < 2; ++g)
      if (const auto rate = progress.rates[static_cast<std::size_t>(g)]) set_rate(g, rate);
  }

  int first() const override { return group_.rank(); }
  int stride() const override { return group_.size(); }
  FuzzModel& model(int which) override { return models_[static_cast<std::size_t>(which)]; }

  void backward(const at::Tensor& loss, int models, bool by_loss) override {
    if (std::exchange(failed_backward_, false)) return backward_after_a_failed_one(loss);
    if (by_loss) return loss.backward();
    if (models == 2) return zero::backward(loss, {engines_[0].get(), engines_[1].get()});
    engine(models).backward(loss);
  }

  void end_micro_batch(int which, const WindowEnd* end) override {
    Zero& mine = engine(which);
    if (!end) return mine.step();
    for (const Event& change : end->changes) change_gradients(mine, change);
    if (end->only_group && *end->only_group < mine.parameter_groups()) {
      mine.step({*end->only_group});
    } else {
      mine.step();
    }
  }

  void zero_grad(int which, int mode) override {
    if (mode == 1) return model(which)->zero_grad();
    if (mode == 2 && client_) return client_->zero_grad();
    engine(which).zero_grad();
  }

  void forget_failed_backward(int) override { failed_backward_ = true; }

  void expect_foreign_gradients_are_noticed(int which) override {
    try {
      (void)engine(which).full_gradient(name(which, 0));
    } catch (const ModelError& error) {
      if (std::string_view(error.what()).find("another engine") != std::string_view::npos) return;
      throw;
    }
    throw std::logic_error("gradients from another engine's backward were taken without a word");
  }

  void gathered(int which, const std::vector<int>& parameters, std::optional<int> modifier,
                const std::function<void()>& inside) override {
    std::vector<at::Tensor> tensors;
    for (const int p : parameters) tensors.push_back(model(which)->unique_parameters()[p].second);
    const GatheredParameters scope(engine(which), tensors, modifier);
    inside();
  }

  at::Tensor weight(int which, int p) override { return engine(which).full_weight(name(which, p)); }
  void set_weight(int which, int p, const at::Tensor& value) override {
    engine(which).set_full_weight(name(which, p), value);
  }
  at::Tensor gradient(int which, int p) override { return engine(which).full_gradient(name(which, p)); }
  at::Tensor first_moment(int which, int p) override {
    return engine(which).full_optimizer_state(name(which, p), "exp_avg");
  }
  at::Tensor second_moment(int which, int p) override {
    return engine(which).full_optimizer_state(name(which, p), "exp_avg_sq");
  }
  double norm(int which) override { return engine(which).grad_norm(); }

  void set_rate(int group, std::optional<double> rate) override {
    for (auto& engine : engines_) {
      if (!rate) engine->follow_schedule();
      if (rate && group < engine->parameter_groups()) engine->set_learning_rate(group, *rate);
    }
  }
  void step_schedule() override {
    if (schedule_) schedule_->step();
  }

  void save(const std::string& tag) override {
    for (std::size_t m = 0; m < engines_.size(); ++m) engines_[m]->save_checkpoint(folder_of(m), tag);
  }
  void load(const std::string& tag) override {
    for (std::size_t m = 0; m < engines_.size(); ++m) engines_[m]->load_checkpoint(folder_of(m), tag);
  }

  void pause(std::uint64_t event) override {
    if (setting_.jitter) ::usleep(mixed(program_.seed, event * 8 + static_cast<std::uint64_t>(group_.rank())) % 500);
  }

 private:
  using Zero = ModuleEngine<FuzzModel>;
  Zero& engine(int which) { return *engines_[static_cast<std::size_t>(which)]; }
  const std::string& name(int which, int p) { return model(which)->unique_parameters()[p].first; }
  std::string folder_of(std::size_t m) const { return folder_ + "/" + std::to_string(m); }

  void backward_after_a_failed_one(const at::Tensor& loss) {
    try {
      return engine(0).backward(loss);
    } catch (const ModelError& error) {
      if (std::string_view(error.what()).find("the window is lost") == std::string_view::npos) throw;
    }
    engine(0).zero_grad();
    engine(0).backward(loss);
  }

  void change_gradients(Zero& engine, const Event& change) {
    if (change.kind == Ingredient::kClipValue) engine.clip_grad_value(change.value / 10);
    if (change.kind == Ingredient::kScaleGradient)
      engine.for_each_gradient([&](const GradientPart& part) { at::Tensor(part.values).mul_(change.value); });
    if (change.kind == Ingredient::kSetGradient) {
      const auto& [name, parameter] = models_[0]->unique_parameters().front();
      if (&engine == engines_[0].get())
        engine.set_full_gradient(name, noise(parameter.sizes(), static_cast<std::uint64_t>(change.target)));
    }
  }

  torch::optim::Optimizer* make_client(FuzzModel& model, int schedule_steps) {
    std::array<std::vector<at::Tensor>, 2> groups;
    for (const auto& [name, parameter] : model->unique_parameters())
      groups[name.ends_with("weight") ? 0 : 1].push_back(parameter);
    std::vector<torch::optim::OptimizerParamGroup> all;
    for (std::size_t g = 0; g < 2; ++g) {
      auto options = std::make_unique<torch::optim::AdamWOptions>(g == 0 ? 0.02 : 0.01);
      options->betas({0.9, 0.95}).eps(program_.eps()).weight_decay(g == 0 ? 0.3 : 0.1);
      all.emplace_back(groups[g], std::move(options));
    }
    client_ = std::make_unique<torch::optim::AdamW>(std::move(all));
    schedule_ = std::make_unique<torch::optim::StepLR>(*client_, 2, 0.5);
    for (int i = 0; i < schedule_steps; ++i) schedule_->step();
    return client_.get();
  }

  const Program& program_;
  const Setting& setting_;
  Group group_;
  std::string folder_;
  std::vector<FuzzModel> models_;
  std::unique_ptr<torch::optim::AdamW> client_;
  std::unique_ptr<torch::optim::StepLR> schedule_;
  bool failed_backward_ = false;  ///< the last backward threw, and the program goes on
  std::vector<std::unique_ptr<Zero>> engines_;
};

/// What the device has been given is done before it begins anew.
struct Pending {
  ~Pending() {
    if (on_simulated_device && std::uncaught_exceptions() == 0) testing::simulated::finish();
  }
};

}  // namespace

Records run_zero(const Program& program, const Run& run, bool after_resume, const Group& group,
                 const std::string& folder) {
  const Pending pending;
  ZeroBackend backend(program, after_resume ? run.after : run.before, group, folder, after_resume);
  std::array<int, 2> counts{};
  for (int m = 0; m < (program.is_gan() ? 2 : 1); ++m)
    counts[static_cast<std::size_t>(m)] = static_cast<int>(backend.model(m)->unique_parameters().size());
  Interpreter interpreter(program, counts);
  const int resume = Interpreter::resume_of(program), end = static_cast<int>(program.events.size());
  if (after_resume) interpreter.skip_to(resume + 1);
  backend.start(interpreter.progress());
  if (after_resume) backend.load(kResumeTag);
  if (!after_resume && resume >= 0) {
    interpreter.run(backend, 0, resume);
    backend.save(kResumeTag);
  } else {
    interpreter.run(backend, after_resume ? resume + 1 : 0, end);
    interpreter.read_all(backend);
  }
  return std::move(interpreter.records());
}

}  // namespace zero::fuzz_training
