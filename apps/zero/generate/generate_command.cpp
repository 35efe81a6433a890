#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "commands.h"
#include "host/rank_job.h"
#include "host/rank_setup.h"
#include "model/opened_model.h"
#include "model/token_text.h"
#include "model/tokenizer.h"
#include "plan/plan_fit.h"
#include "text/console.h"
#include "text/text_format.h"
#include "train/train_loop.h"
#include "zero/errors.h"
#include "zero/train.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;

struct GenerateArguments : ModelArguments {
  std::string prompt;
  std::vector<std::int64_t> tokens;
  std::int64_t length = 200, top_k = 40, seed = 1234;
  double temperature = 0.8, top_p = 1;
  bool quiet = false, json = false;
};

/// What the ranks get.
struct GenerateJob {
  OpenedModel model;
  std::vector<std::int64_t> prompt, stop, special;
  std::string text;         ///< of the prompt
  std::string pieces;       ///< as TokenInfo's; empty: tokens are bytes
  bool as_numbers = false;  ///< nobody knows the text of tokens, or wants it
  std::int64_t length = 0, top_k = 0, seed = 0;
  double temperature = 0, top_p = 0;
  bool quiet = false, as_json = false;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GenerateJob, model, prompt, stop, special, text, pieces, as_numbers, length, top_k,
                                   seed, temperature, top_p, quiet, as_json)

void take_bytes(GenerateJob& job, const std::string& text) {
  for (const char c : text) job.prompt.push_back(static_cast<unsigned char>(c));
  if (job.prompt.empty()) job.prompt.push_back(0);  // like a file
  job.stop = {0};
}

void take_text(GenerateJob& job, const std::string& text, const fs::path& scratch) {
  const std::string folder = job.model.tokenizer_folder();
  job.text = text;
  if (job.model.takes_bytes()) return take_bytes(job, text);
  if (!has_tokenizer(folder)) {
    throw ConfigError(fmt::format(
        "{}: there is no tokenizer.json to make tokens of text with; give the tokens themselves with --tokens",
        folder.empty() ? "the tokens of the run" : folder));
  }
  PromptTokens made = tokenize_prompt(folder, text, scratch);
  job.prompt = std::move(made.tokens);
  job.special = std::move(made.special);
  job.pieces = (scratch / "pieces.json").string();
  job.stop = job.model.is_run() ? separator_of(job.model.plan.token_pieces) : end_tokens(folder);
  if (job.prompt.empty()) {
    if (job.stop.empty()) throw ConfigError("the prompt is empty; give some text with --prompt");
    job.prompt = {job.stop.front()};  // after which texts begin
  }
}

void take_numbers(GenerateJob& job, const std::vector<std::int64_t>& tokens) {
  job.prompt = tokens;
  job.as_numbers = true;
  if (!job.model.is_run()) job.stop = end_tokens(job.model.plan.init_from);
}

/// Where the model ends, or was made to end.
void cut_to_context(GenerateJob& job) {
  const TrainPlan& plan = job.model.plan;
  const std::int64_t vocab = plan.model.empty() ? gpt_options(plan).vocab : causal_lm_config(plan).vocab;
  for (const std::int64_t token : job.prompt) {
    if (token < 0 || token >= vocab) {
      throw ConfigError(
          fmt::format("token {} of the prompt: the model's vocabulary has {} tokens", token, with_commas(vocab)));
    }
  }
  if (plan.model.empty()) return;  // sees the last ones of any text
  const models::CausalLMConfig config = causal_lm_config(plan);
  const auto count = static_cast<std::int64_t>(job.prompt.size());
  if (count >= config.max_positions) {
    throw ConfigError(fmt::format("the prompt has {} tokens, and the model is made for {} positions",
                                  with_commas(count), with_commas(config.max_positions)));
  }
  const std::int64_t room = config.max_positions - count;
  if (job.length <= room) return;
  print_error(fmt::format("zero generate: at most {} tokens: the model is made for {} positions\n", with_commas(room),
                          with_commas(config.max_positions)));
  job.length = room;
}

std::string standard_input() { return {std::istreambuf_iterator<char>(std::cin), {}}; }

GenerateJob prepare(const GenerateArguments& arguments, const fs::path& scratch) {
  GenerateJob job{.model = open_model(arguments),
                  .length = arguments.length,
                  .top_k = arguments.top_k,
                  .seed = arguments.seed,
                  .temperature = arguments.temperature,
                  .top_p = arguments.top_p,
                  .quiet = arguments.quiet,
                  .as_json = arguments.json};
  if (!arguments.tokens.empty()) {
    take_numbers(job, arguments.tokens);
  } else {
    take_text(job, arguments.prompt == "-" ? standard_input() : unescape(arguments.prompt), scratch);
  }
  cut_to_context(job);
  return job;
}

/// One JSON object at the end.
class Collected {
 public:
  explicit Collected(const GenerateJob& job)
      : job_(job),
        text_(job.pieces.empty() ? TokenText() : TokenText(job.pieces)),
        special_(job.special.begin(), job.special.end()) {}

  void add(std::int64_t token) {
    tokens_.push_back(token);
    if (!job_.as_numbers && !special_.contains(token)) words_ += text_.of(token);
  }
  std::string as_json(double seconds, bool stopped_by_signal) const {
    const bool is_full = static_cast<std::int64_t>(tokens_.size()) == job_.length;
    const bool ended =
        !is_full || (!tokens_.empty() && std::ranges::find(job_.stop, tokens_.back()) != job_.stop.end());
    nlohmann::ordered_json json = {{"prompt_tokens", job_.prompt},
                                   {"tokens", tokens_},
                                   {"stopped_by", stopped_by_signal ? "signal"
                                                  : ended           ? "end"
                                                                    : "length"},
                                   {"seed", job_.seed},
                                   {"seconds", seconds}};
    if (!job_.as_numbers) {
      json["prompt"] = job_.text;
      json["text"] = words_;
    }
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }

 private:
  const GenerateJob& job_;
  TokenText text_;
  std::set<std::int64_t> special_;
  std::vector<std::int64_t> tokens_;
  std::string words_;
};

/// Tokens as they come, on the terminal of rank 0.
class Printer {
 public:
  Printer(const GenerateJob& job, bool enabled)
      : console_(enabled),
        text_(job.pieces.empty() || !enabled ? TokenText() : TokenText(job.pieces)),
        special_(job.special.begin(), job.special.end()),
        numbers_(job.as_numbers) {}

  /// As it was given.
  void prompt(const GenerateJob& job) {
    if (!job.pieces.empty()) return print(job.text);
    if (job.text.empty() && !numbers_) return;  // begins like a file
    for (const std::int64_t token : job.prompt) add(token);
  }
  void add(std::int64_t token) {
    if (numbers_) return console_.print(fmt::format("{}{}", std::exchange(space_, " "), token));
    if (!special_.contains(token)) print(text_.of(token));
  }
  void finish() { console_.print(stream_.finish() + "\n"); }

 private:
  void print(const std::string& bytes) { console_.print(is_terminal_ ? stream_.add(bytes) : bytes); }

  Console console_;
  TokenText text_;
  std::set<std::int64_t> special_;
  bool numbers_;
  const char* space_ = "";
  bool is_terminal_ = ::isatty(STDOUT_FILENO) == 1;
  PrintableStream stream_;
};

int run(const GenerateJob& job, Group group) {
  struct Stopped {
    int signal;
  };
  const bool first = group.rank() == 0;
  set_up_process(group, Config(), {.quiet = true});
  Clock clock;
  Printer printer(job, first && !job.as_json);
  std::optional<Collected> collected;
  if (first && job.as_json) collected.emplace(job);
  if (first) remove_scratch();
  LoadedModel loaded = load(job.model, group);
  const double ready = clock.lap();
  printer.prompt(job);
  GenerateOptions options{.length = job.length,
                          .temperature = job.temperature,
                          .top_k = job.top_k,
                          .top_p = job.top_p,
                          .seed = static_cast<std::uint64_t>(job.seed),
                          .stop = job.stop};
  double until_first = 0;
  std::int64_t count = 0;
  options.on_token = [&](std::int64_t token) {
    if (count++ == 0) until_first = clock.lap();
    printer.add(token);
    if (collected) collected->add(token);
    if (const int signal = agreed_stop_signal(group)) throw Stopped{signal};
  };
  int signal = 0;
  try {
    loaded.model.generate(job.prompt, options);
  } catch (const Stopped& stopped) {
    signal = stopped.signal;
  }
  const double rest = clock.lap();
  if (collected) {
    Console(true).print(collected->as_json(until_first + rest, signal != 0));
    return signal;
  }
  printer.finish();
  if (!first || job.quiet) return signal;
  const std::string unit = job.model.takes_bytes() ? "byte" : "token";
  const std::string more = count > 1 ? fmt::format("; {} more at {:.1f} {}s/s", with_commas(count - 1),
                                                   static_cast<double>(count - 1) / rest, unit)
                                     : "";
  print_error(fmt::format("zero generate: loaded in {}; {} of prompt and the first one in {}{}\n", duration(ready),
                          counted(static_cast<std::int64_t>(job.prompt.size()), unit), duration(until_first), more));
  return signal;
}

int run_generate(const GenerateArguments& arguments) {
  RankJob job{.command = "generate", .ranks = arguments.ranks, .as_rank = arguments.as_rank};
  job.prepare = [&](const fs::path& scratch) {
    // A prompt may be no UTF-8.
    return nlohmann::json(prepare(arguments, scratch)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  job.run = [](const std::string& text, Group group) {
    return run(nlohmann::json::parse(text).get<GenerateJob>(), std::move(group));
  };
  return run_job(job);
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<GenerateArguments>();
  GenerateArguments& to = *arguments;
  const std::vector<OptionRow> own = {
      {"--prompt", &to.prompt, Values{"TEXT"}, "what is continued; \\n is a line end, - standard input"},
      {.names = "--tokens",
       .to = &to.tokens,
       .values = {"N,...", whole().check},
       .help = "tokens in place of text: numbers in, numbers out",
       .excludes = "--prompt"},
      {"--length", &to.length, whole(1), "tokens to add at most (bytes, of models of bytes)"},
      {"--temperature", &to.temperature, real(0, 100), "0: always the likeliest token; larger: more varied"},
      {"--top-k", &to.top_k, whole(), "only among so many likeliest tokens; 0: among all"},
      {"--top-p", &to.top_p, real(1e-6, 1), "of these, only the likeliest that together have this probability"},
      {"--seed", &to.seed, whole(), "of the choices; the same seed gives the same text"},
      {"-q,--quiet", &to.quiet, Values{}, "only the text"},
      {"--json", &to.json, Values{}, "one JSON object at the end: prompt and text, tokens, seconds"}};
  add_model_command(*app.add_subcommand("generate", "continue a text with a trained model"), to,
                    "processes that share the parameters (ZeRO stage 3)", own,
                    [arguments, &exit_code] { exit_code = run_generate(*arguments); });
}

}  // namespace zero::app
