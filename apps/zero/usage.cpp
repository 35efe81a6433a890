#include "usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>

#include "colour.h"
#include "zero/errors.h"

namespace zero::app {
namespace {

/// Insertions, deletions and replacements of one character between two words; neighbours swapped count once.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

}  // namespace

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  std::string nearest;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t d = distance(word, name);
    if (d < least) least = d, nearest = name;
  }
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

namespace {

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

/// The innermost command that was named, and its name: "zero ckpt prune".
std::pair<const CLI::App*, std::string> chosen_command(const CLI::App& app) {
  const CLI::App* chosen = &app;
  std::string name = app.get_name();
  for (auto named = chosen->get_subcommands(); !named.empty(); named = chosen->get_subcommands()) {
    chosen = named.front();
    name += " " + chosen->get_name();
  }
  return {chosen, name};
}

std::string unknown_argument(const CLI::App& command, const std::string& name, const std::string& argument) {
  if (argument.starts_with("-")) {
    const std::string option = argument.substr(0, argument.find('='));
    return fmt::format("{} has no option '{}'{}", name, option, did_you_mean(option, options_of(command)));
  }
  const auto commands = commands_of(command);
  if (commands.empty()) return fmt::format("{} takes no argument '{}'", name, argument);
  return fmt::format("there is no command '{} {}'{}; want {}", name, argument, did_you_mean(argument, commands),
                     fmt::join(commands, ", "));
}

}  // namespace

std::vector<std::string> with_help(const CLI::App& app, std::vector<std::string> arguments) {
  if (arguments.empty()) return {"--help"};
  if (arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  const CLI::App* command = &app;
  for (const std::string& word : arguments) {
    const auto commands = commands_of(*command);
    if (std::find(commands.begin(), commands.end(), word) == commands.end()) return arguments;
    command = command->get_subcommand(word);
  }
  arguments.push_back("--help");
  return arguments;
}

namespace {

constexpr std::size_t kColumns = 80, kTextColumn = 26;

/// `text` in lines of at most kColumns from column `indent` on; the first one begins at column `begin`.
std::string wrapped(const std::string& text, std::size_t begin, std::size_t indent) {
  std::string lines;
  std::size_t column = begin;
  if (begin + 1 > indent) lines += "\n" + std::string(indent, ' '), column = indent;
  if (begin + 1 <= indent) lines += std::string(indent - begin, ' '), column = indent;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (column > indent && column + 1 + word.size() > kColumns)
      lines += "\n" + std::string(indent, ' '), column = indent;
    if (column > indent) lines += " ", ++column;
    lines += word;
    column += word.size();
  }
  return lines + "\n";
}

/// `text` with the word before its first colon, if that is `head`, as a heading.
std::string with_painted_head(std::string text, const std::string& head) {
  const auto at = text.find(head + ":");
  if (at != std::string::npos) text.replace(at, head.size() + 1, painted(Tone::kHead, head + ":"));
  return text;
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    return with_painted_head(CLI::Formatter::make_group(group, is_positional, std::move(options)), group);
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return with_painted_head(CLI::Formatter::make_usage(app, std::move(name)), "Usage");
  }
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const override {
    return with_painted_head(CLI::Formatter::make_subcommands(app, mode), "Subcommands");
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string type =
        option->get_items_expected_max() == 0 || is_positional ? "" : " " + option->get_type_name();
    std::string text = option->get_description();
    if (option->get_required()) text += " (required)";
    if (!option->get_default_str().empty()) text += " (default: " + option->get_default_str() + ")";
    const std::string name = "  " + (is_positional ? option->get_single_name() : option->get_name(false, true)) + type;
    return name + wrapped(text, name.size(), kTextColumn);
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    const std::string name = "  " + sub->get_name();
    return name + wrapped(sub->get_description(), name.size(), kTextColumn);
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

std::vector<std::string> with_program_marked(const CLI::App& command, std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front() != command.get_name()) return arguments;
  for (auto word = arguments.begin() + 1; word != arguments.end(); ++word) {
    if (*word == "--") break;
    if (!word->starts_with("-")) {
      arguments.insert(word, "--");
      break;
    }
    const CLI::Option* const option = command.get_option_no_throw(word->substr(0, word->find('=')));
    if (option == nullptr) throw ConfigError(unknown_argument(command, "zero " + command.get_name(), *word));
    if (word->find('=') == std::string::npos && option->get_items_expected_max() > 0 && word + 1 != arguments.end())
      ++word;
  }
  return arguments;
}

namespace {

/// `said`: "A excludes B".
std::string two_that_exclude(const std::string& said, const std::string& name) {
  constexpr std::string_view kExcludes = " excludes ";
  const std::size_t at = said.find(kExcludes);
  if (at == std::string::npos) return said;
  std::string first = said.substr(0, at), second = said.substr(at + kExcludes.size());
  const auto goes_on = [](const std::string& option) { return option == "--resume" || option == "--restart"; };
  if (goes_on(second)) first.swap(second);
  if (goes_on(first) && !goes_on(second)) {
    return fmt::format(
        "{} excludes {}: the run keeps what it was started with. For another, start a new run: `{} {} ...`", second,
        first, name, second);
  }
  return fmt::format("{} excludes {}: give one of them", first, second);
}

}  // namespace

std::string explain(const CLI::ParseError& error, const CLI::App& app, const std::vector<std::string>& arguments) {
  const auto [command, name] = chosen_command(app);
  const std::string help = fmt::format("\nTry `{} --help`.", name);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> left = command->remaining();
    // In the order in which they were typed; an option before a word, which may be its value.
    const auto is_left = [&](const std::string& word) {
      return std::find(left.begin(), left.end(), word) != left.end();
    };
    auto at = std::find_if(arguments.begin(), arguments.end(),
                           [&](const std::string& word) { return word.starts_with("-") && is_left(word); });
    if (at == arguments.end()) at = std::find_if(arguments.begin(), arguments.end(), is_left);
    if (at != arguments.end()) return unknown_argument(*command, name, *at) + help;
  }
  // A word where the name of a command has to stand.
  const auto words = static_cast<std::size_t>(std::count(name.begin(), name.end(), ' '));
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !commands_of(*command).empty() &&
      arguments.size() > words) {
    return unknown_argument(*command, name, arguments[words]) + help;
  }
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) return two_that_exclude(error.what(), name) + help;
  return error.what() + help;
}

}  // namespace zero::app
