// What is said and where: printing, breakdowns, monitors, profilers.
#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr std::string_view kUseTensorboard = "not built; use \"tensorboard\"";
constexpr std::string_view kFlops = "not built; use wall_clock_breakdown for times";
constexpr std::string_view kComms =
    "not built; Group::counters() has calls, elements and bytes of every collective";

constexpr Key refused(std::string_view path, Kind kind, std::string_view fallback, std::string_view note) {
  return {.path = path,
          .kind = kind,
          .fallback = fallback,
          .status = kRefused,
          .note = note,
          .harmless = path.ends_with(".enabled") ? "false" : "",
          .minimum = -1};
}
constexpr Key gated(std::string_view path, std::string_view note) {
  return {.path = path,
          .kind = Kind::kSection,
          .fallback = "null",
          .status = kRefused,
          .note = note,
          .gate = "enabled"};
}

constexpr Key kMonitor[] = {
    {.path = "steps_per_print",
     .kind = Kind::kCount,
     .fallback = "null",
     .note = "a progress line on rank 0 every so many steps; not given or 0: none",
     .field = field<&Config::steps_per_print>},
    {.path = "wall_clock_breakdown",
     .kind = Kind::kBool,
     .fallback = "false",
     .note = "log how long forward, backward and step take",
     .field = field<&Config::wall_clock_breakdown>},
    {.path = "memory_breakdown",
     .kind = Kind::kBool,
     .fallback = "false",
     .note = "log the memory ledger",
     .field = field<&Config::memory_breakdown>},
    {.path = "dump_state",
     .kind = Kind::kBool,
     .fallback = "false",
     .note = "log the resolved configuration at start",
     .field = field<&Config::dump_state>},
    {.path = "log_level",
     .kind = Kind::kString,
     .fallback = "null",
     .status = kNoEffect,
     .note = "set the environment variable ZERO_LOG_LEVEL (debug, info, warning, error)"},

    {.path = "timers", .kind = Kind::kSection, .fallback = "null", .note = "throughput timers"},
    {.path = "timers.throughput", .kind = Kind::kSection, .fallback = "null", .note = "throughput timers"},
    {.path = "timers.throughput.enabled",
     .kind = Kind::kBool,
     .fallback = "true",
     .status = kNoEffect,
     .note = "times are part of the line of steps_per_print",
     .harmless = "true"},
    {.path = "timers.throughput.synchronized",
     .kind = Kind::kBool,
     .fallback = "true",
     .status = kNoEffect,
     .note = "there is no device to wait for",
     .harmless = "true"},

    {.path = "tensorboard",
     .kind = Kind::kSection,
     .fallback = "null",
     .note = "event files for TensorBoard"},
    {.path = "tensorboard.enabled",
     .kind = Kind::kBool,
     .fallback = "false",
     .note = "write event files",
     .field = field<&Config::tensorboard, &Config::Tensorboard::enabled>},
    {.path = "tensorboard.output_path",
     .kind = Kind::kString,
     .fallback = "\"\"",
     .note = "folder; empty: runs below the working folder",
     .field = field<&Config::tensorboard, &Config::Tensorboard::output_path>},
    {.path = "tensorboard.job_name",
     .kind = Kind::kString,
     .fallback = "\"DeepSpeedJobName\"",
     .note = "sub-folder of output_path",
     .field = field<&Config::tensorboard, &Config::Tensorboard::job_name>},

    gated("wandb", kUseTensorboard),
    refused("wandb.enabled", Kind::kBool, "false", kUseTensorboard),
    refused("wandb.group", Kind::kString, "null", kUseTensorboard),
    refused("wandb.team", Kind::kString, "null", kUseTensorboard),
    refused("wandb.project", Kind::kString, "\"deepspeed\"", kUseTensorboard),
    gated("comet", kUseTensorboard),
    refused("comet.enabled", Kind::kBool, "false", kUseTensorboard),
    refused("comet.samples_log_interval", Kind::kCount, "100", kUseTensorboard),
    refused("comet.project", Kind::kString, "null", kUseTensorboard),
    refused("comet.workspace", Kind::kString, "null", kUseTensorboard),
    refused("comet.api_key", Kind::kString, "null", kUseTensorboard),
    refused("comet.experiment_name", Kind::kString, "null", kUseTensorboard),
    refused("comet.experiment_key", Kind::kString, "null", kUseTensorboard),
    refused("comet.online", Kind::kBool, "null", kUseTensorboard),
    refused("comet.mode", Kind::kString, "null", kUseTensorboard),
    gated("csv_monitor", kUseTensorboard),
    refused("csv_monitor.enabled", Kind::kBool, "false", kUseTensorboard),
    refused("csv_monitor.output_path", Kind::kString, "\"\"", kUseTensorboard),
    refused("csv_monitor.job_name", Kind::kString, "\"DeepSpeedJobName\"", kUseTensorboard),

    gated("comms_logger", kComms),
    refused("comms_logger.enabled", Kind::kBool, "false", kComms),
    refused("comms_logger.prof_all", Kind::kBool, "true", kComms),
    refused("comms_logger.prof_ops", Kind::kStrings, "[]", kComms),
    refused("comms_logger.verbose", Kind::kBool, "false", kComms),
    refused("comms_logger.debug", Kind::kBool, "false", kComms),
    gated("flops_profiler", kFlops),
    refused("flops_profiler.enabled", Kind::kBool, "false", kFlops),
    refused("flops_profiler.recompute_fwd_factor", Kind::kNumber, "0.0", kFlops),
    refused("flops_profiler.profile_step", Kind::kCount, "1", kFlops),
    refused("flops_profiler.module_depth", Kind::kCount, "-1", kFlops),
    refused("flops_profiler.top_modules", Kind::kCount, "1", kFlops),
    refused("flops_profiler.detailed", Kind::kBool, "true", kFlops),
    refused("flops_profiler.output_file", Kind::kString, "null", kFlops),
};

}  // namespace

std::span<const Key> monitor_keys() { return kMonitor; }

}  // namespace zero::config
