#pragma once
// `zero help`, and how help looks.
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace zero::app {

/// Names of the commands below `app`.
std::vector<std::string> commands_of(const CLI::App& app);

/// "zero help train" as "zero train --help", "zero" alone as "zero --help"; a command that is not known stays, for the
/// error. `arguments` without the program's name.
std::vector<std::string> with_help(const CLI::App& app, std::vector<std::string> arguments);

/// Help of 80 columns, in which an option's text is as it was given.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace zero::app
