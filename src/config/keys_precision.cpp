// "fp16", "bf16", "data_types".
#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr std::string_view kFp16 = "fp16 is not built yet; use \"bf16\": {\"enabled\": true} instead";
constexpr std::string_view kInFp16 = "fp16 is not built yet";
constexpr std::string_view kMasters = "master weights, gradient sums and moments are fp32; remove the key";

constexpr Key kPrecision[] = {
    not_built("fp16", kFp16),
    refused("fp16.enabled", Kind::kBool, "false", kFp16, "false"),
    refused("fp16.auto_cast", Kind::kBool, "false", kInFp16),
    refused("fp16.loss_scale", Kind::kNumber, "0", kInFp16),
    refused("fp16.initial_scale_power", Kind::kCount, "16", kInFp16),
    refused("fp16.loss_scale_window", Kind::kCount, "1000", kInFp16),
    refused("fp16.hysteresis", Kind::kCount, "2", kInFp16),
    refused("fp16.consecutive_hysteresis", Kind::kBool, "false", kInFp16),
    refused("fp16.min_loss_scale", Kind::kNumber, "1", kInFp16),
    refused("fp16.fp16_master_weights_and_grads", Kind::kBool, "false", kInFp16),

    section("bf16", "without it everything is fp32"),
    old_name("bfloat16", Kind::kSection, "null", "bf16"),
    honoured("bf16.enabled", Kind::kBool, "false",
             "parameters, activations and gradients in bf16, master weights in fp32",
             field<&Config::bf16, &Config::Bf16::enabled>),
    honoured("bf16.check_grad_overflow", Kind::kBool, "true",
             "skip the step on all ranks when a gradient is not finite",
             field<&Config::bf16, &Config::Bf16::check_grad_overflow>),
    old_name("bf16.check_overflow", Kind::kBool, "true", "bf16.check_grad_overflow"),
    no_effect("bf16.immediate_grad_update", Kind::kBool, "false",
              "gradients are always added to the fp32 accumulator as they are produced", "true"),
    refused("bf16.bf16_master_weights_and_grads", Kind::kBool, "false", kMasters, "false"),
    refused("bf16.bf16_optimizer_states", Kind::kBool, "false", kMasters, "false"),

    section("data_types", "dtypes of single parts"),
    {.path = "data_types.grad_accum_dtype",
     .kind = Kind::kChoice,
     .fallback = "null",
     .status = kRefused,
     .note = "gradients are accumulated in fp32; write \"fp32\" or remove the key",
     .harmless = "\"fp32\"|\"float32\"|\"float\"|\"torch.float32\"",
     .choices =
         "fp32|float32|float|torch.float32|bf16|bfloat16|torch.bfloat16|fp16|float16|half|torch.float16"},
    {.path = "data_types.param_dtype",
     .kind = Kind::kChoice,
     .fallback = "null",
     .note = "only what bf16.enabled says already: \"bf16\" when true, \"fp32\" when false",
     .choices = "fp32|float32|float|torch.float32|bf16|bfloat16|torch.bfloat16",
     .refused_choices = "fp16|float16|half|torch.float16"},
    {.path = "data_types.buffer_dtype",
     .kind = Kind::kChoice,
     .fallback = "null",
     .status = kRefused,
     .note = "buffers keep the dtype the module gave them, or the parameters' (zerotorch.buffer_dtype); convert them "
             "in the module",
     .choices =
         "fp32|float32|float|torch.float32|bf16|bfloat16|torch.bfloat16|fp16|float16|half|torch.float16"},
};

}  // namespace

std::span<const Key> precision_keys() { return kPrecision; }

}  // namespace zero::config
