// "zero_optimization": the keys of stage 3, and offload.
#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;
using Zero = Config::ZeroOptimization;

constexpr std::string_view kOffload =
    "of a module on the CPU parameters and states are in host memory anyway; for one on a GPU it is pinned where it "
    "can be";
constexpr std::string_view kOldOffload = "older way to write \"offload_optimizer\": {\"device\": \"cpu\"}";
constexpr std::string_view kOldOffloadParam = "older way to write \"offload_param\": {\"device\": \"cpu\"}";
constexpr std::string_view kWholeUnits = "memory is for whole units, as many as are used at a time";
constexpr std::string_view kAlways = "reading, updating and writing always overlap";
using Offload = Zero::OffloadOptimizer;
using OffloadParam = Zero::OffloadParam;

constexpr Key kOffloadKeys[] = {
    honoured("zero_optimization.stage3_max_live_parameters", Kind::kCount, "1e9", "elements gathered at once",
             field<&Config::zero_optimization, &Zero::stage3_max_live_parameters>),
    old_name("zero_optimization.max_live_parameters", Kind::kCount, "1e9",
             "zero_optimization.stage3_max_live_parameters"),
    honoured("zero_optimization.stage3_max_reuse_distance", Kind::kCount, "1e9",
             "keep a unit gathered when it is used again within so many elements",
             field<&Config::zero_optimization, &Zero::stage3_max_reuse_distance>),
    old_name("zero_optimization.max_reuse_distance", Kind::kCount, "1e9",
             "zero_optimization.stage3_max_reuse_distance"),
    honoured("zero_optimization.stage3_prefetch_bucket_size", Kind::kCount, "5e7",
             "elements gathered ahead of use; from a disk or to a GPU at least a unit, however large; 0: none",
             field<&Config::zero_optimization, &Zero::stage3_prefetch_bucket_size>),
    old_name("zero_optimization.prefetch_bucket_size", Kind::kCount, "5e7",
             "zero_optimization.stage3_prefetch_bucket_size"),
    honoured("zero_optimization.stage3_param_persistence_threshold", Kind::kCount, "1e5",
             "parameters with fewer elements are never released",
             field<&Config::zero_optimization, &Zero::stage3_param_persistence_threshold>),
    old_name("zero_optimization.param_persistence_threshold", Kind::kCount, "1e5",
             "zero_optimization.stage3_param_persistence_threshold"),
    honoured("zero_optimization.stage3_model_persistence_threshold", Kind::kCount, "9223372036854775807",
             "upper bound of all elements kept by the threshold above",
             field<&Config::zero_optimization, &Zero::stage3_model_persistence_threshold>),
    old_name("zero_optimization.model_persistence_threshold", Kind::kCount, "9223372036854775807",
             "zero_optimization.stage3_model_persistence_threshold"),
    no_effect("zero_optimization.stage3_gather_16bit_weights_on_model_save", Kind::kBool, "false",
              "Engine::save_16bit_model gathers one parameter at a time and needs no leave", "false|true"),
    old_name("zero_optimization.gather_16bit_weights_on_model_save", Kind::kBool, "false",
             "zero_optimization.stage3_gather_16bit_weights_on_model_save", kNoEffect),
    old_name("zero_optimization.stage3_gather_fp16_weights_on_model_save", Kind::kBool, "false",
             "zero_optimization.stage3_gather_16bit_weights_on_model_save", kNoEffect),
    old_name("zero_optimization.gather_fp16_weights_on_model_save", Kind::kBool, "false",
             "zero_optimization.stage3_gather_16bit_weights_on_model_save", kNoEffect),
    no_effect("zero_optimization.stage3_module_granularity_threshold", Kind::kCount, "0",
              "units are chosen by their number of elements; see zerotorch.unit_numel", "0"),
    old_name("zero_optimization.module_granularity_threshold", Kind::kCount, "0",
             "zero_optimization.stage3_module_granularity_threshold", kNoEffect),
    no_effect("zero_optimization.stage3_use_all_reduce_for_fetch_params", Kind::kBool, "false",
              "a gather has no copies that an all-reduce could save", "false"),
    old_name("zero_optimization.use_all_reduce_for_fetch_params", Kind::kBool, "false",
             "zero_optimization.stage3_use_all_reduce_for_fetch_params", kNoEffect),
    no_effect("zero_optimization.stage3_allgather_sequential", Kind::kBool, "false", "a gather has no copies to save",
              "false"),
    old_name("zero_optimization.allgather_sequential", Kind::kBool, "false",
             "zero_optimization.stage3_allgather_sequential", kNoEffect),

    section("zero_optimization.leaf_module", "modules gathered as one"),
    honoured("zero_optimization.leaf_module.names", Kind::kStrings, "[]", "by their name in the model",
             field<&Config::zero_optimization, &Zero::leaf_module_names>),
    honoured("zero_optimization.leaf_module.name_suffixes", Kind::kStrings, "[]",
             "by the end of their name in the model",
             field<&Config::zero_optimization, &Zero::leaf_module_name_suffixes>),
    no_effect("zero_optimization.leaf_module.classes", Kind::kStrings, "[]",
              "Python class names mean nothing here; use names or name_suffixes", "[]"),

    section("zero_optimization.offload_optimizer", "where master weights and optimizer states live"),
    {.path = "zero_optimization.offload_optimizer.device",
     .kind = Kind::kChoice,
     .fallback = "\"none\"",
     .note =
         "nvme: a scratch file of each rank in nvme_path; cpu: host memory, also of a module on a GPU; with one on the "
         "CPU they are there anyway",
     .choices = "none|nvme|cpu",
     .field = field<&Config::zero_optimization, &Zero::offload_optimizer, &Offload::device>},
    or_null(honoured("zero_optimization.offload_optimizer.nvme_path", Kind::kString, "\"\"",
                     "a folder on a local disk, for device nvme",
                     field<&Config::zero_optimization, &Zero::offload_optimizer, &Offload::nvme_path>)),
    {.path = "zero_optimization.offload_optimizer.buffer_count",
     .kind = Kind::kCount,
     .fallback = "4",
     .note = "pieces in memory that are read, updated and written at the same time, of at most 8 MiB; device nvme",
     .minimum = 3,
     .maximum = 4096,
     .field = field<&Config::zero_optimization, &Zero::offload_optimizer, &Offload::buffer_count>},
    no_effect("zero_optimization.offload_optimizer.pin_memory", Kind::kBool, "true",
              "buffers are registered with the kernel wherever it can be had", "false|true"),
    no_effect("zero_optimization.offload_optimizer.pipeline", Kind::kBool, "false", kAlways, "false|true"),
    no_effect("zero_optimization.offload_optimizer.pipeline_read", Kind::kBool, "false", kAlways, "false|true"),
    no_effect("zero_optimization.offload_optimizer.pipeline_write", Kind::kBool, "false", kAlways, "false|true"),
    no_effect("zero_optimization.offload_optimizer.fast_init", Kind::kBool, "false",
              "states that are still zero are never written", "false|true"),
    {.path = "zero_optimization.offload_optimizer.ratio",
     .kind = Kind::kNumber,
     .fallback = "1.0",
     .note =
         "device cpu, of a module on a GPU: the part of the elements that are updated in host memory; the states of "
         "the others are on the GPU, which updates them meanwhile",
     .maximum = 1,
     .field = field<&Config::zero_optimization, &Zero::offload_optimizer, &Offload::ratio>},
    refused("zero_optimization.offload_optimizer.super_offload", Kind::kBool, "false",
            "it is for a GPU with a fast link to its host; remove the key", "false"),
    {.path = "zero_optimization.offload_optimizer.cpuadam_cores_perc",
     .kind = Kind::kNumber,
     .fallback = "0.8",
     .status = kNoEffect,
     .note = "super_offload alone reads it",
     .harmless = "0.8",
     .maximum = 1},

    section("zero_optimization.offload_param", "where the parameters' shards live at stage 3"),
    {.path = "zero_optimization.offload_param.device",
     .kind = Kind::kChoice,
     .fallback = "\"none\"",
     .note =
         "nvme: a scratch file of each rank in nvme_path, read just before use; cpu: host memory, also of a module on "
         "a GPU, where units are copied just before use; with one on the CPU they are there anyway",
     .choices = "none|nvme|cpu",
     .field = field<&Config::zero_optimization, &Zero::offload_param, &OffloadParam::device>},
    or_null(honoured("zero_optimization.offload_param.nvme_path", Kind::kString, "\"\"",
                     "a folder on a local disk, for device nvme",
                     field<&Config::zero_optimization, &Zero::offload_param, &OffloadParam::nvme_path>)),
    {.path = "zero_optimization.offload_param.buffer_count",
     .kind = Kind::kCount,
     .fallback = "5",
     .note = "pieces in memory that are read, updated and written at the same time, of at most 8 MiB; device nvme",
     .minimum = 3,
     .maximum = 4096,
     .field = field<&Config::zero_optimization, &Zero::offload_param, &OffloadParam::buffer_count>},
    no_effect("zero_optimization.offload_param.buffer_size", Kind::kCount, "1e8", kWholeUnits),
    no_effect("zero_optimization.offload_param.max_in_cpu", Kind::kCount, "1e9", kWholeUnits),
    no_effect("zero_optimization.offload_param.pin_memory", Kind::kBool, "true",
              "what is read goes to memory that the ranks share", "false|true"),

    or_null(honoured("zero_optimization.cpu_offload", Kind::kBool, "false", kOldOffload,
                     field<&Config::zero_optimization, &Zero::cpu_offload>)),
    or_null(honoured("zero_optimization.cpu_offload_param", Kind::kBool, "false", kOldOffloadParam,
                     field<&Config::zero_optimization, &Zero::cpu_offload_param>)),
    old_name("zero_optimization.cpu_offload_params", Kind::kBool, "false", "zero_optimization.cpu_offload_param"),
    {.path = "zero_optimization.cpu_offload_use_pin_memory",
     .kind = Kind::kBool,
     .fallback = "false",
     .status = kNoEffect,
     .note = kOffload,
     .harmless = "false|true",
     .alias_of = "zero_optimization.offload_optimizer.pin_memory",
     .nullable = true},
};

}  // namespace

std::span<const Key> offload_keys() { return kOffloadKeys; }

}  // namespace zero::config
