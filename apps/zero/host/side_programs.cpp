#include "host/side_programs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>

#include <cstdlib>

#include "zero/errors.h"
#include "zero/launch.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;

/// Modules come from Python's places, not from where the user happens to be.
constexpr const char* kWithoutWorkingFolder = "import sys; sys.path[:] = [p for p in sys.path if p]";

bool can_import(const std::string& python, const std::vector<std::string>& modules) {
  if (python.find('\'') != std::string::npos) return false;
  const std::string line = fmt::format(
      "'{}' -c '{}; import importlib.util as u; sys.exit(not all(map(u.find_spec, [{}])))'"
      " >/dev/null 2>&1",
      python, kWithoutWorkingFolder, fmt::format("\"{}\"", fmt::join(modules, "\", \"")));
  const int status = std::system(line.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

std::vector<std::string> python_script(const std::string& python, const fs::path& script) {
  // Not by its path alone: then its folder would come first among those of modules.
  return {python, "-c",
          std::string(kWithoutWorkingFolder) +
              "; import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name=\"__main__\")",
          script.string()};
}

fs::path find_side_program(const std::string& name) {
  std::vector<fs::path> places;
  if (const char* folder = std::getenv("ZERO_SHARE_DIR")) places.emplace_back(folder);
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  places.push_back(self.parent_path().parent_path() / "share" / "zerotorch");
  places.emplace_back(ZERO_SOURCE_DIR "/apps/zero/compare");
  places.emplace_back(ZERO_SOURCE_DIR "/python");
  for (const fs::path& place : places) {
    if (fs::exists(place / name, error)) return place / name;
  }
  std::vector<std::string> names;
  names.reserve(places.size());
  for (const fs::path& place : places) names.push_back(place.string());
  throw ConfigError(
      fmt::format("{} is not in {}; set ZERO_SHARE_DIR to the folder that has it", name, fmt::join(names, ", ")));
}

std::string find_python(const std::string& wanted, const std::vector<std::string>& modules) {
  std::vector<std::string> candidates;
  if (!wanted.empty()) {
    candidates = {wanted};
  } else {
    const char* const python = std::getenv("ZERO_PYTHON");
    if (python && *python) return can_import(python, modules) ? python : "";
    candidates.insert(candidates.end(), {ZERO_SOURCE_DIR "/build/peers/bin/python", ZERO_SOURCE_DIR "/.venv/bin/python",
                                         ZERO_SOURCE_DIR "/build/python/bin/python",
                                         ZERO_SOURCE_DIR "/build/libraries/bin/python", "python3"});
  }
  for (const std::string& python : candidates) {
    if (can_import(python, modules)) return python;
  }
  return "";
}

int run_program(const std::vector<std::string>& command) {
  const int code = launch({.command = command, .prefix_output = false, .report_exit_codes = false});
  if (code > 128) throw ProgramStopped(code);
  return code;
}

}  // namespace zero::app
