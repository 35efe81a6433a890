#pragma once
// `zero report`
namespace CLI {
class App;
}

namespace zero::app {

/// Adds the subcommand; when it is chosen it draws runs as a page, and stores its exit code: 0, 2 bad input.
void add_report_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
