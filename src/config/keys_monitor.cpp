// What is said and where: printing, breakdowns, TensorBoard, CSV files.
#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr Key kMonitor[] = {
    honoured("steps_per_print", Kind::kCount, "null",
             "a progress line on rank 0 every so many steps; not given or 0: none",
             field<&Config::steps_per_print>),
    honoured("wall_clock_breakdown", Kind::kBool, "false", "log how long forward, backward and step take",
             field<&Config::wall_clock_breakdown>),
    honoured("memory_breakdown", Kind::kBool, "false", "log the memory ledger",
             field<&Config::memory_breakdown>),
    honoured("dump_state", Kind::kBool, "false", "log the resolved configuration at start",
             field<&Config::dump_state>),
    no_effect("log_level", Kind::kString, "null",
              "set the environment variable ZERO_LOG_LEVEL (debug, info, warning, error)"),

    section("timers", "throughput timers", kNoEffect),
    section("timers.throughput", "throughput timers", kNoEffect),
    no_effect("timers.throughput.enabled", Kind::kBool, "true",
              "times are part of the line of steps_per_print", "true"),
    no_effect("timers.throughput.synchronized", Kind::kBool, "true", "there is no device to wait for",
              "true"),

    section("tensorboard", "event files for TensorBoard"),
    honoured("tensorboard.enabled", Kind::kBool, "false", "write event files",
             field<&Config::tensorboard, &Config::Tensorboard::enabled>),
    honoured("tensorboard.output_path", Kind::kString, "\"\"", "folder; empty: runs below the working folder",
             field<&Config::tensorboard, &Config::Tensorboard::output_path>),
    honoured("tensorboard.job_name", Kind::kString, "\"DeepSpeedJobName\"", "sub-folder of output_path",
             field<&Config::tensorboard, &Config::Tensorboard::job_name>),

    section("csv_monitor", "the figures of TensorBoard as CSV files"),
    honoured("csv_monitor.enabled", Kind::kBool, "false",
             "append to output_path/job_name/Train_Samples_lr.csv and so on, a file for each figure",
             field<&Config::csv_monitor, &Config::CsvMonitor::enabled>),
    honoured("csv_monitor.output_path", Kind::kString, "\"\"", "folder; empty: the working folder",
             field<&Config::csv_monitor, &Config::CsvMonitor::output_path>),
    honoured("csv_monitor.job_name", Kind::kString, "\"DeepSpeedJobName\"", "sub-folder of output_path",
             field<&Config::csv_monitor, &Config::CsvMonitor::job_name>),
};

}  // namespace

std::span<const Key> monitor_keys() { return kMonitor; }

}  // namespace zero::config
