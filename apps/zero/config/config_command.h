#pragma once
// `zero config`: what a DeepSpeed JSON means here, before it is used.
namespace CLI {
class App;
}

namespace zero::app {

/// Adds the subcommand; when it is chosen it runs and stores its exit code: 0 the file would run (or keys were
/// listed), 1 it would not (or no key matched), 2 bad input.
void add_config_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
