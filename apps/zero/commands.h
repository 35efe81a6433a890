#pragma once
// The commands, each in a folder of its own. A function adds one to `app`; when it is chosen it runs and stores its
// exit code: 0; 2 for bad input; 128 + the signal when stopped; 1 and 3 as the page of the command in docs/ says.
// What it throws (zero::Error) comes out of the parser.

namespace CLI {
class App;
}

namespace zero::app {

void add_train_command(CLI::App& app, int& exit_code);
void add_generate_command(CLI::App& app, int& exit_code);
void add_eval_command(CLI::App& app, int& exit_code);
void add_launch_command(CLI::App& app, int& exit_code);
void add_ckpt_command(CLI::App& app, int& exit_code);
void add_plan_command(CLI::App& app, int& exit_code);
void add_config_command(CLI::App& app, int& exit_code);
void add_compare_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_doctor_command(CLI::App& app, int& exit_code);
void add_runs_command(CLI::App& app, int& exit_code);
/// `zero completion`, `zero man`: of the commands that `app` has by then.
void add_describe_commands(CLI::App& app);

}  // namespace zero::app
