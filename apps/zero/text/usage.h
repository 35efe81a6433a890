#pragma once
// What the command line says when it is not understood.
#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace zero::app {

/// `arguments` (without the program's name), if they begin with the name of `command`, with `--` before the first word
/// that is neither an option of it nor an option's value: what follows is another program's. Throws ConfigError for an
/// option that is not known, or for a value before it that is refused.
std::vector<std::string> with_program_marked(CLI::App& command, std::vector<std::string> arguments);

/// The sentence for an error of `app` with these arguments: which of them, what it should be, and the nearest name
/// where one is unknown.
std::string explain(const CLI::ParseError& error, CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace zero::app
