#pragma once
// The Python programs beside this one: the picture of a comparison, tokenizers.
#include <filesystem>
#include <string>
#include <vector>

#include "zero/errors.h"

namespace zero::app {

/// `name` in $ZERO_SHARE_DIR, <prefix>/share/zerotorch of this installation, or the source tree it was built
/// in. Throws ConfigError that names the places.
std::filesystem::path find_side_program(const std::string& name);

/// `wanted`, or $ZERO_PYTHON; where neither says: of the environments in the source tree and python3 in PATH the first
/// that can import `modules`. Empty when none can.
std::string find_python(const std::string& wanted, const std::vector<std::string>& modules);

/// The command that runs a script, without the folders of the script and of the user among those of its modules.
std::vector<std::string> python_script(const std::string& python, const std::filesystem::path& script);

/// A program was ended by a signal, which this one has got, too: end quietly with the same exit code.
class ProgramStopped : public Error {
 public:
  explicit ProgramStopped(int exit_code) : Error("a program was stopped by a signal"), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// Runs a program that ends with this one and gets its signals; its output is ours. The exit code. Throws
/// ProgramStopped.
int run_program(const std::vector<std::string>& command);

}  // namespace zero::app
