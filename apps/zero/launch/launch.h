#pragma once
// `zero launch -n N [--no-prefix] -- program arguments`
namespace CLI {
class App;
}

/// Adds the subcommand; when it is chosen it runs the job and stores the job's exit code in `exit_code`.
/// Throws ConfigError out of the parser when the program cannot be started. Local.
void add_launch_command(CLI::App& app, int& exit_code);
