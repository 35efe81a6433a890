#include "interpreter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace zero::fuzz_training {
namespace {

using I = Ingredient;
/// Data of micro-batches that are no part of the training, away from those that are.
constexpr std::uint64_t kDiscardedData = 1'000'000, kEvaluatedData = 2'000'000;

bool changes_gradients(I kind) { return kind == I::kClipValue || kind == I::kScaleGradient || kind == I::kSetGradient; }

}  // namespace

Interpreter::Interpreter(const Program& program, std::array<int, 2> counts) : program_(program), counts_(counts) {
  // The first layer's are always trained: a loss that depends on nothing has no backward.
  if (program.frozen_at_start >= 0 && counts[0] > 2)
    now_.frozen[0].insert(2 + program.frozen_at_start % (counts[0] - 2));
}

int Interpreter::resume_of(const Program& program) {
  for (std::size_t i = 0; i < program.events.size(); ++i)
    if (program.events[i].kind == I::kResume) return static_cast<int>(i);
  return -1;
}

void Interpreter::freeze(FuzzModel& model, const std::set<int>& frozen) {
  const auto& parameters = model->unique_parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    at::Tensor parameter = parameters[p].second;
    parameter.requires_grad_(!frozen.contains(static_cast<int>(p)));
  }
}

void Interpreter::run(Backend& backend, int begin, int end) {
  backend_ = &backend;
  for (int i = begin; i < end; ++i) {
    const Event& event = program_.events[static_cast<std::size_t>(i)];
    backend.pause(static_cast<std::uint64_t>(i));
    act(event, i);
    after(event, i);
  }
}

void Interpreter::skip_to(int end) {
  for (int i = 0; i < end; ++i) after(program_.events[static_cast<std::size_t>(i)], i);
}

/// What the program itself remembers of an event.
void Interpreter::after(const Event& event, int index) {
  switch (event.kind) {
    case I::kTrain:
      ++now_.blocks;
      if (!between_windows()) break;
      now_.windows += program_.is_gan() && event.which == 2 ? 2 : 1;
      now_.changes.clear();
      now_.only_group.reset();
      now_.read_gradients = false;
      ++now_.schedule_steps;
      if (backend_) backend_->step_schedule();
      break;
    case I::kFreeze: {
      const int which = event.which, count = counts_[static_cast<std::size_t>(which)] - 2;
      if (!between_windows() || count <= 0) break;
      auto& frozen = now_.frozen[static_cast<std::size_t>(which)];
      for (int i = 0; i <= event.mode; ++i) {
        const int p = 2 + (event.target + i) % count;
        if (!frozen.erase(p)) frozen.insert(p);
      }
      if (backend_) freeze(backend_->model(which), frozen);
      break;
    }
    case I::kLearningRate: {
      if (!between_windows()) break;
      const int group = program_.groups == Groups::kNone ? 0 : event.target % 2;
      const bool follow = event.mode == 3;
      if (follow) now_.rates = {};
      if (!follow) now_.rates[static_cast<std::size_t>(group)] = event.value / 10;
      if (backend_) backend_->set_rate(group, follow ? std::nullopt : std::optional(event.value / 10));
      break;
    }
    case I::kStepGroups:
      now_.only_group = event.target % 2;
      break;
    case I::kReadGradient:
      now_.read_gradients = true;
      break;
    case I::kSave:
      saved_ = now_;
      saved_at_ = index;
      break;
    case I::kLoad:
      if (saved_at_ < 0 || saved_.frozen != now_.frozen) break;
      now_.blocks = saved_.blocks;
      now_.windows = saved_.windows;
      now_.rates = saved_.rates;  // rates that were set are in the checkpoint
      break;
    default:
      if (changes_gradients(event.kind)) now_.changes.push_back(event);
  }
}

void Interpreter::act(const Event& event, int index) {
  switch (event.kind) {
    case I::kTrain:
      return train(event, index);
    case I::kZeroGrad:
      return backend_->zero_grad(event.which, drop_mode(event));
    case I::kDiscard:
    case I::kThrowForward:
    case I::kThrowBackward:
      return discard(event, index);
    case I::kEvaluate:
    case I::kEvaluateOne:
      return evaluate(event, index);
    case I::kGatheredRead:
    case I::kGatheredWrite:
      return gathered(event, index);
    case I::kReadWeights:
      return read_weights(index, event.mode > 1);
    case I::kSetWeight: {
      const int p = event.target % counts_[static_cast<std::size_t>(event.which)];
      const at::Tensor parameter = backend_->model(event.which)->unique_parameters()[p].second;
      return backend_->set_weight(event.which, p, noise(parameter.sizes(), index) * event.value);
    }
    case I::kSave:
      return backend_->save(std::to_string(index));
    case I::kLoad:
      if (saved_at_ >= 0 && saved_.frozen == now_.frozen) backend_->load(std::to_string(saved_at_));
      return;
    default:
      return;
  }
}

void Interpreter::train(const Event& event, int index) {
  const int which = program_.is_gan() ? event.which : 0;
  const bool window_ends = (now_.blocks + 1) % program_.blocks == 0;
  const bool is_generator = program_.is_gan() && which == 1;
  if (is_generator && event.mode == 2) {
    for (auto& [name, parameter] : backend_->model(0)->unique_parameters()) at::Tensor(parameter).requires_grad_(false);
  }
  for (int i = backend_->first(); i < program_.block; i += backend_->stride()) {
    const MicroBatch micro_batch{static_cast<std::uint64_t>(now_.blocks * program_.block + i), now_.windows,
                                 program_.is_gan() ? 0 : program_.block, backend_->first()};
    const at::Tensor loss = loss_of(event, micro_batch);
    record(index, i, "loss", loss.item<float>());
    backend_->backward(loss, which, event.loss_backward);
    if (event.penalty == I::kPenalty) weight_penalty(event, which, micro_batch);
    const bool last = window_ends && i + backend_->stride() >= program_.block;
    for (int m = 0; m < models(); ++m) {
      if (which != 2 && which != m) continue;
      if (last && now_.read_gradients) {
        const auto& parameters = backend_->model(m)->unique_parameters();
        for (int p = 0; p < counts_[static_cast<std::size_t>(m)]; ++p)
          if (parameters[p].second.requires_grad())
            record(index, 0, fmt::format("gradient {} {}", m, parameters[p].first), backend_->gradient(m, p));
      }
      const WindowEnd end{now_.changes, now_.only_group};
      backend_->end_micro_batch(m, last ? &end : nullptr);
      if (last && !now_.only_group) record(index, 0, fmt::format("norm {}", m), backend_->norm(m));
    }
  }
  if (!is_generator) return;
  if (event.mode == 2) {
    freeze(backend_->model(0), now_.frozen[0]);
  } else {
    if (event.mode == 1 && drop_mode(event) == 1 && !event.loss_backward)
      backend_->expect_foreign_gradients_are_noticed(0);
    backend_->zero_grad(0, drop_mode(event));
  }
}

at::Tensor Interpreter::loss_of(const Event& event, const MicroBatch& micro_batch) {
  if (!program_.is_gan()) return fit_loss(backend_->model(0), micro_batch, event.penalty == I::kInputPenalty);
  if (event.which == 0) return critic_loss(micro_batch);
  const at::Tensor loss = generator_loss(micro_batch);
  return event.which == 1 ? loss : loss + critic_loss(micro_batch);
}

at::Tensor Interpreter::data(at::IntArrayRef sizes, std::uint64_t seed) const {
  return noise(sizes, seed).to(backend_->model(0)->unique_parameters().front().second.device());
}

/// How far the model is from random targets; with what layers add, and the penalty of Sobolev training and
/// R1.
at::Tensor Interpreter::fit_loss(FuzzModel& model, const MicroBatch& micro_batch, bool input_penalty) {
  at::Tensor x = data({program_.batch, program_.dim}, mixed(program_.seed, micro_batch.index));
  const at::Tensor target = data({program_.batch, program_.dim}, mixed(program_.seed + 1, micro_batch.index));
  if (input_penalty) x.requires_grad_();
  const at::Tensor out = model->forward(x, micro_batch).to(at::kFloat);
  at::Tensor loss = (out - target).square().mean();
  if (model->extra_loss.defined()) loss = loss + model->extra_loss;
  if (!input_penalty) return loss;
  const at::Tensor slope = torch::autograd::grad({out.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  return loss + 0.1 * slope.square().mean();
}

at::Tensor Interpreter::critic_loss(const MicroBatch& micro_batch) {
  auto &critic = backend_->model(0), &generator = backend_->model(1);
  const std::array<std::int64_t, 2> sizes{program_.batch, program_.dim};
  const at::Tensor fake = generator->forward(data(sizes, mixed(program_.seed + 2, micro_batch.index)), micro_batch);
  const at::Tensor real = data(sizes, mixed(program_.seed + 3, micro_batch.index));
  return critic->forward(fake.detach(), micro_batch).to(at::kFloat).square().mean() +
         (critic->forward(real, micro_batch).to(at::kFloat) - 1).square().mean();
}

at::Tensor Interpreter::generator_loss(const MicroBatch& micro_batch) {
  const at::Tensor z = data({program_.batch, program_.dim}, mixed(program_.seed + 4, micro_batch.index));
  const at::Tensor fake = backend_->model(1)->forward(z, micro_batch);
  return (backend_->model(0)->forward(fake, micro_batch).to(at::kFloat) - 1).square().mean();
}

/// A second backward of the micro-batch, through half of the parameters: others on each rank.
void Interpreter::weight_penalty(const Event& event, int which, const MicroBatch& micro_batch) {
  at::Tensor penalty;
  for (const auto& [name, parameter] : backend_->model(which)->unique_parameters()) {
    if (!parameter.requires_grad() || mixed(micro_batch.index, std::hash<std::string>()(name)) % 2) continue;
    const at::Tensor term = 0.05 * parameter.to(at::kFloat).square().sum();
    penalty = penalty.defined() ? penalty + term : term;
  }
  if (penalty.defined()) backend_->backward(penalty, which, event.loss_backward);
}

/// A micro-batch that comes to nothing: its gradients are dropped, or its forward or backward throws on all
/// ranks.
void Interpreter::discard(const Event& event, int index) {
  using Boom = FuzzModelImpl::Boom;
  auto& model = backend_->model(0);
  const auto data = kDiscardedData + static_cast<std::uint64_t>(100 * index + backend_->first());
  if (event.kind != I::kDiscard)
    model->set_boom(event.kind == I::kThrowForward ? Boom::kForward : Boom::kBackward, event.target);
  bool thrown = false;
  try {
    const at::Tensor loss = fit_loss(model, {data, now_.windows}, false);
    backend_->backward(loss, 0, event.target % 2 == 0);
  } catch (const std::exception& error) {
    if (std::strstr(error.what(), kBoom) == nullptr) throw;
    thrown = true;
  }
  model->set_boom(Boom::kNone, 0);
  if (thrown != (event.kind != I::kDiscard)) throw std::logic_error("the backward did not throw");
  // A forward leaves no gradient: plain programs need not drop any. What a backward left is the engine's to take back.
  if (event.kind == I::kThrowForward && event.mode == 3) return;
  if (goes_on_after_failed_backward(event, index)) return backend_->forget_failed_backward(0);
  backend_->zero_grad(0, drop_mode(event));
}

/// In a window that holds nothing, as others may be lost by the failure (which depends on what was sent by then); where
/// all ranks fail alike.
bool Interpreter::goes_on_after_failed_backward(const Event& event, int index) const {
  const auto next = static_cast<std::size_t>(index) + 1;
  return event.kind == I::kThrowBackward && drop_mode(event) == 3 && between_windows() &&
         next < program_.events.size() && program_.events[next].kind == I::kTrain;
}

/// Where ranks use different parameters, a module's or an optimizer's zero_grad() may be seen on some ranks only: such
/// programs call the engine's.
int Interpreter::drop_mode(const Event& event) const {
  const auto routes = [](const Layer& layer) {
    return layer.kind == Ingredient::kTop1 || layer.kind == Ingredient::kTop2 || layer.kind == Ingredient::kHeads ||
           layer.kind == Ingredient::kLayerDrop;
  };
  for (const auto* layers : {&program_.layers, &program_.generator}) {
    if (std::any_of(layers->begin(), layers->end(), routes)) return 0;
  }
  return event.mode;
}

void Interpreter::evaluate(const Event& event, int index) {
  const auto forward = [&] {
    const at::NoGradGuard no_grad;
    const at::Tensor x = data({program_.batch, program_.dim}, mixed(program_.seed, index));
    const MicroBatch micro_batch{kEvaluatedData + static_cast<std::uint64_t>(index), now_.windows};
    record(index, 0, "evaluation", backend_->model(event.which)->forward(x, micro_batch));
  };
  if (event.kind == I::kEvaluate) return forward();
  const auto on_one = [&] {
    if (mine(event.target)) forward();
  };
  // In a scope that only reads, a forward that writes is refused.
  if (event.mode < 2 || program_.has(I::kMask)) return on_one();
  std::vector<int> all;
  for (int p = 0; p < counts_[static_cast<std::size_t>(event.which)]; ++p) all.push_back(p);
  backend_->gathered(event.which, all, {}, on_one);
}

std::vector<int> Interpreter::chosen_parameters(const Event& event) const {
  const int count = counts_[static_cast<std::size_t>(event.which)];
  if (event.mode % 2) return {event.target % count};
  std::vector<int> chosen;
  for (int p = 0; p < count; ++p)
    if (event.mode == 0 || mixed(event.target, p) % 2) chosen.push_back(p);
  return chosen;
}

void Interpreter::gathered(const Event& event, int index) {
  const auto chosen = chosen_parameters(event);
  const bool writes = event.kind == I::kGatheredWrite;
  const auto inside = [&] {
    if (!mine(event.target)) return;
    const at::NoGradGuard no_grad;
    for (const int p : chosen) {
      at::Tensor parameter = backend_->model(event.which)->unique_parameters()[p].second;
      if (writes) parameter.clamp_(-event.value, event.value);
      if (!writes) record(index, p, "gathered", parameter);
    }
  };
  backend_->gathered(event.which, chosen, writes ? std::optional(event.target % backend_->stride()) : std::nullopt,
                     inside);
}

void Interpreter::read_weights(int index, bool states) {
  for (int m = 0; m < models(); ++m) {
    const auto& parameters = backend_->model(m)->unique_parameters();
    for (int p = 0; p < counts_[static_cast<std::size_t>(m)]; ++p) {
      const auto& [name, parameter] = parameters[static_cast<std::size_t>(p)];
      record(index, 0, fmt::format("weight {} {}", m, name), backend_->weight(m, p));
      if (!states || !parameter.requires_grad()) continue;
      record(index, 0, fmt::format("exp_avg {} {}", m, name), backend_->first_moment(m, p));
      record(index, 0, fmt::format("exp_avg_sq {} {}", m, name), backend_->second_moment(m, p));
    }
  }
}

void Interpreter::read_all(Backend& backend) {
  backend_ = &backend;
  read_weights(static_cast<int>(program_.events.size()), true);
}

void Interpreter::record(int event, int micro_batch, std::string what, const at::Tensor& values) {
  const at::Tensor flat = values.detach().cpu().to(at::kDouble).contiguous();
  const auto* data = flat.const_data_ptr<double>();
  records_[{event, micro_batch, std::move(what)}] = {data, data + flat.numel()};
}

void Interpreter::record(int event, int micro_batch, std::string what, double value) {
  records_[{event, micro_batch, std::move(what)}] = {value};
}

}  // namespace zero::fuzz_training
