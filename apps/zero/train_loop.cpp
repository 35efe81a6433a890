#include "train_loop.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "stop_signal.h"
#include "text_format.h"

namespace zero::app {

TrainLoop::TrainLoop(const TrainPlan& plan, GPTEngine& engine, const Console& console, Progress& progress,
                     Recorder* recorder)
    : plan_(plan),
      engine_(engine),
      model_(engine.typed_module()),
      console_(console),
      progress_(progress),
      recorder_(recorder),
      sampler_(Corpus(plan.corpus_folder, Split::kTrain), plan.seq, static_cast<std::uint64_t>(plan.seed)),
      validation_(Corpus(plan.corpus_folder, Split::kValidation), plan.seq, plan.eval_batches),
      tokens_(at::empty({engine.config().train_micro_batch_size_per_gpu, plan.seq + 1}, at::kLong)),
      checkpoints_(plan, engine, console_, progress, recorder) {}

void TrainLoop::run() {
  if (plan_.resume) restore(checkpoints_.load());
  try {
    train();
  } catch (const Stopped&) {
    model_->train();
  }
  if (result_.steps_done == 0) return;
  checkpoints_.save_last(result_.steps_done, state());
  if (result_.stop_signal != 0 && console_.enabled() && seconds_since_stop_signal() > 0) {
    progress_.note(
        fmt::format("checkpoint complete {} after the signal", duration(seconds_since_stop_signal())));
  }
}

void TrainLoop::train() {
  const bool validated = result_.last_validation && result_.last_validation_step == result_.steps_done;
  if (validation_due() && !validated) validate();
  reset_peak_memory();
  while (result_.steps_done < plan_.steps) {
    one_step();
    if (validation_due()) validate();
    if (checkpoint_due_ || checkpoints_.due_by_steps(result_.steps_done)) {
      checkpoints_.save(result_.steps_done, state());
    }
  }
}

nlohmann::json TrainLoop::state() const {
  // Not finite has no form in JSON.
  const auto number = [](double value) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
  };
  const auto optional = [&](const std::optional<double>& value) {
    return value ? number(*value) : nlohmann::json();
  };
  return {{"steps", result_.steps_done},
          {"tokens", result_.tokens},
          {"training_seconds", result_.training_seconds},
          {"validation_seconds", validation_seconds_},
          {"first_validation", optional(result_.first_validation)},
          {"last_validation", optional(result_.last_validation)},
          {"last_validation_step", result_.last_validation_step},
          {"loss", {number(loss_.state().first), loss_.state().second}},
          {"step_seconds", {step_seconds_.state().first, step_seconds_.state().second}}};
}

void TrainLoop::restore(const nlohmann::json& state) {
  if (state.empty()) return;
  const auto number = [](const nlohmann::json& value) {
    return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
  };
  const auto optional = [](const nlohmann::json& value) {
    return value.is_null() ? std::optional<double>() : value.get<double>();
  };
  result_.steps_done = state.at("steps");
  result_.tokens = state.at("tokens");
  result_.training_seconds = state.at("training_seconds");
  validation_seconds_ = state.at("validation_seconds");
  result_.first_validation = optional(state.at("first_validation"));
  result_.last_validation = optional(state.at("last_validation"));
  result_.last_validation_step = state.at("last_validation_step");
  loss_.restore({number(state.at("loss").at(0)), state.at("loss").at(1)});
  step_seconds_.restore({state.at("step_seconds").at(0), state.at("step_seconds").at(1)});
}

void TrainLoop::one_step() {
  const Clock clock;
  const double lr = engine_.learning_rate();
  const std::int64_t skipped = engine_.skipped_steps();
  const StepOutcome outcome = train_step();
  const double seconds = clock.seconds();
  const std::int64_t tokens = engine_.config().train_batch_size * plan_.seq;
  ++result_.steps_done;
  ++result_.steps_here;
  result_.tokens += tokens;
  result_.training_seconds += seconds;
  loss_.add(outcome.loss);
  step_seconds_.add(seconds);
  report({result_.steps_done, outcome.loss, engine_.grad_norm(), lr, result_.tokens, result_.training_seconds,
          static_cast<double>(tokens) / seconds, engine_.skipped_steps() > skipped});
  checkpoint_due_ = outcome.checkpoint_due;
  result_.stop_signal = outcome.stop_signal;
  if (outcome.stop_signal != 0) throw Stopped{};
}

TrainLoop::StepOutcome TrainLoop::train_step() {
  const auto before = engine_.communication_report();
  std::vector<double> losses;
  for (std::int64_t j = 0; j < engine_.config().gradient_accumulation_steps; ++j)
    losses.push_back(micro_batch());
  const auto after = engine_.communication_report();
  totals_.gathered_numel += static_cast<double>(after.gathered_numel - before.gathered_numel);
  totals_.reduced_numel += static_cast<double>(after.reduced_numel - before.reduced_numel);
  totals_.published_numel += static_cast<double>(after.published_numel - before.published_numel);
  add(totals_.inside, engine_.step_breakdown());
  return agree(losses);
}

double TrainLoop::micro_batch() {
  Clock clock;
  const Config& config = engine_.config();
  const std::int64_t index = engine_.micro_steps() * engine_.world_size() + engine_.rank();
  sampler_.fill(index, config.train_micro_batch_size_per_gpu, tokens_.mutable_data_ptr<std::int64_t>());
  totals_.data += clock.lap();
  const at::Tensor loss = model_->loss(tokens_.narrow(1, 0, plan_.seq), tokens_.narrow(1, 1, plan_.seq));
  totals_.forward += clock.lap();
  engine_.backward(loss);
  totals_.backward += clock.lap();
  engine_.step();
  totals_.step += clock.lap();
  return loss.item<double>();
}

TrainLoop::StepOutcome TrainLoop::agree(const std::vector<double>& my_losses) {
  std::vector<double> mine = my_losses;
  mine.push_back(received_stop_signal());
  mine.push_back(checkpoints_.due_by_time() ? 1 : 0);
  const std::vector<double> all = gather_doubles(engine_.group(), mine, "loss and stop flag");
  const auto ranks = static_cast<std::size_t>(engine_.world_size());
  StepOutcome outcome;
  // In the order of the global micro-batches, so that the sum does not depend on the number of ranks.
  for (std::size_t j = 0; j < my_losses.size(); ++j) {
    for (std::size_t r = 0; r < ranks; ++r) outcome.loss += all[r * mine.size() + j];
  }
  outcome.loss /= static_cast<double>(ranks * my_losses.size());
  for (std::size_t r = 0; r < ranks && outcome.stop_signal == 0; ++r) {
    outcome.stop_signal = static_cast<int>(all[r * mine.size() + my_losses.size()]);
  }
  outcome.checkpoint_due = all[my_losses.size() + 1] != 0;  // rank 0's clock
  return outcome;
}

void TrainLoop::report(const StepMetrics& metrics) {
  if (recorder_) recorder_->step(metrics);
  if (result_.steps_here == 1) {
    const auto reports = gather_memory(engine_.group(), engine_.memory_report());
    const auto ddp = ddp_memory(plan_.parameters_numel, engine_.config().param_dtype());
    if (console_.enabled()) progress_.note(first_step_memory(reports, ddp));
  }
  if (!console_.enabled()) return;
  const double tokens_each = static_cast<double>(metrics.tokens) / static_cast<double>(metrics.step);
  progress_.update({metrics.step, loss_.value(), metrics.grad_norm, metrics.lr,
                    tokens_each / step_seconds_.value(), seconds_left(), resident_nbytes()});
}

void TrainLoop::check_stop() {
  result_.stop_signal = agree({0.0}).stop_signal;
  if (result_.stop_signal != 0) throw Stopped{};
}

std::string TrainLoop::sample() {
  if (result_.stop_signal != 0 || plan_.sample_length == 0) return "";
  constexpr std::int64_t kMostContext = 128;
  GenerateOptions options;
  options.length = plan_.sample_length;
  options.temperature = plan_.temperature;
  options.top_k = plan_.top_k;
  options.seed = static_cast<std::uint64_t>(plan_.seed);
  options.context = std::min(plan_.seq, kMostContext);
  const at::Tensor padded = at::zeros({1, options.context}, at::kLong);
  if (console_.enabled()) progress_.busy("writing a sample ...");
  model_->eval();
  std::string text;
  try {
    text = generate(
        [&](const at::Tensor& tokens) {
          check_stop();
          // Always the same shape, or the kernels are prepared anew for each; what follows has no influence.
          padded.narrow(1, 0, tokens.size(1)).copy_(tokens);
          return model_->forward(padded).narrow(1, 0, tokens.size(1));
        },
        plan_.prompt, options);
  } catch (const Stopped&) {
    text.clear();
  }
  model_->train();
  return text;
}

bool TrainLoop::validation_due() const {
  const std::int64_t step = result_.steps_done;
  return step == 0 || step == plan_.steps || (plan_.eval_every > 0 && step % plan_.eval_every == 0);
}

double TrainLoop::seconds_left() const {
  const std::int64_t left = plan_.steps - result_.steps_done;
  const std::int64_t validations =
      plan_.eval_every > 0 ? (left + plan_.eval_every - 1) / plan_.eval_every : left > 0;
  return static_cast<double>(left) * step_seconds_.value() +
         static_cast<double>(validations) * validation_seconds_;
}

void TrainLoop::validate() {
  if (console_.enabled()) progress_.busy("validating ...");
  const Clock clock;
  model_->eval();
  const double nats =
      validation_.mean_loss(engine_.group(), [&](const at::Tensor& tokens, const at::Tensor& targets) {
        check_stop();
        return model_->loss(tokens, targets);
      });
  model_->train();
  validation_seconds_ = clock.seconds();
  if (!result_.first_validation) result_.first_validation = nats;
  result_.last_validation = nats;
  result_.last_validation_step = result_.steps_done;
  if (recorder_) recorder_->validation(result_.steps_done, nats, plan_.baseline_nats);
  if (!console_.enabled()) return;
  progress_.note(fmt::format(
      "step {:>{}}/{}  validation {:.4f} nats = {:.3f} bits per byte, {:.0f} % of unigram entropy",
      result_.steps_done, std::to_string(plan_.steps).size(), plan_.steps, nats, to_bits(nats),
      100 * nats / plan_.baseline_nats));
}

RunResult TrainLoop::result() const {
  RunResult result = result_;
  result.last_loss = loss_.value();
  result.checkpoint = checkpoints_.last();
  return result;
}

}  // namespace zero::app
