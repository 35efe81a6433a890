#pragma once
// What the words of a command line mean: help, errors in the order of the words, what may be the next one.
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
class ParseError;
}  // namespace CLI

namespace zero::app {

/// Names of the commands below `app`.
std::vector<std::string> commands_of(const CLI::App& app);
/// What `name` may mean, of `names`: "; did you mean '--lr'?"; empty: none is near.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& names);

/// "zero help train" as "zero train --help", "zero" alone as "zero --help". `words` are without the program's name.
std::vector<std::string> with_help(const CLI::App& app, std::vector<std::string> words);

/// The words, if each is a command, an option or a value as it should be. Before the program of `zero launch` comes
/// "--": what follows is its own. Throws ConfigError for the first that is not, with where help is.
std::vector<std::string> checked_words(CLI::App& app, std::vector<std::string> words);

/// What the words lack together, which `error` says of `app`.
std::string explain(const CLI::ParseError& error, const CLI::App& app);

/// What may stand in place of the last word, as a shell gives them: "--name=value" as three words or as one.
std::vector<std::string> completions(CLI::App& app, const std::vector<std::string>& typed);

/// Help of 80 columns, in which an option's text is as it was given.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace zero::app
