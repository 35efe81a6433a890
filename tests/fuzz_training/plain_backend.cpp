// The reference: one process, libtorch's AdamW, fp32 masters by hand for bf16. No library of ours.
#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <cmath>

#include "interpreter.h"

namespace zero::fuzz_training {
namespace {

using I = Ingredient;

struct PlainModel {
  FuzzModel model{nullptr};
  std::vector<at::Tensor> parameters, masters, sums;
  std::vector<bool> used;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  std::vector<int> group;  ///< by parameter
  double norm = 0;
};

struct Snapshot {
  std::vector<at::Tensor> masters, sums, first, second, buffers;
  std::vector<bool> used;
  std::vector<std::int64_t> steps;
  std::array<std::optional<double>, 2> rates;
};

/// To nearest, ties away from zero, as masters become parameters (docs/reproducibility.md).
at::Tensor to_bf16(const at::Tensor& values) {
  const at::Tensor bits = values.detach().contiguous().view(at::kInt);
  return ((bits + 0x8000).bitwise_and(~0xffff)).view(at::kFloat).to(at::kBFloat16);
}

class PlainBackend : public Backend {
 public:
  PlainBackend(const Program& program) : program_(program) {
    add(program.layers, program.seed);
    if (program.is_gan()) add(program.generator, program.seed + 1);
  }

  int first() const override { return 0; }
  int stride() const override { return 1; }
  FuzzModel& model(int which) override { return at_(which).model; }

  /// Gradients are taken at once, as fp32 sums: bf16 ones would lose digits in grad().
  void backward(const at::Tensor& loss, int, bool) override {
    loss.backward();
    for (auto& m : models_) {
      for (std::size_t p = 0; p < m.parameters.size(); ++p) {
        at::Tensor& gradient = m.parameters[p].mutable_grad();
        if (!gradient.defined()) continue;
        m.sums[p].add_((gradient.is_sparse() ? gradient.to_dense() : gradient).to(at::kFloat));
        m.used[p] = true;
        gradient.reset();
      }
    }
  }

  void end_micro_batch(int which, const WindowEnd* end) override {
    if (end) update(at_(which), *end);
  }

  void zero_grad(int which, int) override {
    auto& m = at_(which);
    m.model->zero_grad();
    drop(m);
  }

  void forget_failed_backward(int which) override { zero_grad(which, 0); }

  void gathered(int which, const std::vector<int>&, std::optional<int>, const std::function<void()>& inside) override {
    inside();
    follow_writes(at_(which));
  }

  at::Tensor weight(int which, int p) override {
    follow_writes(at_(which));
    return at_(which).masters[p];
  }
  void set_weight(int which, int p, const at::Tensor& value) override {
    const at::NoGradGuard no_grad;
    at_(which).masters[p].copy_(value);
    take_master(at_(which), p);
  }
  at::Tensor gradient(int which, int p) override { return at_(which).sums[p] / program_.window(); }
  at::Tensor first_moment(int which, int p) override {
    const auto* state = state_of(at_(which), p);
    return state ? state->exp_avg() : at::zeros_like(at_(which).masters[p]);
  }
  at::Tensor second_moment(int which, int p) override {
    const auto* state = state_of(at_(which), p);
    return state ? state->exp_avg_sq() : at::zeros_like(at_(which).masters[p]);
  }
  double norm(int which) override { return at_(which).norm; }

  void set_rate(int group, std::optional<double> rate) override {
    if (!rate) rates_ = {};
    if (rate) rates_[static_cast<std::size_t>(group)] = rate;
  }
  void step_schedule() override { ++schedule_steps_; }

  void save(const std::string& tag) override {
    auto& snapshots = saved_[tag];
    for (auto& m : models_) {
      follow_writes(m);
      Snapshot snapshot{.used = m.used, .rates = rates_};
      for (std::size_t p = 0; p < m.masters.size(); ++p) {
        const auto* state = state_of(m, static_cast<int>(p));
        snapshot.masters.push_back(m.masters[p].detach().clone());
        snapshot.sums.push_back(m.sums[p].clone());
        snapshot.first.push_back(state ? state->exp_avg().clone() : at::Tensor());
        snapshot.second.push_back(state ? state->exp_avg_sq().clone() : at::Tensor());
        snapshot.steps.push_back(state ? state->step() : 0);
      }
      for (const at::Tensor& buffer : m.model->buffers()) snapshot.buffers.push_back(buffer.clone());
      snapshots.push_back(std::move(snapshot));
    }
  }

  void load(const std::string& tag) override {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < models_.size(); ++i) {
      auto& m = models_[i];
      const Snapshot& from = saved_.at(tag)[i];
      m.used = from.used;
      rates_ = from.rates;
      for (std::size_t b = 0; b < from.buffers.size(); ++b) m.model->buffers()[b].copy_(from.buffers[b]);
      m.optimizer->state().clear();
      for (std::size_t p = 0; p < m.masters.size(); ++p) {
        m.masters[p].copy_(from.masters[p]);
        take_master(m, p);
        m.sums[p].copy_(from.sums[p]);
        if (!from.first[p].defined()) continue;
        auto state = std::make_unique<torch::optim::AdamWParamState>();
        state->step(from.steps[p]);
        state->exp_avg(from.first[p].clone());
        state->exp_avg_sq(from.second[p].clone());
        m.optimizer->state()[m.masters[p].unsafeGetTensorImpl()] = std::move(state);
      }
    }
  }

 private:
  PlainModel& at_(int which) { return models_[static_cast<std::size_t>(which)]; }

  void add(const std::vector<Layer>& layers, std::uint64_t seed) {
    PlainModel m;
    m.model = FuzzModel(layers, program_.dim, seed);
    std::array<std::vector<at::Tensor>, 2> groups;
    for (const auto& [name, parameter] : m.model->unique_parameters()) {
      at::Tensor master = program_.bf16 ? parameter.detach().clone().requires_grad_() : parameter;
      if (program_.bf16) at::Tensor(parameter).set_data(to_bf16(parameter));
      const int group = program_.groups == Groups::kNone || name.ends_with("weight") ? 0 : 1;
      m.group.push_back(group);
      groups[static_cast<std::size_t>(group)].push_back(master);
      m.parameters.push_back(parameter);
      m.sums.push_back(at::zeros_like(master.detach()));
      m.masters.push_back(std::move(master));
    }
    m.used.resize(m.parameters.size());
    std::vector<torch::optim::OptimizerParamGroup> all;
    for (int g = 0; g < (program_.groups == Groups::kNone ? 1 : 2); ++g) {
      auto options = std::make_unique<torch::optim::AdamWOptions>(base_rate(g));
      options->betas({0.9, 0.95})
          .eps(program_.eps())
          .weight_decay(program_.groups != Groups::kNone && g == 0 ? 0.3 : 0.1);
      all.emplace_back(groups[static_cast<std::size_t>(g)], std::move(options));
    }
    m.optimizer = std::make_unique<torch::optim::AdamW>(std::move(all));
    models_.push_back(std::move(m));
  }

  double base_rate(int group) const { return program_.groups != Groups::kNone && group == 0 ? 0.02 : 0.01; }

  double rate(int group) const {
    if (const auto set = rates_[static_cast<std::size_t>(group)]) return *set;
    if (program_.groups != Groups::kClient) return base_rate(group);
    return base_rate(group) * std::pow(0.5, schedule_steps_ > 0 ? (schedule_steps_ - 1) / 2 : 0);  // StepLR(2, 0.5)
  }

  static torch::optim::AdamWParamState* state_of(PlainModel& m, int p) {
    const auto found = m.optimizer->state().find(m.masters[p].unsafeGetTensorImpl());
    return found == m.optimizer->state().end() ? nullptr
                                               : static_cast<torch::optim::AdamWParamState*>(found->second.get());
  }

  /// Where parameters are not the masters themselves.
  template <class Index>
  void take_master(PlainModel& m, Index p) const {
    if (program_.bf16) m.parameters[p].copy_(to_bf16(m.masters[p]));
  }

  static void drop(PlainModel& m) {
    for (auto& sum : m.sums) sum.zero_();
    m.used.assign(m.used.size(), false);
  }

  /// The program has written bf16 parameters: masters follow where values have changed.
  void follow_writes(PlainModel& m) const {
    if (!program_.bf16) return;
    const at::NoGradGuard no_grad;
    for (std::size_t p = 0; p < m.parameters.size(); ++p) {
      const at::Tensor unchanged = to_bf16(m.masters[p]).eq(m.parameters[p]);
      m.masters[p].copy_(at::where(unchanged, m.masters[p], m.parameters[p].to(at::kFloat)));
    }
  }

  void update(PlainModel& m, const WindowEnd& end) {
    follow_writes(m);
    for (std::size_t p = 0; p < m.masters.size(); ++p) {
      const bool counts = m.used[p] || (program_.unused_zero && m.parameters[p].requires_grad());
      if (!counts || (end.only_group && *end.only_group != m.group[p])) continue;
      at::Tensor gradient = m.sums[p] / program_.window();
      for (const Event& change : end.changes) {
        if (change.kind == I::kClipValue) gradient.clamp_(-change.value / 10, change.value / 10);
        if (change.kind == I::kScaleGradient) gradient.mul_(change.value);
        if (change.kind == I::kSetGradient && p == 0 && &m == &models_[0])
          gradient = noise(gradient.sizes(), change.target);
      }
      m.masters[p].mutable_grad() = gradient;
    }
    m.norm = torch::nn::utils::clip_grad_norm_(m.masters, program_.clipping > 0 ? program_.clipping : 1e30);
    for (std::size_t g = 0; g < m.optimizer->param_groups().size(); ++g)
      m.optimizer->param_groups()[g].options().set_lr(rate(static_cast<int>(g)));
    m.optimizer->step();
    const at::NoGradGuard no_grad;
    for (std::size_t p = 0; p < m.masters.size(); ++p) {
      m.masters[p].mutable_grad().reset();
      take_master(m, p);
    }
    drop(m);
  }

  const Program& program_;
  std::vector<PlainModel> models_;
  std::array<std::optional<double>, 2> rates_;
  int schedule_steps_ = 0;
  std::map<std::string, std::vector<Snapshot>> saved_;
};

}  // namespace

Records run_plain(const Program& program) {
  PlainBackend backend(program);
  std::array<int, 2> counts{};
  for (int m = 0; m < (program.is_gan() ? 2 : 1); ++m)
    counts[static_cast<std::size_t>(m)] = static_cast<int>(backend.model(m)->unique_parameters().size());
  Interpreter interpreter(program, counts);
  Interpreter::freeze(backend.model(0), interpreter.progress().frozen[0]);
  interpreter.run(backend, 0, static_cast<int>(program.events.size()));
  interpreter.read_all(backend);
  return std::move(interpreter.records());
}

}  // namespace zero::fuzz_training
