// Runs as one page, drawn by a program in Python.
#include "runs/report_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "host/side_programs.h"
#include "runs/run_folder.h"
#include "zero/errors.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output, title, python;
};

void add_arguments(CLI::App& command, ReportArguments& arguments) {
  command.add_option("RUN", arguments.runs, "folders of runs (default: the newest below runs/)")->type_name("");
  command.add_option("-o,--output", arguments.output, "the page (default: report.html in the first run's folder)")
      ->type_name("FILE");
  command.add_option("--title", arguments.title, "of the page")->type_name("TEXT");
  command
      .add_option("--python", arguments.python,
                  "interpreter with plotly (default: ZERO_PYTHON, else the first that is found)")
      ->type_name("PATH");
}

int report(const ReportArguments& arguments) {
  std::vector<std::string> runs = arguments.runs;
  if (runs.empty()) {
    std::error_code error;
    if (!fs::is_directory("runs", error)) throw ConfigError("there is no folder runs/ here; name the folders of runs");
    runs.push_back(find_run_folder("").string());
  }
  const fs::path page = arguments.output.empty() ? fs::path(runs.front()) / "report.html" : fs::path(arguments.output);
  const std::string python = find_python(arguments.python, {"plotly"});
  if (python.empty() && !arguments.python.empty()) {
    throw ConfigError(
        fmt::format("--python {}: is no Python that runs and has plotly, which draws the page", arguments.python));
  }
  if (python.empty()) {
    throw ConfigError(
        "the page is drawn by plotly, and no Python here has it: pip install plotly, and give that Python with "
        "--python or ZERO_PYTHON (`make report` makes one in the source tree)");
  }
  std::vector<std::string> command = python_script(python, find_side_program("report/report_runs.py"));
  command.insert(command.end(), {"--out", page.string()});
  if (!arguments.title.empty()) command.insert(command.end(), {"--title", arguments.title});
  command.insert(command.end(), runs.begin(), runs.end());
  return run_program(command);
}

}  // namespace

void add_report_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command =
      app.add_subcommand("report", "draw runs as one page: loss, speed, memory, time, traffic, configuration");
  add_arguments(*command, *arguments);
  command->callback([arguments, &exit_code] { exit_code = report(*arguments); });
}

}  // namespace zero::app
