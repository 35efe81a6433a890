#include "optim/staged_update.h"

#include <algorithm>

#include "optim/device_kernels.h"
#include "optim/kernels.h"

namespace zero::optim {
namespace {

constexpr std::int64_t kBlock = 512;
static_assert(kBlock % kQuantizedBlockNumel == 0);

template <class T>
T* offset(T* memory, std::int64_t numel) {
  return memory ? memory + numel : nullptr;
}
void* offset(void* memory, StateFormat format, std::int64_t numel) {
  return static_cast<char*>(memory) + nbytes_of(format, numel);
}

void fetch(const void* from, std::int64_t nbytes) {
  constexpr std::int64_t kLine = 64;
  asm volatile("");  // else GCC takes it for a function that does nothing
  for (std::int64_t i = 0; i < nbytes; i += kLine) __builtin_prefetch(static_cast<const char*>(from) + i);
}

/// What a block needs of memory, while the one before it is computed: a block is too short for the processor to see
/// where its eight or so streams go on.
void fetch_block(const Rule& rule, const UpdateArgs& args, std::int64_t begin) {
  const auto& narrow = args.narrow;
  const auto of = [&](const void* memory, StateFormat format) {
    if (memory) fetch(offset(const_cast<void*>(memory), format, begin), nbytes_of(format, kBlock));
  };
  of(args.master, StateFormat::kFloat32);
  of(narrow.master, narrow.master_format);
  of(args.remainder, StateFormat::kBFloat16);
  of(args.low, format_of(args.low_dtype));
  of(args.gradient, StateFormat::kFloat32);
  of(narrow.gradient, narrow.gradient_format);
  for (std::size_t s = 0; s < rule.states.size(); ++s) of(args.states[s], rule.states[s].format);
}

void narrow_master(const float* values, void* out, std::int64_t begin, std::int64_t numel, const UpdateArgs& args,
                   const Hyper& hyper) {
  const auto& narrow = args.narrow;
  if (!narrow.stochastic) return kernels().narrow_state(narrow.master_format, values, out, numel);
  kernels().round_stochastically(values, static_cast<std::uint16_t*>(out), numel,
                                 narrow.first_element + static_cast<std::uint64_t>(begin),
                                 noise_key(narrow.seed, hyper.step));
}

}  // namespace

bool is_fp32(const Rule& rule, const UpdateArgs& args) {
  return !args.narrow.master && !args.narrow.gradient &&
         std::ranges::all_of(rule.states, [](const StateColumn& s) { return s.format == StateFormat::kFloat32; });
}

void update_staged(const Rule& rule, const UpdateArgs& args, const Hyper& hyper) {
  alignas(64) float master[kBlock], gradient[kBlock], states[kMostStates][kBlock];
  const auto& narrow = args.narrow;
  for (std::int64_t begin = 0; begin < args.numel; begin += kBlock) {
    fetch_block(rule, args, begin + kBlock);
    UpdateArgs block{.low_dtype = args.low_dtype, .numel = std::min(kBlock, args.numel - begin)};
    if (narrow.master) {
      block.master = master;
      kernels().widen_state(narrow.master_format, offset(narrow.master, narrow.master_format, begin), master,
                            block.numel);
    } else {
      block.master = offset(args.master, begin);
      block.remainder = offset(args.remainder, begin);
      block.low = offset(static_cast<std::uint16_t*>(args.low), begin);
    }
    block.gradient = offset(args.gradient, begin);
    block.direction = offset(args.direction, begin);
    if (narrow.gradient) {
      block.gradient = gradient;
      kernels().widen_state(narrow.gradient_format,
                            offset(const_cast<void*>(narrow.gradient), narrow.gradient_format, begin), gradient,
                            block.numel);
    }
    for (std::size_t s = 0; s < rule.states.size(); ++s) {
      const StateFormat format = rule.states[s].format;
      void* const kept = offset(args.states[s], format, begin);
      block.states[s] = format == StateFormat::kFloat32 ? kept : states[s];
      if (block.states[s] != kept) kernels().widen_state(format, kept, states[s], block.numel);
    }
    rule.update(block, hyper);
    for (std::size_t s = 0; s < rule.states.size(); ++s) {
      const StateFormat format = rule.states[s].format;
      if (format != StateFormat::kFloat32)
        kernels().narrow_state(format, states[s], offset(args.states[s], format, begin), block.numel);
    }
    if (!narrow.master) continue;
    void* const kept = offset(narrow.master, narrow.master_format, begin);
    narrow_master(master, kept, begin, block.numel, args, hyper);
    if (args.low)
      kernels().copy(offset(args.low, narrow.master_format, begin), kept,
                     static_cast<std::size_t>(nbytes_of(narrow.master_format, block.numel)));
  }
}

}  // namespace zero::optim
