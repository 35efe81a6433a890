#include "text/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "text/colour.h"
#include "text/text_format.h"
#include "zero/errors.h"
#include "zero/lm/models.h"
#include "zero/nearest_name.h"

namespace zero::app {
namespace {

/// Commands and options by names that other programs have taught, and ours.
constexpr OtherName kNamesElsewhere[] = {{"checkpoint", "ckpt"},
                                         {"evaluate", "eval"},
                                         {"sample", "generate"},
                                         {"benchmark", "bench"},
                                         {"environment", "doctor"},
                                         {"rm", "prune"},
                                         {"ls", "list"},
                                         {"show", "inspect"},
                                         {"export", "ckpt"},
                                         {"suggest", "plan"},
                                         {"estimate", "plan"},
                                         {"finetune", "train"},
                                         {"fine-tune", "train"},
                                         {"list", "runs"},
                                         {"--learning-rate", "--lr"},
                                         {"--gpus", "--device"},
                                         {"--num-gpus", "--ranks"},
                                         {"--nproc-per-node", "--ranks"},
                                         {"--nproc", "--ranks"},
                                         {"--world-size", "--ranks"},
                                         {"--workers", "--ranks"},
                                         {"--processes", "--ranks"},
                                         {"--nnodes", "--hostfile"},
                                         {"--deepspeed", "--config"},
                                         {"--deepspeed-config", "--config"},
                                         {"--max-steps", "--steps"},
                                         {"--epochs", "--steps"},
                                         {"--num-train-epochs", "--steps"},
                                         {"--save-every", "--checkpoint-every"},
                                         {"--save-steps", "--checkpoint-every"},
                                         {"--eval-steps", "--eval-every"},
                                         {"--resume-from-checkpoint", "--resume"},
                                         {"--output-dir", "--run-dir"},
                                         {"--bf16", "--dtype"},
                                         {"--fp16", "--dtype"},
                                         {"--precision", "--dtype"},
                                         {"--gradient-accumulation-steps", "--batch-size"},
                                         {"--train-batch-size", "--batch-size"},
                                         {"--per-device-train-batch-size", "--micro-batch"},
                                         {"--tokens", "--seq"},
                                         {"--context-length", "--seq"},
                                         {"--stage", "--modes"},
                                         {"--zero-stage", "--stage"},
                                         {"--max-tokens", "--length"},
                                         {"--max-new-tokens", "--length"},
                                         {"--gradient-checkpointing", "--recompute"},
                                         {"--activation-checkpointing", "--recompute"},
                                         {"--checkpointing", "--recompute"},
                                         {"--all-files", "--suffix"},
                                         {"--device", "--gpu-memory"}};

/// "--ranks", "-n" of every option that is shown.
std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::vector<const CLI::Option*> arguments_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

CLI::App* command_below(const CLI::App& app, const std::string& name) {
  const auto named = app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
  return named.empty() ? nullptr : const_cast<CLI::App*>(named.front());
}

/// A word that gives an option, with the value in it ("--ranks=2", "-n2") or without.
struct Given {
  std::string name;
  std::optional<std::string> value;
  CLI::Option* option = nullptr;  ///< null: there is none of that name

  bool takes_value() const { return option->get_items_expected_max() > 0; }
};

bool is_number(const std::string& word) {
  return word.size() > 1 && (std::isdigit(static_cast<unsigned char>(word[1])) != 0 || word[1] == '.');
}

bool is_option(const std::string& word) { return word.size() > 1 && word.front() == '-' && !is_number(word); }

Given read_option(CLI::App& command, const std::string& word) {
  const bool is_long = word.starts_with("--");
  const std::size_t end = is_long ? std::min(word.find('='), word.size()) : std::min<std::size_t>(2, word.size());
  Given given{.name = word.substr(0, end), .value = {}, .option = nullptr};
  if (is_option(word)) given.option = command.get_option_no_throw(given.name);
  if (end < word.size()) given.value = word.substr(end + (is_long ? 1 : 0));
  return given;
}

/// What is wrong with a value, or with one of a list; empty: nothing.
std::string problem_with(CLI::Option& option, const std::string& value) {
  CLI::Validator* check = nullptr;
  try {
    check = option.get_validator(0);
  } catch (const CLI::OptionNotFound&) {
    return "";
  }
  std::istringstream list(value);
  std::string part;
  if (option.get_delimiter() == '\0' || value.empty()) return (*check)(part = value);
  while (std::getline(list, part, option.get_delimiter())) {
    if (std::string problem = (*check)(part); !problem.empty()) return problem;
  }
  return "";
}

/// Reads the words of a command line in their order.
class Reader {
 public:
  Reader(CLI::App& app, std::vector<std::string> words)
      : command_(&app), name_(app.get_name()), words_(std::move(words)) {}

  std::vector<std::string> checked() {
    for (at_ = 0; at_ < words_.size() && words_[at_] != "--"; ++at_) {
      if (words_[at_] == "--help" || words_[at_] == "-h") return words_;
      if (is_option(words_[at_])) {
        read_option_and_value();
      } else if (!commands_of(*command_).empty()) {
        enter_command();
      } else if (command_->get_prefix_command()) {
        words_.insert(words_.begin() + static_cast<std::ptrdiff_t>(at_), "--");
        return words_;
      } else if (++arguments_ > arguments_of(*command_).size()) {
        refuse(fmt::format("{} takes no argument '{}'", name_, words_[at_]));
      }
    }
    const bool is_version = !words_.empty() && (words_[0] == "--version" || words_[0] == "-V");
    if (const auto commands = commands_of(*command_); !commands.empty() && !is_version)
      refuse(fmt::format("{}: no command given; want {}", name_, fmt::join(commands, ", ")));
    return words_;
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    throw ConfigError(fmt::format("{}\nTry `{} --help`.", problem, name_));
  }

  void enter_command() {
    const std::string& word = words_[at_];
    if (CLI::App* const below = command_below(*command_, word)) {
      command_ = below;
      name_ += " " + word;
      return;
    }
    auto commands = commands_of(*command_);
    if (command_->get_parent() == nullptr) commands.emplace_back("help");
    const std::string near = did_you_mean(word, commands);
    refuse(fmt::format("there is no command '{} {}'{}", name_, word,
                       near.empty() ? fmt::format("; want {}", fmt::join(commands, ", ")) : near));
  }

  void read_option_and_value() {
    const Given given = read_option(*command_, words_[at_]);
    if (given.option == nullptr) {
      refuse(
          fmt::format("{} has no option '{}'{}", name_, given.name, did_you_mean(given.name, options_of(*command_))));
    }
    if (!given.takes_value()) {
      const bool is_letter = !given.name.starts_with("--");  // after which other letters may follow: "-qv"
      if (is_letter && given.value && read_option(*command_, "-" + *given.value).option == nullptr)
        refuse(fmt::format("{} has no option '{}'; {} takes no value", name_, words_[at_], given.name));
      return;
    }
    const bool may_be_left_out = given.option->get_items_expected_min() == 0;
    if (given.value) {
      check(given, *given.value);
    } else if (has_value_next()) {
      check(given, words_[++at_]);
    } else if (!may_be_left_out) {
      refuse(fmt::format("{}: no value given; want {}", given.name, given.option->get_type_name()));
    }
    const bool has_more = given.option->get_items_expected_max() > 1 && given.option->get_allow_extra_args();
    while (has_more && has_value_next()) check(given, words_[++at_]);
  }

  bool has_value_next() const {
    return at_ + 1 < words_.size() && words_[at_ + 1] != "--" &&
           read_option(*command_, words_[at_ + 1]).option == nullptr;
  }

  void check(const Given& given, const std::string& value) const {
    if (const std::string problem = problem_with(*given.option, value); !problem.empty())
      refuse(fmt::format("{}: {}", given.name, problem));
  }

  CLI::App* command_;
  std::string name_;  ///< "zero ckpt prune"
  std::vector<std::string> words_;
  std::size_t at_ = 0, arguments_ = 0;
};

/// What an option or an argument offers: "fp32|bf16|fp16".
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string names = option.get_type_name();
  if (names == "PRESET") return gpt_presets();
  return names.find('|') == std::string::npos ? std::vector<std::string>() : CLI::detail::split(names, '|');
}

}  // namespace

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& names) {
  const auto is_elsewhere = [&](const OtherName& other) { return other.first == name; };
  // Nothing is near a letter.
  if (name.size() == 2 && name.front() == '-' && std::ranges::none_of(kNamesElsewhere, is_elsewhere)) return "";
  const std::string_view near = nearest_name(name, {names.begin(), names.end()}, kNamesElsewhere);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

std::vector<std::string> with_help(const CLI::App& app, std::vector<std::string> words) {
  if (words.empty()) return {"--help"};
  if (words.front() != "help") return words;
  std::vector<std::string> asked;
  const CLI::App* command = &app;
  for (std::size_t i = 1; i < words.size() && !commands_of(*command).empty(); ++i) {
    if (words[i] == "help") continue;
    asked.push_back(words[i]);
    command = command_below(*command, words[i]);
    if (command == nullptr) return asked;  // for the error
  }
  asked.emplace_back("--help");
  return asked;
}

std::vector<std::string> checked_words(CLI::App& app, std::vector<std::string> words) {
  return Reader(app, std::move(words)).checked();
}

std::string explain(const CLI::ParseError& error, const CLI::App& app) {
  std::string name = app.get_name();
  for (auto named = app.get_subcommands(); !named.empty(); named = named.front()->get_subcommands())
    name += " " + named.front()->get_name();
  return fmt::format("{}: {}\nTry `{} --help`.", name, error.what(), name);
}

std::vector<std::string> completions(CLI::App& app, const std::vector<std::string>& typed) {
  std::vector<std::string> words = {""};
  std::size_t shown_from = 0;  // of the last word: bash makes words of "="
  for (std::size_t i = 0; i < typed.size(); ++i) {
    const bool is_joined = i > 0 && (typed[i] == "=" || typed[i - 1] == "=");
    if (!is_joined) words.emplace_back();
    words.back() += typed[i];
    shown_from = is_joined ? words.back().find('=') + 1 : 0;
  }
  const std::string last = words.back();
  const auto matching = [&](std::vector<std::string> found) {
    std::erase_if(found, [&](const std::string& one) { return !one.starts_with(last); });
    for (std::string& one : found) one.erase(0, shown_from);
    return found;
  };
  CLI::App* command = &app;
  for (std::size_t i = 1; i + 1 < words.size(); ++i) {
    if (words[i] == "--") return {};
    if (is_option(words[i])) {
      const Given given = read_option(*command, words[i]);
      const bool is_followed = given.option != nullptr && given.takes_value() && !given.value;
      if (is_followed && i + 2 == words.size()) return matching(values_of(*given.option));
      if (is_followed) ++i;
    } else if (!commands_of(*command).empty() && (i > 1 || words[i] != "help")) {
      command = command_below(*command, words[i]);
      if (command == nullptr) return {};
    } else if (command->get_prefix_command()) {
      return {};  // behind a program
    }
  }
  if (const Given given = read_option(*command, last); given.option != nullptr && given.value) {
    std::vector<std::string> values = values_of(*given.option);
    for (std::string& value : values) value.insert(0, given.name + "=");
    return matching(std::move(values));
  }
  std::vector<std::string> found = commands_of(*command);
  if (command == &app) found.emplace_back("help");
  for (const CLI::Option* argument : arguments_of(*command))
    std::ranges::move(values_of(*argument), std::back_inserter(found));
  if (last.starts_with("-") || arguments_of(*command).empty())
    std::ranges::move(options_of(*command), std::back_inserter(found));
  return matching(std::move(found));
}

namespace {

constexpr std::size_t kTextColumn = 26;

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::istringstream plain(CLI::Formatter::make_help(app, std::move(name), mode));
    std::string text;
    for (std::string line; std::getline(plain, line); text += line + '\n') {
      const std::size_t colon = line.find(':');
      const bool is_heading = colon + 1 == line.size() || line.starts_with("Usage:");
      if (is_heading && !line.starts_with(" "))
        line = painted(Tone::kHead, line.substr(0, colon + 1)) + line.substr(colon + 1);
    }
    return text;
  }
  std::string make_description(const CLI::App* app) const override { return wrapped("", app->get_description(), 0); }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const bool has_type = !is_positional && option->get_items_expected_max() > 0;
    std::string text = option->get_description();
    if (option->get_required()) text += " (required)";
    if (!option->get_default_str().empty()) text += " (default: " + option->get_default_str() + ")";
    return wrapped("  " + (is_positional ? option->get_single_name() : option->get_name(false, true)) +
                       (has_type ? " " + option->get_type_name() : ""),
                   text, kTextColumn);
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    return wrapped("  " + sub->get_name(), sub->get_description(), kTextColumn);
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

}  // namespace zero::app
