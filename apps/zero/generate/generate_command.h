#pragma once

namespace CLI {
class App;
}

namespace zero::app {

/// Adds `zero generate`.
void add_generate_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
