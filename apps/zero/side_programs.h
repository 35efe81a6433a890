#pragma once
// The Python programs beside this one: the picture of a comparison, the peers, tokenizers.
#include <filesystem>
#include <string>
#include <vector>

namespace zero::app {

/// `name` in $ZERO_SHARE_DIR, <prefix>/share/zerotorch of this installation, or the source tree it was built
/// in. Throws ConfigError that names the places.
std::filesystem::path find_side_program(const std::string& name);

/// `wanted`, else $ZERO_PYTHON, the environment of `make peers` in the source tree, that of the build,
/// python3 in PATH: the first that can import `modules`. Empty when none can.
std::string find_python(const std::string& wanted, const std::vector<std::string>& modules);

/// Runs a program that ends with this one and gets its signals; its output is ours. The exit code, 128 +
/// signal.
int run_program(const std::vector<std::string>& command);

}  // namespace zero::app
