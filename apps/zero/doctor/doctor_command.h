#pragma once
// `zero doctor`
namespace CLI {
class App;
}

namespace zero::app {

/// Adds the subcommand; when it is chosen it says what this machine has and what that means for training. Exit code 0,
/// or 1 when something that training needs is missing.
void add_doctor_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
