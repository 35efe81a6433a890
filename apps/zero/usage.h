#pragma once
// What the command line says when it is not understood.
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
class ParseError;
}  // namespace CLI

namespace zero::app {

/// "zero help train" as "zero train --help", "zero" alone as "zero --help"; a command that is not known stays, for the
/// error. `arguments` without the program's name.
std::vector<std::string> with_help(const CLI::App& app, std::vector<std::string> arguments);

/// Help of 80 columns, in which an option's text is as it was given.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// The same with `--` before the first word that is neither an option of `command` nor an option's value,
/// where `arguments` begin with the name of `command`: what follows is another program's. Throws ConfigError
/// for an option that is not known.
std::vector<std::string> with_program_marked(CLI::App& command, std::vector<std::string> arguments);

/// The sentence for an error of `app` with these arguments: which of them, what it should be, and the nearest name
/// where one is unknown.
std::string explain(const CLI::ParseError& error, const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace zero::app
