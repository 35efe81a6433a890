// The batch triad: train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "zero/config.h"
#include "zero/errors.h"

namespace zero {
namespace {

std::string said(std::int64_t value) { return value == 0 ? std::string("not given") : std::to_string(value); }

[[noreturn]] void fail(const Config& config, int world_size, const std::string& problem) {
  throw ConfigError(
      fmt::format("train_batch_size ({}) must be train_micro_batch_size_per_gpu ({}) * "
                  "gradient_accumulation_steps ({}) * ranks "
                  "({}): {}",
                  said(config.train_batch_size), said(config.train_micro_batch_size_per_gpu),
                  said(config.gradient_accumulation_steps), world_size, problem));
}

}  // namespace

void Config::resolve_batch(int world_size) {
  if (world_size < 1) fail(*this, world_size, "want at least one rank");
  if (train_batch_size < 0 || train_micro_batch_size_per_gpu < 0 || gradient_accumulation_steps < 0) {
    fail(*this, world_size, "none may be negative");
  }
  if (train_batch_size == 0 && train_micro_batch_size_per_gpu == 0) {
    fail(*this, world_size, "give train_batch_size or train_micro_batch_size_per_gpu");
  }
  std::int64_t micro = train_micro_batch_size_per_gpu;
  std::int64_t steps = gradient_accumulation_steps;
  if (train_batch_size == 0) {
    if (steps == 0) steps = 1;
    std::int64_t total = 0;
    if (__builtin_mul_overflow(micro, steps, &total) || __builtin_mul_overflow(total, world_size, &total)) {
      fail(*this, world_size, "the product is too large");
    }
    train_batch_size = total;
    gradient_accumulation_steps = steps;
    return;
  }
  const auto divide = [&](std::int64_t by, const char* missing) {
    std::int64_t divisor = 0;
    if (__builtin_mul_overflow(by, world_size, &divisor)) fail(*this, world_size, "the product is too large");
    if (train_batch_size % divisor == 0) return train_batch_size / divisor;
    const std::int64_t nearest = std::max<std::int64_t>(1, (train_batch_size + divisor / 2) / divisor) * divisor;
    fail(*this, world_size,
         fmt::format("{} does not divide by {} * {}, so {} has no value; the nearest train_batch_size that does is {}",
                     train_batch_size, by, world_size, missing, nearest));
  };
  if (micro == 0 && steps == 0) {
    steps = 1;
    micro = divide(1, "train_micro_batch_size_per_gpu");
  } else if (micro == 0) {
    micro = divide(steps, "train_micro_batch_size_per_gpu");
  } else if (steps == 0) {
    steps = divide(micro, "gradient_accumulation_steps");
  } else {
    std::int64_t total = 0;
    const bool overflow =
        __builtin_mul_overflow(micro, steps, &total) || __builtin_mul_overflow(total, world_size, &total);
    if (overflow || total != train_batch_size) {
      fail(*this, world_size,
           overflow ? std::string("the product is too large")
                    : fmt::format("the product is {}; remove one of the three, or set train_batch_size to {}", total,
                                  total));
    }
  }
  train_micro_batch_size_per_gpu = micro;
  gradient_accumulation_steps = steps;
}

}  // namespace zero
