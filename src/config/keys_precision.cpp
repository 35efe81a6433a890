// "fp16", "bf16", "data_types".
#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr double kMostScale = 4294967296.0, kLeastScale = 1.0 / 65536;

DType dtype_named(std::string_view text) {
  if (text.find("bf") != std::string_view::npos) return DType::kBFloat16;
  const bool half = text.find("16") != std::string_view::npos || text.find("half") != std::string_view::npos;
  return half ? DType::kFloat16 : DType::kFloat32;
}

constexpr Key kPrecision[] = {
    section("fp16", "mixed precision with loss scaling; without it see bf16"),
    honoured("fp16.enabled", Kind::kBool, "false",
             "parameters, activations and gradients in fp16, master weights in fp32; a step whose gradients are not "
             "finite is skipped on all ranks",
             field<&Config::fp16, &Config::Fp16::enabled>),
    honoured("fp16.auto_cast", Kind::kBool, "false",
             "floating-point tensors given to the engine's call operator become fp16",
             field<&Config::fp16, &Config::Fp16::auto_cast>),
    {.path = "fp16.loss_scale",
     .kind = Kind::kNumber,
     .fallback = "0",
     .note = "what losses are multiplied with; 0: dynamic",
     .maximum = kMostScale,
     .field = field<&Config::fp16, &Config::Fp16::loss_scale>},
    {.path = "fp16.initial_scale_power",
     .kind = Kind::kCount,
     .fallback = "16",
     .note = "a dynamic scale begins at 2 to this power",
     .maximum = 32,
     .field = field<&Config::fp16, &Config::Fp16::initial_scale_power>},
    {.path = "fp16.loss_scale_window",
     .kind = Kind::kCount,
     .fallback = "1000",
     .note = "steps without overflow after which a dynamic scale is doubled",
     .minimum = 1,
     .field = field<&Config::fp16, &Config::Fp16::loss_scale_window>},
    {.path = "fp16.hysteresis",
     .kind = Kind::kCount,
     .fallback = "2",
     .note = "overflows before a dynamic scale is halved",
     .minimum = 1,
     .field = field<&Config::fp16, &Config::Fp16::hysteresis>},
    honoured("fp16.consecutive_hysteresis", Kind::kBool, "false",
             "every step without overflow refills the hysteresis; else only the doubling of the scale does",
             field<&Config::fp16, &Config::Fp16::consecutive_hysteresis>),
    {.path = "fp16.min_loss_scale",
     .kind = Kind::kNumber,
     .fallback = "1",
     .note = "an overflow at this scale is an error that names the parameter",
     .minimum = kLeastScale,
     .maximum = kMostScale,
     .field = field<&Config::fp16, &Config::Fp16::min_loss_scale>},
    honoured("fp16.fp16_master_weights_and_grads", Kind::kBool, "false",
             "no fp32 master weights: the fp16 parameters are updated, and gradients are summed in fp16",
             field<&Config::fp16, &Config::Fp16::master_weights_and_grads>),

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
              "gradients are always added to their sums as they are produced", "true"),
    honoured("bf16.bf16_master_weights_and_grads", Kind::kBool, "false",
             "no fp32 master weights: the bf16 parameters are updated, and gradients are summed in bf16; see "
             "zerotorch.stochastic_rounding",
             field<&Config::bf16, &Config::Bf16::master_weights_and_grads>),
    honoured("bf16.bf16_optimizer_states", Kind::kBool, "false", "the optimizer's states in bf16",
             field<&Config::bf16, &Config::Bf16::optimizer_states>),

    section("data_types", "dtypes of single parts"),
    {.path = "data_types.grad_accum_dtype",
     .kind = Kind::kChoice,
     .fallback = "null",
     .note = "what gradients are summed in; null: fp32, or the parameters' dtype with 16-bit master weights",
     .choices = "fp32|float32|float|torch.float32|bf16|bfloat16|torch.bfloat16|fp16|float16|half|torch.float16",
     .field = {.bind = [](Config& c, const Value& v) { c.grad_accum_dtype = dtype_named(v.text); },
               .unbind = [](const Config& c) -> Value {
                 if (!c.grad_accum_dtype) return {.given = false};
                 return {.text = std::string(dtype_name(*c.grad_accum_dtype))};
               }}},
    {.path = "data_types.param_dtype",
     .kind = Kind::kChoice,
     .fallback = "null",
     .note = "only what fp16.enabled and bf16.enabled say already: \"fp16\", \"bf16\", else \"fp32\"",
     .choices = "fp32|float32|float|torch.float32|bf16|bfloat16|torch.bfloat16|fp16|float16|half|torch.float16"},
    {.path = "data_types.buffer_dtype",
     .kind = Kind::kChoice,
     .fallback = "null",
     .status = kRefused,
     .note = "buffers keep the dtype the module gave them, or the parameters' (zerotorch.buffer_dtype); convert them "
             "in the module",
     .choices = "fp32|float32|float|torch.float32|bf16|bfloat16|torch.bfloat16|fp16|float16|half|torch.float16"},
};

}  // namespace

std::span<const Key> precision_keys() { return kPrecision; }

}  // namespace zero::config
