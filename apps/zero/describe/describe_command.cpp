#include "describe/describe_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "host/host_facts.h"
#include "text/console.h"
#include "text/number_check.h"
#include "zero/lm/models.h"

namespace zero::app {
namespace {

struct OptionText {
  std::vector<std::string> names;  ///< "-n", "--ranks"
  std::string value;               ///< "N"; empty: a flag
  std::string help;
  bool is_needed = false;
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
      text.positionals.push_back(
          {{option->get_single_name()}, option->get_type_name(), option->get_description(), option->get_required()});
      continue;
    }
    if (option->get_group().empty()) continue;  // hidden
    OptionText one{{},
                   option->get_items_expected_max() == 0 ? "" : option->get_type_name(),
                   option->get_description(),
                   option->get_required()};
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

/// "fp32 bf16 fp16" of "fp32|bf16|fp16"; empty where there is no such list.
std::string values_of(const OptionText& option) {
  if (option.value == "PRESET") return fmt::format("{}", fmt::join(gpt_presets(), " "));
  if (option.value.find('|') == std::string::npos) return "";
  std::string values = option.value;
  std::ranges::replace(values, '|', ' ');
  return values;
}

/// What may follow the command, without its options.
std::string words_after(const CommandText& command) {
  std::vector<std::string> words = command.commands;
  for (const OptionText& one : command.positionals) {
    if (const std::string values = values_of(one); !values.empty()) words.push_back(values);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string options_of(const CommandText& command) {
  std::vector<std::string> words;
  for (const OptionText& option : command.options) words.insert(words.end(), option.names.begin(), option.names.end());
  return fmt::format("{}", fmt::join(words, " "));
}

/// "'train --dtype'|'train --type'".
std::string option_pattern(const CommandText& command, const OptionText& option) {
  std::vector<std::string> words;
  words.reserve(option.names.size());
  for (const std::string& name : option.names) words.push_back(fmt::format("'{} {}'", command.name, name));
  return fmt::format("{}", fmt::join(words, "|"));
}

std::string with_bars(const std::string& list, const std::string& more) {
  return list.empty() ? more : fmt::format("{}|{}", list, more);
}

std::string bash_completion(const CLI::App& app) {
  std::string known, groups, words, values, with_value, with_file;
  for (const CommandText& command : all_commands(app)) {
    if (!command.name.empty()) known = with_bars(known, fmt::format("'{}'", command.name));
    if (!command.commands.empty()) groups = with_bars(groups, fmt::format("'{}'", command.name));
    const std::string help = command.name.empty() ? "help " : "";
    words += fmt::format("    '{}') words='{}{}' options='{}' ;;\n", command.name, help, words_after(command),
                         options_of(command));
    if (!command.positionals.empty()) with_file = with_bars(with_file, fmt::format("'{}'", command.name));
    for (const OptionText& option : command.options) {
      if (option.value.empty()) continue;
      if (command.name == "launch") with_value = with_bars(with_value, option_pattern(command, option));
      const std::string list = values_of(option);
      values += fmt::format("    {}) {} ;;\n", option_pattern(command, option),
                            list.empty() ? "return" : fmt::format("words='{}'", list));
    }
  }
  // What is to be the name of a file is left to the shell, as is all that we know nothing of: behind the program of
  // zero launch, behind a word that is no command. "--name=value" comes as three words, or as one.
  constexpr const char* kFunction = R"(_zero() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=''
  local words='' options='' prefix='' word next i
  COMPREPLY=()
  if [[ $cur == '=' ]]; then
    cur=''
  elif [[ $before == '=' ]]; then
    before=${{COMP_WORDS[COMP_CWORD-2]}}
  elif [[ $cur == --*=* ]]; then
    before=${{cur%%=*}} prefix=${{cur%%=*}}= cur=${{cur#*=}}
  fi
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    next=${{command:+$command }}$word
    case $next in
      help) ;;
      {known}) command=$next ;;
      *)
        case $command in {groups}) [[ $word == -* ]] || return ;; esac
        break
        ;;
    esac
  done
  if [[ $command == launch ]]; then
    for ((i = 2; i < COMP_CWORD; ++i)); do
      case "launch ${{COMP_WORDS[i]}}" in
        {with_value})
          [[ ${{COMP_WORDS[i+1]}} == '=' ]] && i=$((i + 1))
          i=$((i + 1))
          while [[ ${{COMP_WORDS[i+1]}} == '=' ]]; do i=$((i + 2)); done
          ;;
        'launch --') return ;;
        'launch -'*) ;;
        *) return ;;
      esac
    done
  fi
  case $command in
{words}  esac
  case $command in
    {with_file}) [[ $cur == -* ]] && words="$words $options" ;;
    *) words="$words $options" ;;
  esac
  case "$command $before" in
{values}  esac
  COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$cur"))
  [[ $command == launch && $cur != -* ]] && COMPREPLY+=($(compgen -c -- "$cur"))
  return 0
}}
complete -o default -F _zero zero
)";
  return fmt::format(fmt::runtime(kFunction), fmt::arg("known", known), fmt::arg("groups", groups),
                     fmt::arg("with_value", with_value), fmt::arg("with_file", with_file), fmt::arg("words", words),
                     fmt::arg("values", values));
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
    std::vector<std::string> words = command.commands;
    for (const OptionText& one : command.positionals) {
      if (const std::string values = values_of(one); !values.empty()) words.push_back(quoted_for_fish(values));
    }
    for (const std::string& name : words) text += fmt::format("complete -c zero -n '{}' -a {}\n", when, name);
    for (const OptionText& option : command.options) {
      text += fmt::format("complete -c zero -n '{}'", when);
      for (const std::string& name : option.names)
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      const std::string values = values_of(option);
      const std::string takes = option.value.empty() ? ""
                                : values.empty()     ? " -r"
                                                     : fmt::format(" -x -a {}", quoted_for_fish(values));
      text += fmt::format("{} -d {}\n", takes, quoted_for_fish(option.help));
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
    for (const OptionText& one : command.positionals) {
      const std::string name = fmt::format("\\fI{}\\fR", for_man(one.names.front()));
      text += one.is_needed ? " " + name : " [" + name + "]";
    }
    text += "\n.br\n";
  }
  text += ".B zero help\n[\\fIcommand\\fR]\n.SH COMMANDS\n";
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
      ->check(one_of({"bash", "zsh", "fish"}))
      ->type_name("bash|zsh|fish");
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
