#include "train/train_loop.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <utility>

#include "model/token_text.h"
#include "text/text_format.h"
#include "train/recorder.h"
#include "zero/device_memory.h"
#include "zero/errors.h"
#include "zero/lm/data.h"
#include "zero/lm/models.h"

namespace zero::app {

namespace {

std::vector<std::int64_t> prompt_of(const TrainPlan& plan) {
  constexpr std::int64_t kLength = 32;
  if (plan.token_nbytes > 1) {
    const Corpus validation(plan.corpus_folder, Split::kValidation);
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(std::min(kLength, validation.size())));
    validation.copy(0, tokens);
    return tokens;
  }
  std::vector<std::int64_t> tokens;
  for (const char c : plan.prompt) tokens.push_back(static_cast<unsigned char>(c));
  if (tokens.empty()) tokens.push_back(0);
  return tokens;
}

}  // namespace

TrainLoop::TrainLoop(const TrainPlan& plan, LanguageModel& model, Engine& engine, const Console& console,
                     Progress& progress)
    : plan_(plan),
      model_(model),
      engine_(engine),
      console_(console),
      progress_(progress),
      sampler_(Corpus(plan.corpus_folder, Split::kTrain), plan.seq, static_cast<std::uint64_t>(plan.seed)),
      validation_(Corpus(plan.corpus_folder, Split::kValidation), plan.seq, plan.eval_batches),
      tokens_(at::empty({engine.config().train_micro_batch_size_per_gpu, plan.seq + 1}, at::kLong)),
      run_(engine, run_options()) {
  if (plan.noise) measure_noise();
  if (sampler_.corpus().has_context()) targets_ = at::empty({tokens_.size(0), plan.seq}, at::kLong);
}

void TrainLoop::measure_noise() {
  const std::int64_t micro_batches = engine_.config().gradient_accumulation_steps * engine_.group().size();
  if (micro_batches < 2) {
    throw ConfigError(
        "--noise: an optimizer step has one micro-batch, and there is nothing to compare; give --batch-size, "
        "or a smaller --micro-batch");
  }
  if (sampler_.corpus().has_context()) {
    throw ConfigError("--noise: micro-batches of conversations have different numbers of learnt tokens");
  }
  engine_.measure_gradient_noise();
}

RunOptions TrainLoop::run_options() {
  return {.folder = plan_.run_folder,
          .tensorboard_folder = plan_.tensorboard_folder,
          .step_metrics = false,
          .state = [this] { return state().dump(); },
          .stop_when_diverged = !plan_.keep_going,
          .max_minutes = plan_.max_minutes,
          // What is wrong with a run that has diverged is said at its end.
          .notice =
              [this](const RunNotice& notice) {
                if (run_.diverged()) return;
                if (is_loading_) return say_of_loading(notice.text);
                notice.is_problem ? warn(notice.text) : note(notice.text);
              }};
}

void TrainLoop::note(const std::string& text) {
  if (!console_.enabled()) return;
  progress_.note(
      fmt::format("step {:>{}}/{}  {}", result_.steps_done, std::to_string(plan_.steps).size(), plan_.steps, text));
}

void TrainLoop::warn(const std::string& text) {
  if (console_.enabled()) return note(text);
  if (engine_.rank() == 0) fmt::print(stderr, "zero train: step {}: {}\n", result_.steps_done, text);
}

void TrainLoop::say_of_loading(const std::string& text) {
  console_.print(hanging("resume", text));
  if (!console_.enabled() && engine_.rank() == 0) print_error(fmt::format("zero train: {}\n", text));
}

LoadReport TrainLoop::load() {
  try {
    is_loading_ = true;
    LoadReport report = run_.resume();
    is_loading_ = false;
    return report;
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}.{}", error.what(), restart_hint(plan_.run_folder)));
  }
}

void TrainLoop::resume() {
  const LoadReport report = load();
  if (report.folder.empty()) {  // it was looked for before the ranks were started
    throw CheckpointError(fmt::format("--resume: the checkpoints of {} are gone", short_path(plan_.run_folder)));
  }
  console_.print(
      fmt::format("resume     from {} after {}\n\n", short_path(report.folder), counted(report.global_steps, "step")));
  restore(nlohmann::json::parse(report.client_state));
}

void TrainLoop::restart() {
  const std::string kept = run_.restart();
  if (engine_.rank() == 0 && !kept.empty()) {
    std::error_code error;  // what is not there
    for (const char* name : {"summary.json", "sample.txt", "config.json", "plan.json", "environment.json"})
      std::filesystem::copy_file(std::filesystem::path(plan_.run_folder) / name, std::filesystem::path(kept) / name,
                                 error);
    if (const std::filesystem::path best = best_folder(plan_.run_folder); std::filesystem::exists(best, error))
      std::filesystem::rename(best, std::filesystem::path(kept) / "best", error);
    for (const char* name : {"summary.json", "sample.txt"})
      std::filesystem::remove(std::filesystem::path(plan_.run_folder) / name, error);
  }
  console_.print(kept.empty() ? "restart    there was nothing yet\n\n"
                              : fmt::format("restart    what there was is kept in {}\n\n", short_path(kept)));
}

void TrainLoop::run(const std::function<void()>& begins) {
  if (plan_.resume) resume();
  if (plan_.restart) restart();
  if (engine_.rank() == 0) begins();
  try {
    train();
  } catch (const Stopped&) {
    model_.train();
  }
  if (result_.steps_done == 0) return;
  save_last();
  result_.diverged = run_.diverged();
  if (result_.save_problem.empty() && result_.stop_signal != 0 && console_.enabled() &&
      seconds_since_stop_signal() > 0) {
    progress_.note(fmt::format("checkpoint complete {} after the signal", duration(seconds_since_stop_signal())));
  }
}

void TrainLoop::save_last() {
  if (console_.enabled()) progress_.busy("writing a checkpoint ...");
  try {
    return run_.finish();
  } catch (const CheckpointError& error) {
    result_.save_problem = error.what();
  }
  if (save_when_there_is_room(result_.save_problem)) result_.save_problem.clear();
}

bool TrainLoop::save_when_there_is_room(const std::string& problem) {
  constexpr double kPatienceS = 120, kBetweenS = 5;
  if (result_.stop_signal != 0) return false;
  warn(fmt::format("{}. Trying again for {}; Ctrl-C gives up", problem, duration(kPatienceS)));
  // Tries are counted, not timed: all ranks must make the same.
  for (int tries = 0; tries < static_cast<int>(kPatienceS / kBetweenS); ++tries) {
    for (int i = 0; i < 5 && run_.stop_signal() == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kBetweenS / 5));
      run_.agree_on_stop();
    }
    result_.stop_signal = run_.stop_signal();
    if (result_.stop_signal != 0) return false;
    try {
      run_.finish();
      return true;
    } catch (const CheckpointError&) {  // not yet
    }
  }
  return false;
}

void TrainLoop::train() {
  const bool validated = result_.last_validation && result_.last_validation_step == result_.steps_done;
  if (validation_due() && !validated) validate();
  reset_peak_memory();
  reset_peak_device_memory(engine_.device());
  while (result_.steps_done < plan_.steps) {
    one_step();
    if (validation_due()) validate();
    run_.save_if_due();
  }
}

nlohmann::json TrainLoop::state() const {
  // Not finite has no form in JSON.
  const auto number = [](double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); };
  const auto optional = [&](const std::optional<double>& value) { return value ? number(*value) : nlohmann::json(); };
  return {{"steps", result_.steps_done},
          {"tokens", result_.tokens},
          {"training_seconds", result_.training_seconds},
          {"validation_seconds", validation_seconds_},
          {"first_validation", optional(result_.first_validation)},
          {"last_validation", optional(result_.last_validation)},
          {"last_validation_step", result_.last_validation_step},
          {"best_validation", optional(result_.best_validation)},
          {"best_validation_step", result_.best_validation_step},
          {"best_checkpoint", result_.best_checkpoint},
          {"step_loss", optional(result_.step_loss)},
          {"loss", {number(loss_.state().first), loss_.state().second}},
          {"noise", {number(noise_.state().first), noise_.state().second}},
          {"signal", {number(signal_.state().first), signal_.state().second}},
          {"step_seconds", {step_seconds_.state().first, step_seconds_.state().second}}};
}

void TrainLoop::restore(const nlohmann::json& state) {
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
  result_.best_validation = optional(state.value("best_validation", nlohmann::json()));
  result_.best_validation_step = state.value("best_validation_step", std::int64_t{0});
  result_.step_loss = optional(state.value("step_loss", nlohmann::json()));
  loss_.restore({number(state.at("loss").at(0)), state.at("loss").at(1)});
  for (auto& [name, mean] : {std::pair<const char*, RecentMean*>("noise", &noise_), {"signal", &signal_}}) {
    if (state.contains(name)) mean->restore({number(state.at(name).at(0)), state.at(name).at(1)});
  }
  step_seconds_.restore({state.at("step_seconds").at(0), state.at("step_seconds").at(1)});
  namespace fs = std::filesystem;
  const fs::path best = state.value("best_checkpoint", std::string());
  if (best.empty()) return;
  // The run may have been moved; and what came after this state may have taken its place.
  const fs::path here = fs::path(best_folder(plan_.run_folder)) / best.filename();
  std::error_code error;
  result_.best_checkpoint = fs::exists(here, error) ? here.string() : "";
  if (result_.best_checkpoint.empty()) result_.best_validation.reset();
}

void TrainLoop::one_step() {
  const Clock clock;
  const double lr = engine_.learning_rate();
  std::optional<SlowNotice> notice;
  if (result_.steps_here == 0 && console_.enabled()) {
    progress_.busy("computing the first step ...");
    notice.emplace(console_, std::chrono::seconds(20),
                   "the first step takes more than 20 s; a smaller --preset or --batch-size takes less");
  }
  const StepOutcome outcome = train_step();
  notice.reset();
  const double seconds = clock.seconds();
  ++result_.steps_done;
  ++result_.steps_here;
  result_.tokens += engine_.config().train_batch_size * plan_.seq;
  result_.training_seconds += seconds;
  loss_.add(outcome.loss);
  result_.step_loss = outcome.loss;
  step_seconds_.add(seconds);
  report(outcome, lr, seconds);
  result_.stop_signal = run_.stop_signal();
  result_.diverged = run_.diverged();
  result_.time_is_up = run_.time_is_up() && result_.steps_done < plan_.steps;
  if (result_.stop_signal != 0 || result_.diverged || result_.time_is_up) throw Stopped{};
}

StepOutcome TrainLoop::train_step() {
  const auto before = engine_.communication_report();
  const OffloadReport disk_before = engine_.offload_report();
  std::optional<StepOutcome> outcome;
  while (!outcome) outcome = run_.after_step(micro_batch());
  const auto after = engine_.communication_report();
  totals_.gathered_numel += static_cast<double>(after.gathered_numel - before.gathered_numel);
  totals_.reduced_numel += static_cast<double>(after.reduced_numel - before.reduced_numel);
  totals_.published_numel += static_cast<double>(after.published_numel - before.published_numel);
  totals_.whole_numel += static_cast<double>(after.whole_numel - before.whole_numel);
  add(totals_.inside, engine_.step_breakdown());
  if (result_.steps_here == 0) return *outcome;  // the first finds nothing in its files
  const OffloadReport disk = engine_.offload_report();
  totals_.disk_read_nbytes += static_cast<double>(disk.read_nbytes - disk_before.read_nbytes);
  totals_.disk_written_nbytes += static_cast<double>(disk.written_nbytes - disk_before.written_nbytes);
  totals_.disk_waited += disk.waited_seconds - disk_before.waited_seconds;
  return *outcome;
}

double TrainLoop::targets_of_a_micro_batch(std::int64_t micro_step) {
  const Config& config = engine_.config();
  const std::int64_t each = config.gradient_accumulation_steps, micro_batches = each * engine_.world_size();
  const std::int64_t first = micro_step / each * micro_batches;
  if (first == counted_from_) return counted_targets_;
  std::int64_t targets = 0;
  for (std::int64_t i = 0; i < micro_batches; ++i)
    targets += sampler_.count_targets(first + i, config.train_micro_batch_size_per_gpu);
  counted_from_ = first;
  counted_targets_ = static_cast<double>(std::max<std::int64_t>(1, targets)) / static_cast<double>(micro_batches);
  return counted_targets_;
}

double TrainLoop::micro_batch() {
  Clock clock;
  const Config& config = engine_.config();
  const std::int64_t index = engine_.micro_steps() * engine_.world_size() + engine_.rank();
  const std::int64_t size = config.train_micro_batch_size_per_gpu;
  double divisor = 0;
  if (targets_.defined()) {
    sampler_.fill(index, size, tokens_.mutable_data_ptr<std::int64_t>(), targets_.mutable_data_ptr<std::int64_t>());
    divisor = targets_of_a_micro_batch(index / engine_.world_size());
  } else {
    sampler_.fill(index, size, tokens_.mutable_data_ptr<std::int64_t>());
  }
  totals_.data += clock.lap();
  const at::Tensor loss = model_.loss(tokens_.narrow(1, 0, plan_.seq),
                                      targets_.defined() ? targets_ : tokens_.narrow(1, 1, plan_.seq), divisor);
  totals_.forward += clock.lap();
  engine_.backward(loss);
  totals_.backward += clock.lap();
  engine_.step();
  totals_.step += clock.lap();
  return loss.item<double>();
}

std::optional<double> TrainLoop::noise_scale() {
  const auto measured = engine_.gradient_noise();
  if (measured) {
    noise_.add(measured->noise());
    signal_.add(measured->signal());
  }
  if (!plan_.noise || !(signal_.value() > 0)) return std::nullopt;
  return noise_.value() / signal_.value() * static_cast<double>(engine_.config().train_micro_batch_size_per_gpu);
}

void TrainLoop::report(const StepOutcome& outcome, double lr, double seconds) {
  const auto tokens = static_cast<double>(engine_.config().train_batch_size * plan_.seq);
  const StepMetrics metrics{
      result_.steps_done,       outcome.loss,     engine_.grad_norm(), lr,           result_.tokens,
      result_.training_seconds, tokens / seconds, outcome.skipped,     noise_scale()};
  if (run_.metrics()) record_step(*run_.metrics(), metrics);
  if (result_.steps_here == 1) {
    const auto reports = gather_memory(engine_.group(), engine_.memory_report());
    const auto ddp = ddp_memory(plan_.parameters_numel, plan_.trained_numel, engine_.config().param_dtype());
    if (console_.enabled()) progress_.note(first_step_memory(reports, ddp));
  }
  if (!console_.enabled()) return;
  const double tokens_each = static_cast<double>(metrics.tokens) / static_cast<double>(metrics.step);
  progress_.update({metrics.step, loss_.value(), metrics.grad_norm, metrics.lr, tokens_each / step_seconds_.value(),
                    seconds_left(), resident_nbytes()});
}

void TrainLoop::check_stop() {
  run_.agree_on_stop();
  if (run_.stop_signal() == 0) return;
  result_.stop_signal = run_.stop_signal();
  throw Stopped{};
}

Sample TrainLoop::sample() {
  // After a gradient that was no number the loss of the step before may be one.
  const bool is_lost =
      result_.diverged || !std::isfinite(loss_.value()) || (plan_.keep_going && !std::isfinite(engine_.grad_norm()));
  if (result_.stop_signal != 0 || result_.time_is_up || plan_.sample_length == 0 || is_lost) return {};
  constexpr std::int64_t kMostContext = 128;
  GenerateOptions options;
  options.length = plan_.sample_length;
  options.temperature = kSampleTemperature;
  options.top_k = kSampleTopK;
  options.seed = static_cast<std::uint64_t>(plan_.seed);
  options.context = std::min(plan_.seq, kMostContext);
  const at::Tensor padded = at::zeros({1, options.context}, at::kLong);
  if (console_.enabled()) progress_.busy("writing a sample ...");
  const TokenText text = plan_.token_nbytes > 1 ? TokenText(plan_.token_pieces) : TokenText();
  const std::vector<std::int64_t> prompt = prompt_of(plan_);
  model_.eval();
  Sample sample;
  try {
    const auto added = generate_tokens(
        [&](const at::Tensor& tokens) {
          check_stop();
          // Always the same shape, or the kernels are prepared anew for each; what follows has no influence.
          padded.narrow(1, 0, tokens.size(1)).copy_(tokens);
          const at::Tensor logits = model_.forward(padded).narrow(1, 0, tokens.size(1));
          return plan_.token_nbytes > 1 ? logits : logits.narrow(2, 0, std::min<std::int64_t>(256, logits.size(2)));
        },
        prompt, options);
    sample = {plan_.token_nbytes > 1 ? text.of(prompt) : plan_.prompt, text.of(added)};
  } catch (const Stopped&) {
    sample = {};
  }
  model_.train();
  return sample;
}

bool TrainLoop::validation_due() const {
  const std::int64_t step = result_.steps_done;
  return step == 0 || step == plan_.steps || (plan_.eval_every > 0 && step % plan_.eval_every == 0);
}

double TrainLoop::seconds_left() const {
  const std::int64_t left = plan_.steps - result_.steps_done;
  const std::int64_t validations = plan_.eval_every > 0 ? (left + plan_.eval_every - 1) / plan_.eval_every : left > 0;
  return static_cast<double>(left) * step_seconds_.value() + static_cast<double>(validations) * validation_seconds_;
}

void TrainLoop::validate() {
  if (console_.enabled()) progress_.busy("validating ...");
  const Clock clock;
  engine_.finish_update();  // it is of what a checkpoint has
  model_.eval();
  const double nats = validation_.mean_loss(engine_.group(), [&](const at::Tensor& tokens, const at::Tensor& targets) {
    check_stop();
    return model_.loss(tokens, targets);
  });
  model_.train();
  validation_seconds_ = clock.seconds();
  if (!result_.first_validation) result_.first_validation = nats;
  result_.last_validation = nats;
  result_.last_validation_step = result_.steps_done;
  if (run_.metrics()) record_validation(*run_.metrics(), plan_, result_.steps_done, nats);
  note(fmt::format("validation {}", loss_text(plan_, nats, 4)));
  look_at_validation(nats);
}

void TrainLoop::look_at_validation(double nats) {
  if (result_.best_validation && !(nats < *result_.best_validation)) return;
  result_.best_validation = nats;
  result_.best_validation_step = result_.steps_done;
  if (plan_.keep_best && result_.steps_done > 0 && std::isfinite(nats)) save_best();
}

void TrainLoop::save_best() {
  const std::string folder = best_folder(plan_.run_folder), tag = fmt::format("global_step{}", result_.steps_done);
  if (console_.enabled()) progress_.busy("writing the best checkpoint ...");
  try {
    engine_.save_checkpoint(folder, tag);
    result_.best_checkpoint = (std::filesystem::path(folder) / tag).string();
    from_rank_0(engine_.group(), [&] {
      checkpoint::prune(folder, 1);
      return std::string();
    });
  } catch (const CheckpointError& error) {
    warn(fmt::format("the checkpoint of the best validation: {}", error.what()));
  }
}

RunResult TrainLoop::result() const {
  RunResult result = result_;
  result.last_loss = loss_.value();
  result.checkpoint = run_.last_checkpoint();
  return result;
}

}  // namespace zero::app
