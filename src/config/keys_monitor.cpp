// What is said and where: printing, breakdowns, TensorBoard, CSV files.
#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr Key kMonitor[] = {
    honoured("steps_per_print", Kind::kCount, "null",
             "a progress line on rank 0 every so many steps; not given or 0: none", field<&Config::steps_per_print>),
    honoured("wall_clock_breakdown", Kind::kBool, "false", "log how long forward, backward and step take",
             field<&Config::wall_clock_breakdown>),
    honoured("memory_breakdown", Kind::kBool, "false", "log the memory ledger", field<&Config::memory_breakdown>),
    honoured("dump_state", Kind::kBool, "false", "log the resolved configuration at start", field<&Config::dump_state>),
    no_effect("log_level", Kind::kString, "null",
              "set the environment variable ZERO_LOG_LEVEL (debug, info, warning, error)"),

    section("timers", "throughput timers", kNoEffect),
    section("timers.throughput", "throughput timers", kNoEffect),
    no_effect("timers.throughput.enabled", Kind::kBool, "true", "times are part of the line of steps_per_print",
              "true"),
    no_effect("timers.throughput.synchronized", Kind::kBool, "true", "there is no device to wait for", "true"),

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

    section("comms_logger", "calls, bytes, time and bandwidth of collectives: Engine::comms_summary()"),
    honoured("comms_logger.enabled", Kind::kBool, "false",
             "record every collective of training; rank 0 logs its table when the engine goes",
             field<&Config::comms_logger, &Config::CommsLogger::enabled>),
    honoured("comms_logger.prof_all", Kind::kBool, "true", "all kinds of collectives; false: those of prof_ops",
             field<&Config::comms_logger, &Config::CommsLogger::prof_all>),
    honoured("comms_logger.prof_ops", Kind::kStrings, "[]",
             "kinds to record: all_gather, reduce_scatter, all_reduce, broadcast, barrier; DeepSpeed's longer names of "
             "these (all_gather_into_tensor) mean the same",
             field<&Config::comms_logger, &Config::CommsLogger::prof_ops>),
    honoured("comms_logger.verbose", Kind::kBool, "false", "log every collective on rank 0 as it ends",
             field<&Config::comms_logger, &Config::CommsLogger::verbose>),
    honoured("comms_logger.debug", Kind::kBool, "false",
             "a row for every label (unit or parameter), where DeepSpeed has the calling function",
             field<&Config::comms_logger, &Config::CommsLogger::debug>),

    section("flops_profiler", "FLOPs and parameters by module of one step: Engine::flops_report()"),
    honoured("flops_profiler.enabled", Kind::kBool, "false", "count in profile_step what the operators compute",
             field<&Config::flops_profiler, &Config::FlopsProfiler::enabled>),
    {.path = "flops_profiler.profile_step",
     .kind = Kind::kCount,
     .fallback = "1",
     .note = "the optimizer step to look at, counted from 0",
     .maximum = kMostSteps,
     .field = field<&Config::flops_profiler, &Config::FlopsProfiler::profile_step>},
    {.path = "flops_profiler.module_depth",
     .kind = Kind::kCount,
     .fallback = "-1",
     .note = "levels of the module tree in the table; -1: all",
     .minimum = -1,
     .field = field<&Config::flops_profiler, &Config::FlopsProfiler::module_depth>},
    {.path = "flops_profiler.top_modules",
     .kind = Kind::kCount,
     .fallback = "1",
     .note = "how many modules of each level are named, those with the most FLOPs",
     .field = field<&Config::flops_profiler, &Config::FlopsProfiler::top_modules>},
    honoured("flops_profiler.detailed", Kind::kBool, "true", "print the tree of modules too",
             field<&Config::flops_profiler, &Config::FlopsProfiler::detailed>),
    honoured("flops_profiler.output_file", Kind::kString, "null",
             "where rank 0 writes the table; null: the log, on standard error",
             field<&Config::flops_profiler, &Config::FlopsProfiler::output_file>),
    no_effect("flops_profiler.recompute_fwd_factor", Kind::kNumber, "0.0",
              "DeepSpeed estimates backward from forward and this; here the operators of backward are counted as they "
              "run, recomputed ones too",
              "0"),
};

}  // namespace

std::span<const Key> monitor_keys() { return kMonitor; }

}  // namespace zero::config
