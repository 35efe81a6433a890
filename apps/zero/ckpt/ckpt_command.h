#pragma once
// `zero ckpt list | inspect | verify | export | diff | prune`
namespace CLI {
class App;
}

namespace zero::app {

/// Adds the subcommand; when it is chosen it runs and stores its exit code: 0 well, 1 damage or a difference
/// was found, 2 bad input.
void add_ckpt_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
