// "checkpoint" and its relatives, "aio", "activation_checkpointing".
#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr std::string_view kWriter =
    "checkpoints are always written by one file per rank, with checksums, and committed atomically";
constexpr std::string_view kThreads = "io_uring needs no threads; without it 4 do the system calls";
constexpr std::string_view kPipeline = "requests are always queued singly and overlap with each other and with updates";

constexpr Key kCheckpoint[] = {
    section("checkpoint", "how checkpoints are written; when: zerotorch.checkpoint", kNoEffect),
    {.path = "checkpoint.tag_validation",
     .kind = Kind::kChoice,
     .fallback = "\"Warn\"",
     .status = kNoEffect,
     .note = "a tag that differs between ranks is always an error",
     .harmless = "\"Fail\"",
     .choices = "Ignore|Warn|Fail"},
    no_effect("checkpoint.load_universal", Kind::kBool, "false", "every checkpoint loads at any number of ranks",
              "false|true"),
    refused("checkpoint.use_node_local_storage", Kind::kBool, "false",
            "the folder of a checkpoint must be seen by all ranks; remove the key", "false"),
    section("checkpoint.parallel_write", "of pipelines", kNoEffect),
    no_effect("checkpoint.parallel_write.pipeline_stage", Kind::kBool, "false", kWriter, "true"),
    no_effect("checkpoint.checkpoint_serialization", Kind::kBool, "true", kWriter),
    no_effect("checkpoint.writer", Kind::kAny, "null", kWriter),

    section("aio", "how offload to NVMe reads and writes"),
    {.path = "aio.block_size",
     .kind = Kind::kCount,
     .fallback = "1048576",
     .note = "bytes of a request to the disk",
     .minimum = 4096,
     .maximum = 1 << 30,
     .field = field<&Config::aio, &Config::Aio::block_size>},
    {.path = "aio.queue_depth",
     .kind = Kind::kCount,
     .fallback = "32",
     .note = "requests of a rank under way at once",
     .minimum = 1,
     .maximum = 4096,
     .field = field<&Config::aio, &Config::Aio::queue_depth>},
    no_effect("aio.intra_op_parallelism", Kind::kCount, "1", kThreads),
    old_name("aio.thread_count", Kind::kCount, "1", "aio.intra_op_parallelism", kNoEffect),
    no_effect("aio.single_submit", Kind::kBool, "false", kPipeline),
    no_effect("aio.overlap_events", Kind::kBool, "true", kPipeline),
    refused("aio.use_gds", Kind::kBool, "false", "GPUDirect Storage is not built; remove the key", "false"),

    section("activation_checkpointing", "of zero::recompute(); which parts there are is the model's to say"),
    honoured("activation_checkpointing.partition_activations", Kind::kBool, "false",
             "each model-parallel rank keeps its part of the inputs of parts; without such ranks no effect",
             field<&Config::activation_checkpointing, &Config::ActivationCheckpointing::partition_activations>),
    no_effect("activation_checkpointing.number_checkpoints", Kind::kCount, "null",
              "memory is taken as parts need it, whatever their number"),
    no_effect("activation_checkpointing.contiguous_memory_optimization", Kind::kBool, "false",
              "freed blocks of memory are used again as they are; there is nothing to fragment", "false"),
    honoured("activation_checkpointing.cpu_checkpointing", Kind::kBool, "false",
             "what backward needs of parts is in host memory, of a module on a GPU; of one on the CPU it is anyway",
             field<&Config::activation_checkpointing, &Config::ActivationCheckpointing::cpu_checkpointing>),
    no_effect("activation_checkpointing.synchronize_checkpoint_boundary", Kind::kBool, "false", "of streams of a GPU",
              "false"),
    no_effect("activation_checkpointing.profile", Kind::kBool, "false", "flops_profiler and zerotorch.trace are there",
              "false"),
};

}  // namespace

std::span<const Key> checkpoint_keys() { return kCheckpoint; }

}  // namespace zero::config
