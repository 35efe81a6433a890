// "zero_optimization", but for offload.
#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;
using Zero = Config::ZeroOptimization;

constexpr std::string_view kOneUnit =
    "gradients and gathers travel unit by unit; bound a unit with zerotorch.unit_numel";
constexpr std::string_view kQuantized = "quantised communication is not built; remove the key";
constexpr std::string_view kMics = "sharding over a part of the ranks is not built; remove the key";

constexpr Key kZero[] = {
    section("zero_optimization", "without it stage 0; the old form true means stage 1, false stage 0"),
    {.path = "zero_optimization.stage",
     .kind = Kind::kCount,
     .fallback = "0",
     .note = "what is sharded: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters",
     .maximum = 3,
     .field = field<&Config::zero_optimization, &Zero::stage>},
    honoured("zero_optimization.overlap_comm", Kind::kBool, "null",
             "overlap communication with computation; not given: true at stage 3 and between hosts, else false",
             field<&Config::zero_optimization, &Zero::overlap_comm>),
    no_effect("zero_optimization.contiguous_gradients", Kind::kBool, "true",
              "gradients always go into one contiguous buffer per unit", "true"),
    no_effect("zero_optimization.grad_hooks", Kind::kBool, "true", "gradients always leave autograd by hooks", "true"),
    no_effect("zero_optimization.reduce_scatter", Kind::kBool, "true",
              "gradients are always reduced to the owner of their shard", "true"),
    {.path = "zero_optimization.reduce_bucket_size",
     .kind = Kind::kCount,
     .fallback = "5e8",
     .note = "most elements of a gradient bucket; a unit's gradient is reduced in pieces of this, or less "
             "where less is as fast",
     .minimum = 1,
     .maximum = kMostNumel,
     .field = field<&Config::zero_optimization, &Zero::reduce_bucket_size>},
    no_effect("zero_optimization.use_multi_rank_bucket_allreduce", Kind::kBool, "true", kOneUnit, "true|false"),
    no_effect("zero_optimization.allgather_partitions", Kind::kBool, "true",
              "updated parameters are published in one way only", "true"),
    {.path = "zero_optimization.allgather_bucket_size",
     .kind = Kind::kCount,
     .fallback = "5e8",
     .note = "stages 0-2: most elements of an updated unit that are sent in one piece",
     .minimum = 1,
     .maximum = kMostNumel,
     .field = field<&Config::zero_optimization, &Zero::allgather_bucket_size>},
    {.path = "allgather_size",
     .kind = Kind::kCount,
     .fallback = "5e8",
     .note = "stages 0-2: most elements of an updated unit that are sent in one piece",
     .minimum = 1,
     .alias_of = "zero_optimization.allgather_bucket_size"},
    {.path = "zero_optimization.sub_group_size",
     .kind = Kind::kCount,
     .fallback = "1e9",
     .note = "most elements of a shard that the optimizer updates in one piece; 0: the default",
     .maximum = kMostNumel,
     .field = field<&Config::zero_optimization, &Zero::sub_group_size>},
    honoured("zero_optimization.ignore_unused_parameters", Kind::kBool, "true",
             "false: a parameter without gradient is an error",
             field<&Config::zero_optimization, &Zero::ignore_unused_parameters>),
    no_effect(
        "zero_optimization.compute_grad_norm", Kind::kBool, "true",
        "the norm is always computed: clipping, skipped steps and reports need it, and it costs one pass over sums",
        "true"),
    no_effect("zero_optimization.parameter_alignment", Kind::kBool, "false",
              "every parameter begins at a multiple of 64 bytes", "false|true"),
    refused("zero_optimization.load_from_fp32_weights", Kind::kBool, "true",
            "master weights are always restored from fp32; remove the key", "true"),
    no_effect("zero_optimization.elastic_checkpoint", Kind::kBool, "false",
              "every checkpoint loads at any number of ranks", "false|true"),
    no_effect("zero_optimization.round_robin_gradients", Kind::kBool, "false",
              "shards are contiguous slices of a unit, one per rank, already balanced", "false"),
    no_effect("zero_optimization.legacy_stage1", Kind::kBool, "false", "there is one implementation for all stages",
              "false"),
    no_effect("zero_optimization.memory_efficient_linear", Kind::kBool, "true",
              "it replaces Python's linear; the module's code is left alone here", "true|false"),
    no_effect("zero_optimization.override_module_apply", Kind::kBool, "true", "C++ modules' apply is left alone",
              "true|false"),
    no_effect("zero_optimization.pipeline_loading_checkpoint", Kind::kBool, "false",
              "each rank reads only its own ranges", "false"),
    no_effect("zero_optimization.log_trace_cache_warnings", Kind::kBool, "false",
              "a changed order of units is always logged", "false"),
    no_effect("zero_optimization.enable_sanity_checks", Kind::kBool, "false",
              "cheap checks are always on; zerotorch.debug_observer adds the slow ones", "false"),
    no_effect("zero_optimization.save_muon_momentum_buffer_in_memory", Kind::kBool, "false",
              "Muon's momentum is in memory at every stage", "true"),

    refused("zero_optimization.zero_hpz_partition_size", Kind::kCount, "1", kMics, "1|0"),
    refused("zero_optimization.zero_quantized_weights", Kind::kBool, "false", kQuantized, "false"),
    refused("zero_optimization.zero_quantized_nontrainable_weights", Kind::kBool, "false", kQuantized, "false"),
    refused("zero_optimization.zero_quantized_gradients", Kind::kBool, "false", kQuantized, "false"),
    not_built("zero_optimization.zeropp_loco_param", kQuantized, "*"),
    {.path = "zero_optimization.mics_shard_size",
     .kind = Kind::kCount,
     .fallback = "-1",
     .status = kRefused,
     .note = kMics,
     .harmless = "-1|0",
     .minimum = -1},
    refused("zero_optimization.mics_hierarchical_params_gather", Kind::kBool, "false", kMics, "false"),
    not_built("zero_optimization.zenflow",
              "ZenFlow is not built; remove the section (zerotorch.update can overlap an update with the next step)",
              "*"),
};

}  // namespace

std::span<const Key> zero_keys() { return kZero; }

}  // namespace zero::config
