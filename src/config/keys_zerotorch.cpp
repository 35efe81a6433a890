// Our own section, "zerotorch".
#include "config/fields.h"

namespace zero::config {
namespace {

using Own = Config::Zerotorch;

constexpr Key kKeys[] = {
    section("zerotorch", "what DeepSpeed has no key for"),
    {.path = "zerotorch.store",
     .kind = Kind::kChoice,
     .fallback = "\"auto\"",
     .note = "where gathered parameters live: once on each host, or copied to each rank; auto: node_shared when "
             "all ranks are on one host, else copying",
     .choices = "auto|node_shared|copying",
     .field = field<&Config::zerotorch, &Own::store>},
    {.path = "zerotorch.unit_numel",
     .kind = Kind::kCount,
     .fallback = "0",
     .note = "upper bound of a unit in elements; 0: chosen from the model",
     .maximum = kMostNumel,
     .field = field<&Config::zerotorch, &Own::unit_numel>},
    honoured("zerotorch.unit_names", Kind::kStrings, "[]",
             "modules that each become one unit, by their name in the model",
             field<&Config::zerotorch, &Own::unit_names>),
    honoured("zerotorch.seed", Kind::kCount, "null", "seed of the random streams",
             field<&Config::zerotorch, &Own::seed>),
    honoured("zerotorch.reseed_per_micro_batch", Kind::kBool, "true",
             "reseed libtorch's generator per global micro-batch, so that dropout does not depend on the "
             "ranks",
             field<&Config::zerotorch, &Own::reseed_per_micro_batch>),
    {.path = "zerotorch.verify_parameters",
     .kind = Kind::kChoice,
     .fallback = "\"broadcast\"",
     .note = "at start: broadcast takes rank 0's parameters, verify compares and fails on a difference",
     .choices = "broadcast|verify",
     .field = field<&Config::zerotorch, &Own::verify_parameters>},
    {.path = "zerotorch.buffers",
     .kind = Kind::kChoice,
     .fallback = "\"rank0\"",
     .note = "buffers that forward writes, at the end of every step(): all ranks take rank 0's, or the mean over "
             "the ranks (those that are not floating-point: rank 0's), or each keeps its own",
     .choices = "rank0|each|mean",
     .field = field<&Config::zerotorch, &Own::buffers>},
    {.path = "zerotorch.buffer_dtype",
     .kind = Kind::kChoice,
     .fallback = "\"module\"",
     .note = "with bf16: buffers keep the dtype the module gave them, or floating-point buffers become bf16 as "
             "DeepSpeed makes them",
     .choices = "module|parameters",
     .field = field<&Config::zerotorch, &Own::buffer_dtype>},
    {.path = "zerotorch.progress_thread",
     .kind = Kind::kChoice,
     .fallback = "\"auto\"",
     .note = "a thread of each rank that moves data while the others compute; auto: with overlap_comm, over "
             "MPI or where a "
             "rank has a core more than compute threads",
     .choices = "auto|always|never",
     .field = field<&Config::zerotorch, &Own::progress_thread>},
    honoured("zerotorch.measured_prefetch", Kind::kBool, "true",
             "copying store: gather ahead only as far as measured times ask for, up to "
             "stage3_prefetch_bucket_size",
             field<&Config::zerotorch, &Own::measured_prefetch>),
    honoured("zerotorch.caching_allocator", Kind::kBool, "true",
             "keep large blocks that libtorch frees on the CPU for the next step; process-wide",
             field<&Config::zerotorch, &Own::caching_allocator>),
    honoured("zerotorch.bind_cores_to_rank", Kind::kBool, "false", "pin each rank to its share of the cores",
             field<&Config::zerotorch, &Own::bind_cores_to_rank>),
    honoured("zerotorch.step_in_backward", Kind::kBool, "false",
             "update parameters in backward, keep no gradients; without clipping and accumulation only",
             field<&Config::zerotorch, &Own::step_in_backward>),
    honoured("zerotorch.stochastic_rounding", Kind::kBool, "false",
             "bf16 master weights are rounded up as often as they are near the upper neighbour; drawn by seed, step "
             "and element alone",
             field<&Config::zerotorch, &Own::stochastic_rounding>),
    {.path = "zerotorch.timeout_s",
     .kind = Kind::kNumber,
     .fallback = "0",
     .note = "how long a collective may take in seconds, at least 0.001; 0: the group's default",
     .maximum = 31'536'000,
     .field = field<&Config::zerotorch, &Own::timeout_s>},
    {.path = "zerotorch.unused_parameters",
     .kind = Kind::kChoice,
     .fallback = "\"skip\"",
     .note = "a parameter that no rank has used in a step: skip leaves it alone as libtorch does, zero "
             "updates it "
             "with a gradient of zero (momentum, decay) as DeepSpeed does",
     .choices = "skip|zero",
     .field = field<&Config::zerotorch, &Own::unused_parameters>},
    honoured("zerotorch.debug_observer", Kind::kBool, "false",
             "check at every operator that no released parameter is read, and at every step that none was "
             "written through a raw pointer; slow",
             field<&Config::zerotorch, &Own::debug_observer>),

    section("zerotorch.checkpoint", "when a zero::TrainingRun (zero train) saves checkpoints, and how"),
    {.path = "zerotorch.checkpoint.every_steps",
     .kind = Kind::kCount,
     .fallback = "0",
     .note = "optimizer steps between checkpoints; 0: not by steps",
     .maximum = kMostSteps,
     .field = field<&Config::zerotorch, &Own::checkpoint, &Own::Checkpoint::every_steps>},
    {.path = "zerotorch.checkpoint.every_minutes",
     .kind = Kind::kNumber,
     .fallback = "10",
     .note = "minutes between checkpoints; 0: not by time",
     .maximum = 525'600'000,
     .field = field<&Config::zerotorch, &Own::checkpoint, &Own::Checkpoint::every_minutes>},
    {.path = "zerotorch.checkpoint.keep_last",
     .kind = Kind::kCount,
     .fallback = "2",
     .note = "so many newest checkpoints stay; 0: all",
     .maximum = 1'000'000,
     .field = field<&Config::zerotorch, &Own::checkpoint, &Own::Checkpoint::keep_last>},
    honoured("zerotorch.checkpoint.async", Kind::kBool, "true",
             "training goes on while a checkpoint is written; costs a copy of the rank's shard",
             field<&Config::zerotorch, &Own::checkpoint, &Own::Checkpoint::async>),
};

}  // namespace

std::span<const Key> zerotorch_keys() { return kKeys; }

}  // namespace zero::config
