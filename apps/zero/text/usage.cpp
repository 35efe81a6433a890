#include "text/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <optional>
#include <ranges>
#include <string_view>
#include <utility>

#include "text/help_text.h"
#include "text/near_names.h"
#include "text/text_format.h"
#include "zero/errors.h"

namespace zero::app {
namespace {

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
std::pair<CLI::App*, std::string> chosen_command(CLI::App& app) {
  CLI::App* chosen = &app;
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
  auto commands = commands_of(command);
  if (command.get_parent() == nullptr) commands.emplace_back("help");
  if (commands.empty()) return fmt::format("{} takes no argument '{}'", name, argument);
  const std::string near = did_you_mean(argument, commands);
  return fmt::format("there is no command '{} {}'{}", name, argument,
                     near.empty() ? fmt::format("; want {}", fmt::join(commands, ", ")) : near);
}

std::string where_help_is(const std::string& name) { return fmt::format("\nTry `{} --help`.", name); }

/// "PATH TO": what stands behind a command's name.
std::string positionals_of(const CLI::App& command) {
  std::string names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) continue;
    names += " ";
    for (const char c : option->get_single_name())
      names += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return names;
}

/// Of the options that were given, the first that does not go with another one.
std::string two_that_exclude(const CLI::App& command, const std::string& name) {
  std::string first, second;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || !first.empty()) continue;
    for (const CLI::Option* other : option->get_excludes()) {
      if (other->count() == 0) continue;
      first = option->get_name(), second = other->get_name();
      break;
    }
  }
  const auto goes_on = [](const std::string& option) { return option == "--resume" || option == "--restart"; };
  if (goes_on(second)) first.swap(second);
  if (goes_on(first) && !goes_on(second)) {
    return fmt::format(
        "{} excludes {}: the run keeps what it was started with. For another, start a new run: `{} {} ...`", second,
        first, name, second);
  }
  return fmt::format("{} excludes {}: give one of them", first, second);
}

/// What is wrong, and the place of the word at which it is.
struct Problem {
  std::size_t at = 0;
  std::string text;
};

/// The first word that gives `option`: "--ranks", "--ranks=2", "-n", "-n2"; where one gives the value that `said` has,
/// that one. npos: none does.
std::size_t place_of(const CLI::Option& option, const std::vector<std::string>& arguments,
                     const std::string& said = "") {
  const auto gives_it = [&](const std::string& word) {
    const auto is_long = [&](const std::string& name) { return word.substr(0, word.find('=')) == "--" + name; };
    const auto is_short = [&](const std::string& letter) { return word.starts_with("-" + letter); };
    return std::ranges::any_of(option.get_lnames(), is_long) || std::ranges::any_of(option.get_snames(), is_short);
  };
  const auto has_it = [&](const std::string& word) {
    const auto next = &word + 1 < arguments.data() + arguments.size() ? *(&word + 1) : "";
    const std::string own = word.starts_with("--") ? word.substr(std::min(word.find('='), word.size() - 1) + 1)
                                                   : word.substr(std::min<std::size_t>(2, word.size()));
    return gives_it(word) && said.find("got '" + (own.empty() ? next : own) + "'") != std::string::npos;
  };
  auto at = std::ranges::find_if(arguments, has_it);
  if (at == arguments.end()) at = std::ranges::find_if(arguments, gives_it);
  return at == arguments.end() ? std::string::npos : static_cast<std::size_t>(at - arguments.begin());
}

/// What is wrong with an option's value, with the option as it was typed: by its check, or by its type.
std::string about_value(const CLI::ParseError& error, const CLI::Option& option, const std::string& typed) {
  const std::string name = option.get_name();
  std::string said = error.what();
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr && !option.get_type_name().empty())
    said = fmt::format("{}: got '{}', want {}", name, fmt::join(option.results(), " "), option.get_type_name());
  if (!typed.starts_with("-") || !said.starts_with(name + ":")) return said;
  const std::string as_typed = typed.starts_with("--") ? typed.substr(0, typed.find('=')) : typed.substr(0, 2);
  return as_typed + said.substr(name.size());
}

/// The first option, as they were typed, whose value is refused.
std::optional<Problem> first_refused(const CLI::App& command, const std::vector<std::string>& arguments) {
  std::optional<Problem> first;
  for (CLI::Option* option : command.parse_order()) {
    const std::size_t at = option->get_positional() ? arguments.size() : place_of(*option, arguments);
    if (at == std::string::npos || (first && first->at <= at)) continue;
    try {
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      const std::size_t place = at < arguments.size() ? place_of(*option, arguments, error.what()) : at;
      first = {place, about_value(error, *option, place < arguments.size() ? arguments[place] : "")};
    }
  }
  return first;
}

/// The first word that no command and no option takes.
std::optional<Problem> first_unknown(const CLI::App& command, const std::string& name,
                                     const std::vector<std::string>& arguments) {
  const std::vector<std::string> left = command.remaining();
  // From the back: the same word may stand before, where a command or an option has taken it.
  std::size_t at = arguments.size();
  for (const std::string& word : left | std::views::reverse) {
    const auto end = arguments.begin() + static_cast<std::ptrdiff_t>(at);
    const auto last = std::find(std::make_reverse_iterator(end), arguments.rend(), word);
    if (last != arguments.rend()) at = static_cast<std::size_t>(arguments.rend() - last) - 1;
  }
  if (at < arguments.size()) return Problem{at, unknown_argument(command, name, arguments[at])};
  // "-q5": of a flag and what no letter stands for.
  if (left.empty()) return std::nullopt;
  const auto whole = std::ranges::find_if(arguments, [&](const std::string& word) {
    return word.size() > 2 && word.front() == '-' && word.ends_with(left.front().substr(1));
  });
  if (whole == arguments.end()) return std::nullopt;
  return Problem{static_cast<std::size_t>(whole - arguments.begin()),
                 fmt::format("{} has no option '{}'; {} takes no value", name, *whole, whole->substr(0, 2))};
}

/// A word that gives an option, with the value in it ("--ranks=2", "-n2") or without.
struct TypedOption {
  CLI::Option* option = nullptr;  ///< null: there is none of that name
  std::optional<std::string> value;
};

TypedOption read_option(CLI::App& command, const std::string& word) {
  if (!word.starts_with("-")) return {};
  const bool is_long = word.starts_with("--");
  const std::size_t name_size = is_long ? std::min(word.find('='), word.size()) : std::min<std::size_t>(2, word.size());
  TypedOption typed{command.get_option_no_throw(word.substr(0, name_size)), std::nullopt};
  if (name_size < word.size()) typed.value = word.substr(name_size + (is_long ? 1 : 0));
  return typed;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

/// The first option that wants a value and stands before another option or at the end.
const CLI::Option* without_value(CLI::App& command, const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto [option, value] = read_option(command, words[i]);
    if (option == nullptr || value || !takes_value(*option)) continue;
    if (i + 1 == words.size() || words[i + 1] == "--" || read_option(command, words[i + 1]).option != nullptr)
      return option;
    ++i;
  }
  return nullptr;
}

/// What `error` says is missing, said of this command.
std::string what_is_missing(const CLI::ParseError& error, CLI::App& command, const std::string& name,
                            const std::vector<std::string>& words) {
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const auto options = command.get_options();
    const auto is_missing = [](const CLI::Option* option) { return option->get_required() && option->count() == 0; };
    // A command may need a word that its hidden options replace, which only its callback knows.
    const auto is_left_out = [](const CLI::Option* option) { return option->get_positional() && option->count() == 0; };
    auto found = std::ranges::find_if(options, is_missing);
    if (found == options.end()) found = std::ranges::find_if(options, is_left_out);
    if (found != options.end()) {
      const std::string called = (*found)->get_name();
      return (*found)->get_positional()
                 ? fmt::format("{}: no {} given; want `{}{}`", name, called, name, positionals_of(command))
                 : fmt::format("{}: {} is needed: {}", name, called, (*found)->get_description());
    }
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (const CLI::Option* option = without_value(command, words))
      return fmt::format("{}: no value given; want {}", option->get_name(), option->get_type_name());
  }
  return error.what();
}

/// What is wrong with the values of options, none of which is parsed yet; empty: nothing.
std::string problem_with_values(CLI::App& command, const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    auto [option, value] = read_option(command, words[i]);
    if (option == nullptr || !takes_value(*option)) continue;
    const std::string typed = words[i];
    if (!value && i + 1 < words.size()) value = words[++i];
    if (!value) continue;
    try {
      option->add_result(*value);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      return about_value(error, *option, typed);
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> with_program_marked(CLI::App& command, std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front() != command.get_name()) return arguments;
  for (auto word = arguments.begin() + 1; word != arguments.end(); ++word) {
    if (*word == "--") break;
    if (!word->starts_with("-")) {
      arguments.insert(word, "--");
      break;
    }
    const auto [option, value] = read_option(command, *word);
    if (option == nullptr || (value && !takes_value(*option))) {
      const std::string name = "zero " + command.get_name();
      const std::string before = problem_with_values(command, {arguments.begin() + 1, word});
      throw ConfigError((before.empty() ? unknown_argument(command, name, *word) : before) + where_help_is(name));
    }
    if (takes_value(*option) && !value && word + 1 != arguments.end()) ++word;
  }
  return arguments;
}

std::string explain(const CLI::ParseError& error, CLI::App& app, const std::vector<std::string>& arguments) {
  const auto [command, name] = chosen_command(app);
  const std::string help = where_help_is(name);
  // Before the name of a command.
  if (const auto before = command == &app ? std::nullopt : first_unknown(app, app.get_name(), arguments))
    return before->text + where_help_is(app.get_name());
  // A word where the name of a command has to stand.
  const auto words = static_cast<std::size_t>(std::count(name.begin(), name.end(), ' '));
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !commands_of(*command).empty()) {
    if (arguments.size() > words) return unknown_argument(*command, name, arguments[words]) + help;
    return fmt::format("{}: no command given; want {}", name, fmt::join(commands_of(*command), ", ")) + help;
  }
  std::optional<Problem> first;
  if (!command->get_prefix_command()) first = first_unknown(*command, name, arguments);
  if (const auto refused = first_refused(*command, arguments); refused && (!first || refused->at < first->at))
    first = refused;
  if (first) return first->text + help;
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) return two_that_exclude(*command, name) + help;
  return what_is_missing(error, *command, name, arguments) + help;
}

}  // namespace zero::app
