#include "text/help_text.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <utility>

#include "text/colour.h"
#include "text/text_format.h"

namespace zero::app {

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::vector<std::string> with_help(const CLI::App& app, std::vector<std::string> arguments) {
  if (arguments.empty()) return {"--help"};
  if (arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  if (arguments == std::vector<std::string>{"help"}) arguments.clear();
  const CLI::App* command = &app;
  for (auto word = arguments.begin(); word != arguments.end(); ++word) {
    const auto commands = commands_of(*command);
    if (commands.empty()) {  // what follows would be done
      arguments.erase(word, arguments.end());
      break;
    }
    if (std::find(commands.begin(), commands.end(), *word) == commands.end()) return arguments;
    command = command->get_subcommand(*word);
  }
  arguments.push_back("--help");
  return arguments;
}

namespace {

constexpr std::size_t kTextColumn = 26;

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
  std::string make_description(const CLI::App* app) const override { return wrapped("", app->get_description(), 0); }
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
    return wrapped(name, text, kTextColumn);
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    const std::string name = "  " + sub->get_name();
    return wrapped(name, sub->get_description(), kTextColumn);
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

}  // namespace zero::app
