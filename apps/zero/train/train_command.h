#pragma once
// `zero train`: prepares a run, starts its ranks, and turns their end into an exit code.
namespace CLI {
class App;
}

namespace zero::app {

/// Adds the subcommand; when it is chosen it trains and stores the exit code: 0, 2 for bad input, 1 for a run
/// that failed, 128 + the signal for one that was stopped. Throws zero::Error out of the parser. Local.
void add_train_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
