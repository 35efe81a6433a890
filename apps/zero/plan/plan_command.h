#pragma once
// `zero plan`: the memory and the traffic of a run, before it.
namespace CLI {
class App;
}

namespace zero::app {

/// Adds the subcommand; when it is chosen it runs and stores its exit code: 0 it fits, 3 it does not, 2 bad
/// input.
void add_plan_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
