#pragma once

namespace CLI {
class App;
}

namespace zero::app {

/// Adds `zero eval`.
void add_eval_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
