#pragma once
// `zero completion` and `zero man`: what the command line says of itself, for shells and for man.
namespace CLI {
class App;
}

namespace zero::app {

/// Adds the subcommands; call after all others are there.
void add_describe_commands(CLI::App& app);

}  // namespace zero::app
