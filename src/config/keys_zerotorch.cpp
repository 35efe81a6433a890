// Our own section, "zerotorch".
#include "config/schema.h"

namespace zero::config {
namespace {

using BufferDtype = Config::Zerotorch::BufferDtype;
using Buffers = Config::Zerotorch::Buffers;
using ProgressThread = Config::Zerotorch::ProgressThread;
using Store = Config::Zerotorch::Store;
using UnusedParameters = Config::Zerotorch::UnusedParameters;
using VerifyParameters = Config::Zerotorch::VerifyParameters;

constexpr Key kKeys[] = {
    {.path = "zerotorch",
     .kind = Kind::kSection,
     .fallback = "null",
     .note = "what DeepSpeed has no key for"},
    {.path = "zerotorch.store",
     .kind = Kind::kChoice,
     .fallback = "\"auto\"",
     .note =
         "where gathered parameters live: once on each host, or copied to each rank; auto: node_shared when "
         "all ranks are on one host, else copying",
     .choices = "auto|node_shared|copying",
     .bind =
         [](Config& c, const Value& v) {
           c.zerotorch.store = v.text == "auto"          ? Store::kAuto
                               : v.text == "node_shared" ? Store::kNodeShared
                                                         : Store::kCopying;
         }},
    {.path = "zerotorch.unit_numel",
     .kind = Kind::kCount,
     .fallback = "0",
     .note = "upper bound of a unit in elements; 0: chosen from the model",
     .maximum = kMostNumel,
     .bind = [](Config& c, const Value& v) { c.zerotorch.unit_numel = v.count; }},
    {.path = "zerotorch.unit_names",
     .kind = Kind::kStrings,
     .fallback = "[]",
     .note = "modules that each become one unit, by their name in the model",
     .bind = [](Config& c, const Value& v) { c.zerotorch.unit_names = v.texts; }},
    {.path = "zerotorch.seed",
     .kind = Kind::kCount,
     .fallback = "null",
     .note = "seed of the random streams",
     .bind = [](Config& c, const Value& v) { c.zerotorch.seed = v.count; }},
    {.path = "zerotorch.reseed_per_micro_batch",
     .kind = Kind::kBool,
     .fallback = "true",
     .note =
         "reseed libtorch's generator per global micro-batch, so that dropout does not depend on the ranks",
     .bind = [](Config& c, const Value& v) { c.zerotorch.reseed_per_micro_batch = v.boolean; }},
    {.path = "zerotorch.verify_parameters",
     .kind = Kind::kChoice,
     .fallback = "\"broadcast\"",
     .note = "at start: broadcast takes rank 0's parameters, verify compares and fails on a difference",
     .choices = "broadcast|verify",
     .bind =
         [](Config& c, const Value& v) {
           c.zerotorch.verify_parameters =
               v.text == "verify" ? VerifyParameters::kVerify : VerifyParameters::kBroadcast;
         }},
    {.path = "zerotorch.buffers",
     .kind = Kind::kChoice,
     .fallback = "\"rank0\"",
     .note =
         "buffers that forward writes, at the end of every step(): all ranks take rank 0's, or the mean over "
         "the ranks (those that are not floating-point: rank 0's), or each keeps its own",
     .choices = "rank0|each|mean",
     .bind =
         [](Config& c, const Value& v) {
           c.zerotorch.buffers = v.text == "rank0"  ? Buffers::kRank0
                                 : v.text == "each" ? Buffers::kEach
                                                    : Buffers::kMean;
         }},
    {.path = "zerotorch.buffer_dtype",
     .kind = Kind::kChoice,
     .fallback = "\"module\"",
     .note =
         "with bf16: buffers keep the dtype the module gave them, or floating-point buffers become bf16 as "
         "DeepSpeed makes them",
     .choices = "module|parameters",
     .bind =
         [](Config& c, const Value& v) {
           c.zerotorch.buffer_dtype =
               v.text == "parameters" ? BufferDtype::kParameters : BufferDtype::kModule;
         }},
    {.path = "zerotorch.progress_thread",
     .kind = Kind::kChoice,
     .fallback = "\"auto\"",
     .note = "a thread of each rank that moves data while the others compute; auto: with overlap_comm, over "
             "MPI or where a "
             "rank has a core more than compute threads",
     .choices = "auto|always|never",
     .bind =
         [](Config& c, const Value& v) {
           c.zerotorch.progress_thread = v.text == "auto"     ? ProgressThread::kAuto
                                         : v.text == "always" ? ProgressThread::kAlways
                                                              : ProgressThread::kNever;
         }},
    {.path = "zerotorch.measured_prefetch",
     .kind = Kind::kBool,
     .fallback = "true",
     .note = "copying store: gather ahead only as far as measured times ask for, up to "
             "stage3_prefetch_bucket_size",
     .bind = [](Config& c, const Value& v) { c.zerotorch.measured_prefetch = v.boolean; }},
    {.path = "zerotorch.caching_allocator",
     .kind = Kind::kBool,
     .fallback = "true",
     .note = "keep large blocks that libtorch frees on the CPU for the next step; process-wide",
     .bind = [](Config& c, const Value& v) { c.zerotorch.caching_allocator = v.boolean; }},
    {.path = "zerotorch.bind_cores_to_rank",
     .kind = Kind::kBool,
     .fallback = "false",
     .note = "pin each rank to its share of the cores",
     .bind = [](Config& c, const Value& v) { c.zerotorch.bind_cores_to_rank = v.boolean; }},
    {.path = "zerotorch.step_in_backward",
     .kind = Kind::kBool,
     .fallback = "false",
     .note = "update parameters in backward, keep no gradients; without clipping and accumulation only",
     .bind = [](Config& c, const Value& v) { c.zerotorch.step_in_backward = v.boolean; }},
    {.path = "zerotorch.timeout_s",
     .kind = Kind::kNumber,
     .fallback = "0",
     .note = "how long a collective may take in seconds, at least 0.001; 0: the group's default",
     .maximum = 31'536'000,
     .bind = [](Config& c, const Value& v) { c.zerotorch.timeout_s = v.number; }},
    {.path = "zerotorch.unused_parameters",
     .kind = Kind::kChoice,
     .fallback = "\"skip\"",
     .note = "a parameter that no rank has used in a step: skip leaves it alone as libtorch does, zero "
             "updates it "
             "with a gradient of zero (momentum, decay) as DeepSpeed does",
     .choices = "skip|zero",
     .bind =
         [](Config& c, const Value& v) {
           c.zerotorch.unused_parameters =
               v.text == "zero" ? UnusedParameters::kZero : UnusedParameters::kSkip;
         }},
    {.path = "zerotorch.debug_observer",
     .kind = Kind::kBool,
     .fallback = "false",
     .note = "check at every operator that no released parameter is read; slow",
     .bind = [](Config& c, const Value& v) { c.zerotorch.debug_observer = v.boolean; }},
};

}  // namespace

std::span<const Key> zerotorch_keys() { return kKeys; }

}  // namespace zero::config
