#pragma once
#include <CLI/CLI.hpp>

namespace zero::app {

/// `zero bench io`. Sets `exit_code`.
void add_bench_command(CLI::App& app, int& exit_code);

}  // namespace zero::app
