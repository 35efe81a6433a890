#pragma once
// `zero runs`
namespace CLI {
class App;
}

namespace zero::app {

/// Adds the subcommand; when it is chosen it lists runs, or compares two, and stores its exit code: 0, 1 where two runs
/// differ, 2 bad input.
void add_runs_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
