// The kernels of a GPU beside a copy of as many bytes on it, in one run.
//
//   device_kernels [--device cuda] [--numel 268435456] [--rounds 15]
//
// Prints one JSON line per pass: what it reads and writes at least, the median of the rounds, GB/s, and the ratio to
// the copy's GB/s (bytes read and written, both).
#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/clock.h"
#include "bench_support.h"
#include "optim/kernels.h"
#include "optim/passes.h"

namespace {

namespace optim = zero::optim;
using zero::DType;
using zero::base::seconds_now;

struct Options {
  std::string device = "cuda";
  std::int64_t numel = std::int64_t{1} << 28;
  int rounds = 15;
};

class Timer {
 public:
  Timer(at::Device device, int rounds) : device_(device), rounds_(rounds) {}

  /// Seconds of a call, the median.
  double operator()(const std::function<void()>& call) const {
    constexpr int kCalls = 4;
    std::vector<double> seconds;
    const c10::impl::VirtualGuardImpl backend(device_.type());
    for (int round = -2; round < rounds_; ++round) {
      backend.synchronizeDevice(device_.index());
      const double begin = seconds_now();
      for (int i = 0; i < kCalls; ++i) call();
      backend.synchronizeDevice(device_.index());
      if (round >= 0) seconds.push_back((seconds_now() - begin) / kCalls);
    }
    return bench::median(seconds);
  }

 private:
  const at::Device device_;
  const int rounds_;
};

int run(const Options& options) {
  at::Device device(options.device);
  if (!device.has_index()) device = at::Device(device.type(), 0);
  const optim::Passes* const passes = optim::fused_passes_for(device);
  if (!passes) {
    std::cerr << "no kernels for " << device.str() << "\n";
    return 1;
  }
  const std::int64_t numel = options.numel / optim::kSumBlockNumel * optim::kSumBlockNumel;
  const auto n = static_cast<double>(numel);
  const Timer time(device, options.rounds);
  const auto on_device = at::TensorOptions(device);
  const at::Tensor master = at::randn({numel}, on_device), average = at::randn({numel}, on_device),
                   squares = at::rand({numel}, on_device), gradient = at::randn({numel}, on_device);
  const at::Tensor low = master.to(at::kBFloat16), remainder = at::zeros({numel}, on_device.dtype(at::kShort));
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < 4; ++rank) parts.push_back(at::randn({numel}, on_device.dtype(at::kBFloat16)));

  const double copy_s = time([&] { gradient.copy_(master); });
  const double copy_rate = 8 * n / copy_s / 1e9;
  const auto line = [&](const std::string& pass, double bytes_each, double seconds) {
    const double rate = bytes_each * n / seconds / 1e9;
    std::cout << nlohmann::json{{"pass", pass},
                                {"bytes_per_element", bytes_each},
                                {"ms", std::round(seconds * 1e5) / 1e2},
                                {"gb_per_s", std::round(rate)},
                                {"of_copy", std::round(rate / copy_rate * 1000) / 1000}}
                     .dump()
              << std::endl;
  };
  line("copy", 8, copy_s);

  optim::Hyper hyper{.lr = 1e-4, .weight_decay = 0.1};
  const auto update = [&](const optim::Rule& rule, const optim::UpdateArgs& args) {
    return time([&] { passes->update(rule, args, hyper); });
  };
  const optim::Rule& adam = optim::rule_for(optim::Algorithm::kAdam, {&hyper, 1});
  optim::UpdateArgs args;
  args.master = master.mutable_data_ptr<float>();
  args.gradient = gradient.const_data_ptr<float>();
  args.states[0] = average.mutable_data_ptr();
  args.states[1] = squares.mutable_data_ptr();
  args.numel = numel;
  line("AdamW, fp32", 28, update(adam, args));
  args.low = low.mutable_data_ptr();
  args.low_dtype = DType::kBFloat16;
  line("AdamW, fp32 masters, bf16 parameters", 30, update(adam, args));
  args.master = nullptr;
  args.remainder = static_cast<std::uint16_t*>(remainder.mutable_data_ptr());
  line("AdamW, split masters", 28, update(adam, args));
  const optim::Rule& adam16 = optim::rule_for(optim::Algorithm::kAdam, {&hyper, 1}, optim::StateFormat::kBFloat16);
  line("AdamW, split masters, bf16 states", 20, update(adam16, args));
  const optim::Rule& adam8 = optim::rule_for(optim::Algorithm::kAdam8bit, {&hyper, 1});
  line("AdamW8bit, split masters", 12 + 4 * (68.0 / 64), update(adam8, args));

  const at::Tensor sums = at::zeros({numel / optim::kSumBlockNumel}, on_device.dtype(at::kDouble));
  for (const std::size_t ranks : {1u, 2u, 4u}) {
    std::vector<const void*> slices;
    for (std::size_t rank = 0; rank < ranks; ++rank) slices.push_back(parts[rank].const_data_ptr());
    const auto reduce = [&](bool first, double* block_sumsq) {
      return time([&] {
        passes->reduce({.accumulator = gradient.mutable_data_ptr(),
                        .slices = slices,
                        .dtype = DType::kBFloat16,
                        .numel = numel,
                        .first = first,
                        .block_sumsq = block_sumsq});
      });
    };
    const auto slice_nbytes = 2 * static_cast<double>(ranks);
    line(fmt::format("reduce, {} of bf16 onto fp32, first", ranks), 4 + slice_nbytes, reduce(true, nullptr));
    line(fmt::format("reduce, {} of bf16 onto fp32", ranks), 8 + slice_nbytes, reduce(false, nullptr));
    line(fmt::format("reduce, {} of bf16 onto fp32, squares", ranks), 8 + slice_nbytes,
         reduce(false, sums.mutable_data_ptr<double>()));
  }
  line("squares, fp32", 4, time([&] {
         passes->block_sumsq(master.const_data_ptr(), DType::kFloat32, numel, sums.mutable_data_ptr<double>());
       }));
  line("round, fp32 to bf16", 6,
       time([&] { passes->round(master.const_data_ptr<float>(), low.mutable_data_ptr(), DType::kBFloat16, numel); }));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The kernels of a GPU beside a copy.");
  app.add_option("--device", options.device);
  app.add_option("--numel", options.numel);
  app.add_option("--rounds", options.rounds);
  CLI11_PARSE(app, argc, argv);
  return run(options);
}
