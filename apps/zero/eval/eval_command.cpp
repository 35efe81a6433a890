#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "commands.h"
#include "host/rank_job.h"
#include "model/corpus_choice.h"
#include "model/opened_model.h"
#include "model/tokenizer.h"
#include "text/console.h"
#include "text/progress.h"
#include "text/text_format.h"
#include "train/train_loop.h"
#include "zero/errors.h"
#include "zero/lm/evaluation.h"
#include "zero/train.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct EvalArguments : ModelArguments {
  std::string split = "validation";
  TrainOptions text;  ///< what is evaluated, and --seq
  bool as_json = false;
};

/// What the ranks get.
struct EvalJob {
  OpenedModel model;
  std::string corpus_folder, source, split;
  std::string about_text;  ///< what of it is evaluated, for people; empty: nothing to say
  double text_nbytes = 0;  ///< of a token; 0: not known
  std::int64_t seq = 0;
  bool as_json = false;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EvalJob, model, corpus_folder, source, split, about_text, text_nbytes, seq, as_json)

void take_corpus(EvalJob& job, const TrainOptions& text, const CorpusInfo& corpus, const fs::path& source) {
  check_vocabulary(job.model.plan, corpus);
  // A run that was trained so is evaluated so.
  if (const std::int64_t separator = separator_for(job.model.plan, text, corpus); separator >= 0)
    job.model.plan.separator = separator;
  job.corpus_folder = corpus.folder.string();
  job.source = source.string();
  // It is known of the validation split.
  job.text_nbytes = corpus.tokens.nbytes > 1 && job.split == "train" ? 0 : corpus.tokens.text_nbytes;
}

/// Its corpora follow one another in the packed form, whatever their shares.
[[noreturn]] void refuse_mixture(const std::string& source) {
  throw ConfigError(fmt::format("{} is a mixture; evaluate on one of its corpora at a time, with --data", source));
}

/// The text that the run has validated on.
void take_own_text(EvalJob& job) {
  const TrainPlan& plan = job.model.plan;
  if (!job.model.is_run())
    throw ConfigError("there is no text to evaluate on: give a file or folder of text, or of tokens, with --data");
  try {
    const Corpus corpus(plan.corpus_folder, Split::kValidation);
    if (corpus.hash() != plan.corpus_hash) throw IoError("it is another text by now");
    if (!is_packed_well(plan.corpus_folder)) throw IoError("it is damaged");
    if (corpus.sections().size() > 1) refuse_mixture(plan.data);
  } catch (const IoError& error) {
    throw ConfigError(fmt::format(
        "the text of the run is not where it was packed ({}); give it, or another, with --data", error.what()));
  }
  job.corpus_folder = plan.corpus_folder;
  job.source = plan.data.empty() ? "the text of the run" : plan.data;
  job.text_nbytes = plan.token_nbytes > 1 && job.split == "train" ? 0 : plan.text_nbytes;
}

void take_text(EvalJob& job, const TrainOptions& text) {
  CorpusOptions options = choose_corpus(text.data, text.cache_dir, text.suffixes);
  const fs::path source = options.source;
  if (!options.mixture.empty()) refuse_mixture(source.string());
  if (holds_tokens(source)) return take_corpus(job, text, pack_corpus(options), source);
  if (job.split == "train") throw ConfigError("--split train: text is evaluated as a whole; leave --split away");
  job.split = "all";
  options.folder += "-whole";
  options.validation_fraction = 1;
  if (!job.model.takes_bytes()) {
    const std::string folder = job.model.tokenizer_folder();
    if (!has_tokenizer(folder)) {
      throw ConfigError(
          fmt::format("{}: there is no tokenizer.json to make tokens of text with; give a folder of tokens with --data "
                      "(docs/models.md)",
                      folder.empty() ? "the tokens of the run" : folder));
    }
    options = tokenized(options, folder);
  }
  const CorpusInfo corpus = pack_corpus(options);
  job.about_text = describe_files(corpus);
  if (corpus.files > 1)
    job.about_text = "           duplicates and links count as often as they occur\n" + job.about_text;
  take_corpus(job, text, corpus, source);
}

std::int64_t sequence_length(const OpenedModel& model, std::optional<std::int64_t> wanted) {
  constexpr std::int64_t kMost = 1024;
  const TrainPlan& plan = model.plan;
  const std::int64_t most = plan.model.empty() ? plan.seq : causal_lm_config(plan).max_positions;
  const std::int64_t length = wanted.value_or(model.is_run() ? plan.seq : std::min(most, kMost));
  if (length <= most) return length;
  throw ConfigError(fmt::format("--seq {}: the model is made for {} positions", length, with_commas(most)));
}

EvalJob prepare(const EvalArguments& arguments) {
  EvalJob job{.model = open_model(arguments), .split = arguments.split, .as_json = arguments.as_json};
  job.seq = sequence_length(job.model, arguments.text.seq);
  const bool own = arguments.text.data.empty();
  const auto needs_text = [&](bool is_given, const std::string& option) {
    if (own && is_given)
      throw ConfigError(option + ": is of a text that is given with --data; of its own the run says it itself");
  };
  needs_text(arguments.text.separate_documents, "--separate-documents");
  needs_text(arguments.text.separator.has_value(), "--separator");
  needs_text(!arguments.text.suffixes.empty(), "--suffix");
  own ? take_own_text(job) : take_text(job, arguments.text);
  return job;
}

void print_result(const EvalJob& job, const EvaluationResult& result, int ranks, double seconds) {
  const double perplexity = std::exp(result.loss);
  const double bits_per_byte = job.text_nbytes > 0 ? to_bits(result.loss) / job.text_nbytes : 0;
  if (job.as_json) {
    nlohmann::ordered_json text = {{"model", job.model.is_run() ? job.model.checkpoint : job.model.plan.init_from},
                                   {"text", job.source},
                                   {"split", job.split},
                                   {"tokens", result.targets},
                                   {"seq", job.seq},
                                   {"dtype", job.model.dtype},
                                   {"loss", result.loss},
                                   {"perplexity", perplexity}};
    if (bits_per_byte > 0) text["bits_per_byte"] = bits_per_byte;
    text["seconds"] = seconds;
    text["ranks"] = ranks;
    return Console(true).print(text.dump(2) + "\n");
  }
  const bool is_bytes = job.text_nbytes == 1;
  const char* const unit = is_bytes ? "byte" : "token";
  Console(true).print(
      fmt::format("loss       {:.5f} nats a {}; perplexity {:.4f}{}\n"
                  "           of {} {}s in sequences of {}, in {}: {} {}s/s\n",
                  result.loss, unit, perplexity,
                  bits_per_byte > 0 ? fmt::format("; {:.4f} bits per byte of text", bits_per_byte) : "",
                  with_commas(result.targets), unit, job.seq, duration(seconds),
                  human_count(static_cast<double>(result.targets) / seconds), unit));
}

int run(const EvalJob& job, Group group) {
  const bool first = group.rank() == 0;
  set_up_process(group, Config(), {.quiet = true});
  if (first) remove_scratch();
  const Console console(first && !job.as_json);
  Progress progress(console, 0, 0);
  const Corpus corpus(job.corpus_folder, job.split == "train" ? Split::kTrain : Split::kValidation);
  console.print(describe(job.model));
  console.print(fmt::format("text       {}\n{}", short_path(job.source), job.about_text));
  progress.busy("loading the model ...");
  LoadedModel loaded = load(job.model, group);
  Clock clock;
  const EvaluationResult result = evaluate(
      corpus, job.seq, group,
      [&](const auto& tokens, const auto& targets) { return loaded.model.loss(tokens, targets); },
      [&](double share) { progress.busy(fmt::format("{:.0f} % of the text", 100 * share)); });
  progress.finish();
  if (result.stop_signal != 0) {
    console.print(fmt::format("stopped after {} tokens; so far:\n", with_commas(result.targets)));
  }
  if (first) print_result(job, result, group.size(), clock.seconds());
  return result.stop_signal;
}

int run_eval(const EvalArguments& arguments) {
  RankJob job{.command = "eval", .ranks = arguments.ranks, .as_rank = arguments.as_rank};
  job.prepare = [&](const fs::path&) { return nlohmann::json(prepare(arguments)).dump(); };
  job.run = [](const std::string& text, Group group) {
    return run(json::parse(text).get<EvalJob>(), std::move(group));
  };
  return run_job(job);
}

}  // namespace

void add_eval_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand("eval", "loss and perplexity of a trained model on a text");
  std::vector<OptionRow> own = pick(
      train_rows(arguments->text),
      {{"--data", "file or folder of text, all of it; or folder of tokens (default: the validation text of the run)"},
       {"--suffix"},
       {"--cache-dir"},
       {"--seq", "tokens that are predicted from one another (default: the run's; of a folder up to 1024)"},
       {"--separate-documents"},
       {"--separator"}});
  own.push_back({"--split", &arguments->split, choice("validation|train"), "of tokens, or of the run's text"});
  own.push_back({"--json", &arguments->as_json, Values{}, "one JSON object in place of lines"});
  add_model_command(*command, *arguments, "processes that share parameters and text (ZeRO stage 3)", std::move(own),
                    [arguments, &exit_code] { exit_code = run_eval(*arguments); });
}

}  // namespace zero::app
