// `zero completion` and `zero man`: what the command line says of itself, for shells and for man.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <string_view>

#include "commands.h"
#include "host/host_facts.h"
#include "text/command_line.h"
#include "text/console.h"
#include "text/options.h"

namespace zero::app {
namespace {

// The program itself says what may come next (completions()); what it knows nothing of is left to the shell.
constexpr const char* kBash = R"(_zero() {
  local IFS=$'\n'
  COMPREPLY=($(zero __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null))
}
complete -o default -F _zero zero
)";
constexpr const char* kZsh = "#compdef zero\nautoload -U +X bashcompinit && bashcompinit\n";
constexpr const char* kFish =
    "complete -c zero -a '(zero __complete (commandline -opc)[2..-1] (commandline -ct | string collect -N "
    "--allow-empty))'\n";

/// For troff: a dot or a quote at the begin of a line would be a request.
std::string for_man(std::string_view text) {
  std::string safe;
  bool at_begin = true;
  for (const char c : text) {
    if (at_begin && (c == '.' || c == '\'')) safe += "\\&";
    if (c == '-' || c == '\\') safe += '\\';
    safe += c == '\\' ? 'e' : c;
    at_begin = c == '\n';
  }
  return safe;
}

void add_synopses(const CLI::App& command, const std::string& name, std::string& text) {
  const auto commands = command.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* below : commands) add_synopses(*below, name + " " + below->get_name(), text);
  if (!commands.empty()) return;
  text += fmt::format(".B {}\n[\\fIoptions\\fR]", for_man(name));
  for (const CLI::Option* one : command.get_options()) {
    if (!one->get_positional()) continue;
    text += fmt::format(fmt::runtime(one->get_required() ? " \\fI{}\\fR" : " [\\fI{}\\fR]"),
                        for_man(one->get_single_name()));
  }
  text += "\n.br\n";
}

void add_command(const CLI::App& command, const std::string& name, std::string& text) {
  if (command.get_parent() != nullptr) {
    text += fmt::format(".SS {}\n{}\n", for_man(name), for_man(command.get_description()));
    for (const CLI::Option* one : command.get_options()) {
      if (one->get_group().empty()) continue;  // hidden
      const bool is_argument = one->get_positional();
      text +=
          fmt::format(".TP\n\\f{}{}\\fR {}\n{}\n", is_argument ? 'I' : 'B', for_man(one->get_name(is_argument, true)),
                      is_argument || one->get_items_expected_max() == 0 ? "" : for_man(one->get_type_name()),
                      for_man(one->get_description()));
    }
    if (!command.get_footer().empty()) text += fmt::format(".PP\n.nf\n{}\n.fi\n", for_man(command.get_footer()));
  }
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; }))
    add_command(*below, name + " " + below->get_name(), text);
}

std::string man_page(const CLI::App& app) {
  std::string text = fmt::format(".TH ZERO 1 \"\" \"zerotorch {}\"\n.SH NAME\nzero \\- {}\n.SH SYNOPSIS\n",
                                 zerotorch_version(), for_man(app.get_description()));
  add_synopses(app, app.get_name(), text);
  text += ".B zero help\n[\\fIcommand\\fR]\n.SH COMMANDS\n";
  add_command(app, app.get_name(), text);
  return text;
}

}  // namespace

void add_describe_commands(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion", "print completions for a shell: bash, zsh or fish");
  add_options(*completion, {{.names = "shell",
                             .to = shell.get(),
                             .values = choice("bash|zsh|fish"),
                             .help = "bash, zsh or fish",
                             .is_required = true}});
  completion->footer(
      "Examples:\n"
      "  eval \"$(zero completion bash)\"                               in ~/.bashrc\n"
      "  zero completion fish > ~/.config/fish/completions/zero.fish");
  completion->callback([shell] {
    Console(true).print(*shell == "fish" ? kFish : *shell == "zsh" ? std::string(kZsh) + kBash : kBash);
  });
  app.add_subcommand("man", "print the manual page")->callback([&app] { Console(true).print(man_page(app)); });
}

}  // namespace zero::app
