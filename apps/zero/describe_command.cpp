#include "describe_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "console.h"
#include "host_facts.h"

namespace zero::app {
namespace {

struct OptionText {
  std::vector<std::string> names;  ///< "-n", "--ranks"
  std::string value;               ///< "N"; empty: a flag
  std::string help;
};

/// A command as it is typed ("ckpt prune"), with what may follow.
struct CommandText {
  std::string name, help, footer;
  std::vector<OptionText> options;
  std::vector<OptionText> positionals;
  std::vector<std::string> commands;
};

CommandText text_of(const CLI::App& command, const std::string& name) {
  CommandText text{name, command.get_description(), command.get_footer(), {}, {}, {}};
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) {
      text.positionals.push_back({{option->get_single_name()}, option->get_type_name(), option->get_description()});
      continue;
    }
    if (option->get_group().empty()) continue;  // hidden
    OptionText one{{}, option->get_items_expected_max() == 0 ? "" : option->get_type_name(), option->get_description()};
    for (const std::string& letter : option->get_snames()) one.names.push_back("-" + letter);
    for (const std::string& word : option->get_lnames()) one.names.push_back("--" + word);
    text.options.push_back(std::move(one));
  }
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
    text.commands.push_back(sub->get_name());
  return text;
}

void add_all(const CLI::App& command, const std::string& name, std::vector<CommandText>& all) {
  all.push_back(text_of(command, name));
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
    add_all(*sub, name.empty() ? sub->get_name() : name + " " + sub->get_name(), all);
}

std::vector<CommandText> all_commands(const CLI::App& app) {
  std::vector<CommandText> all;
  add_all(app, "", all);
  return all;
}

std::string words_after(const CommandText& command) {
  std::vector<std::string> words = command.commands;
  for (const OptionText& option : command.options) words.insert(words.end(), option.names.begin(), option.names.end());
  return fmt::format("{}", fmt::join(words, " "));
}

std::string bash_completion(const CLI::App& app) {
  std::string cases;
  for (const CommandText& command : all_commands(app))
    cases += fmt::format("    '{}') words='{}' ;;\n", command.name, words_after(command));
  return "_zero() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} command='' words='' word\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
         "    case $word in -*) break ;; *) command=${command:+$command }$word ;; esac\n"
         "  done\n"
         "  case $command in\n" +
         cases +
         "    launch*) COMPREPLY=($(compgen -c -- \"$cur\")); return ;;\n"
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "}\n"
         "complete -o default -F _zero zero\n";
}

std::string zsh_completion(const CLI::App& app) {
  return "#compdef zero\nautoload -U +X bashcompinit && bashcompinit\n" + bash_completion(app);
}

std::string quoted_for_fish(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return quoted + "'";
}

std::string fish_completion(const CLI::App& app) {
  std::string text;
  for (const CommandText& command : all_commands(app)) {
    std::string when = "__fish_use_subcommand";
    if (!command.name.empty()) {
      when.clear();
      std::string_view rest = command.name;
      while (!rest.empty()) {
        const std::size_t space = rest.find(' ');
        when += fmt::format("{}__fish_seen_subcommand_from {}", when.empty() ? "" : "; and ", rest.substr(0, space));
        rest = space == std::string_view::npos ? "" : rest.substr(space + 1);
      }
    }
    for (const std::string& name : command.commands)
      text += fmt::format("complete -c zero -n '{}' -a {}\n", when, name);
    for (const OptionText& option : command.options) {
      text += fmt::format("complete -c zero -n '{}'", when);
      for (const std::string& name : option.names)
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      text += fmt::format("{} -d {}\n", option.value.empty() ? "" : " -r", quoted_for_fish(option.help));
    }
  }
  return text;
}

/// For troff: a dot or a quote at the begin of a line would be a request.
std::string for_man(std::string_view text) {
  std::string safe;
  bool at_begin = true;
  for (const char c : text) {
    if (at_begin && (c == '.' || c == '\'')) safe += "\\&";
    if (c == '\\') {
      safe += "\\e";
    } else if (c == '-') {
      safe += "\\-";
    } else {
      safe += c;
    }
    at_begin = c == '\n';
  }
  return safe;
}

std::string man_page(const CLI::App& app) {
  std::string text = fmt::format(".TH ZERO 1 \"\" \"zerotorch {}\"\n.SH NAME\nzero \\- {}\n.SH SYNOPSIS\n",
                                 zerotorch_version(), for_man(app.get_description()));
  const auto all = all_commands(app);
  for (const CommandText& command : all) {
    if (!command.commands.empty()) continue;
    text += fmt::format(".B zero {}\n[\\fIoptions\\fR]", for_man(command.name));
    for (const OptionText& one : command.positionals) text += fmt::format(" \\fI{}\\fR", for_man(one.names.front()));
    text += "\n.br\n";
  }
  text += ".SH COMMANDS\n";
  for (const CommandText& command : all) {
    if (command.name.empty()) continue;
    text += fmt::format(".SS zero {}\n{}\n", for_man(command.name), for_man(command.help));
    for (const OptionText& one : command.positionals)
      text += fmt::format(".TP\n\\fI{}\\fR\n{}\n", for_man(one.names.front()), for_man(one.help));
    for (const OptionText& one : command.options) {
      text += fmt::format(".TP\n\\fB{}\\fR {}\n{}\n", for_man(fmt::format("{}", fmt::join(one.names, ", "))),
                          for_man(one.value), for_man(one.help));
    }
    if (!command.footer.empty()) text += fmt::format(".PP\n.nf\n{}\n.fi\n", for_man(command.footer));
  }
  return text;
}

}  // namespace

void add_describe_commands(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion", "print completions for a shell: bash, zsh or fish");
  completion->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->footer(
      "Examples:\n"
      "  eval \"$(zero completion bash)\"                               in ~/.bashrc\n"
      "  zero completion fish > ~/.config/fish/completions/zero.fish");
  completion->callback([&app, shell] {
    Console(true).print(*shell == "bash"  ? bash_completion(app)
                        : *shell == "zsh" ? zsh_completion(app)
                                          : fish_completion(app));
  });
  app.add_subcommand("man", "print the manual page")->callback([&app] { Console(true).print(man_page(app)); });
}

}  // namespace zero::app
