// Batch sizes, and what applies to the step as a whole.
#include <algorithm>
#include <iterator>

#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr DType kDtypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32};  // in the order of the choices
constexpr Field kCommunicationDtype = {
    .bind = [](Config& c, const Value& v) { c.communication_dtype = kDtypes[*v.choice]; },
    .unbind = [](const Config& c) -> Value {
      if (!c.communication_dtype) return {.given = false};
      const auto* const found = std::ranges::find(kDtypes, *c.communication_dtype);
      return {.choice = static_cast<std::size_t>(found - std::begin(kDtypes))};
    }};

constexpr Key kBatch[] = {
    {.path = "train_batch_size",
     .kind = Kind::kCount,
     .fallback = "null",
     .note = "samples per optimizer step over all ranks",
     .minimum = 1,
     .maximum = kMostSamples,
     .field = count_or_null<&Config::train_batch_size>},
    {.path = "train_micro_batch_size_per_gpu",
     .kind = Kind::kCount,
     .fallback = "null",
     .note = "samples per rank in one forward/backward",
     .minimum = 1,
     .maximum = kMostSamples,
     .field = count_or_null<&Config::train_micro_batch_size_per_gpu>},
    old_name("train_micro_batch_size_per_device", Kind::kCount, "null", "train_micro_batch_size_per_gpu"),
    {.path = "gradient_accumulation_steps",
     .kind = Kind::kCount,
     .fallback = "null",
     .note = "micro-batches per rank and step",
     .minimum = 1,
     .maximum = kMostSamples,
     .field = count_or_null<&Config::gradient_accumulation_steps>},
    refused("managed_gradient_accumulation", Kind::kBool, "true",
            "the engine counts the micro-batches of a step; keep true and set gradient_accumulation_steps, or "
            "call Engine::set_gradient_accumulation_boundary",
            "true"),
    no_effect("dataloader_drop_last", Kind::kBool, "false",
              "the program feeds the engine; there is no data loader to configure", "false"),
};

constexpr Key kStep[] = {
    honoured("gradient_clipping", Kind::kNumber, "1.0", "upper bound of the global gradient norm; 0 is off",
             field<&Config::gradient_clipping>),
    no_effect("prescale_gradients", Kind::kBool, "false",
              "gradients are summed in a fixed order, in fp32 if not said otherwise, and divided once after it: no "
              "sum overflows, and there is nothing to scale before",
              "false"),
    no_effect("gradient_predivide_factor", Kind::kNumber, "1.0",
              "gradients are summed in a fixed order, in fp32 if not said otherwise, and divided once after it: no "
              "sum overflows, and there is nothing to divide before",
              "1.0"),
    {.path = "gradient_allreduce_op",
     .kind = Kind::kChoice,
     .fallback = "\"mean\"",
     .note = "gradients are averaged over the ranks, or summed, so that the update depends on their number",
     .choices = "mean|sum",
     .field = field<&Config::gradient_allreduce_op>},
    no_effect("sparse_gradients", Kind::kBool, "false",
              "gradients that come sparse (embeddings with sparse=true) travel as rows where these are "
              "fewer bytes than the table, with either value",
              "false|true"),
    {.path = "communication_data_type",
     .kind = Kind::kChoice,
     .fallback = "null",
     .note = "what gradients travel in; null: the parameters' dtype. Sums: data_types.grad_accum_dtype",
     .choices = "fp16|bf16|fp32",
     .field = kCommunicationDtype},
    no_effect("fp32_allreduce", Kind::kBool, "false",
              "data_types.grad_accum_dtype says what sums are in, fp32 if not given", "true"),
    no_effect("allreduce_always_fp32", Kind::kBool, "false",
              "data_types.grad_accum_dtype says what sums are in, fp32 if not given", "true"),
    no_effect("disable_allgather", Kind::kBool, "false", "updated parameters are published in one way only", "false"),
    no_effect("zero_allow_untested_optimizer", Kind::kBool, "false",
              "C++ programs have the optimizers named in docs/config.md, which are tested", "false"),
    no_effect("zero_force_ds_cpu_optimizer", Kind::kBool, "true", "the engine's own fused optimizer is always used",
              "true"),
    refused("graph_harvesting", Kind::kBool, "false", "CUDA graphs are not built; remove the key", "false"),
    no_effect("vocabulary_size", Kind::kCount, "null", "DeepSpeed only uses it for a warning about alignment"),
};

}  // namespace

std::span<const Key> batch_keys() { return kBatch; }
std::span<const Key> step_keys() { return kStep; }

}  // namespace zero::config
