#pragma once
// `zero compare`: the same model and tokens under every ZeRO stage, and under what others have.
namespace CLI {
class App;
}

namespace zero::app {

/// Adds the subcommand; when it is chosen it compares and stores the exit code: 0, 1 when stages disagree, 2
/// for bad input, 128 + the signal when stopped. Throws zero::Error out of the parser. Local.
void add_compare_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
