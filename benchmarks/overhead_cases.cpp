#include "overhead_cases.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/clock.h"
#include "bench_support.h"
#include "comm/transport.h"
#include "optim/kernels.h"
#include "storage/cpu_allocator.h"
#include "storage/flat_buffer.h"
#include "storage/ledger.h"

namespace bench {
namespace {

using nlohmann::ordered_json;
using zero::DType;
using zero::base::seconds_now;
namespace optim = zero::optim;

constexpr double kLr = 1e-4, kWeightDecay = 0.01;

/// y = relu(x W^T) per layer, each a module of its own.
struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(std::int64_t width)
      : weight(register_parameter(
            "weight", at::empty({width, width}).uniform_(-1, 1).mul_(std::sqrt(6.0 / static_cast<double>(width))))) {}
  at::Tensor forward(const at::Tensor& x) { return at::relu(at::linear(x, weight)); }
  at::Tensor weight;
};

struct Mlp : torch::nn::Module {
  Mlp(int layers, std::int64_t width) {
    for (int i = 0; i < layers; ++i)
      layers_.push_back(register_module(fmt::format("layer{}", i), std::make_shared<LayerImpl>(width)));
  }
  at::Tensor loss(const at::Tensor& x) {
    at::Tensor y = x;
    for (const auto& layer : layers_) y = layer->forward(y);
    return at::mean(at::square(y)).to(at::kFloat);
  }
  std::vector<std::shared_ptr<LayerImpl>> layers_;
};

double least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }
double us(double seconds) { return std::round(seconds * 1e7) / 10; }
double ms(double seconds) { return std::round(seconds * 1e5) / 100; }

void print(const Rank& rank, const ordered_json& line) {
  if (rank.group.rank() == 0) std::cout << line.dump() << std::endl;
}

struct Mode {
  int stage = 0;
  bool bf16 = false;
  std::string store = "auto";
  std::int64_t unit_numel = 0;
  bool in_backward = false;
  double lr = kLr;
};

std::string json_of(const Mode& mode, int ranks) {
  const ordered_json json = {
      {"train_micro_batch_size_per_gpu", 1},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", mode.lr}, {"weight_decay", kWeightDecay}}}}},
      {"gradient_clipping", 0.0},
      {"bf16", {{"enabled", mode.bf16}, {"check_grad_overflow", false}}},
      {"zero_optimization", {{"stage", mode.stage}, {"overlap_comm", true}, {"stage3_param_persistence_threshold", 0}}},
      {"zerotorch",
       {{"store", ranks > 1 ? mode.store : "auto"},
        {"unit_numel", mode.unit_numel},
        {"update", mode.in_backward ? "in_backward" : "after_backward"}}}};
  return json.dump();
}

/// Seconds of `step` on this rank, from when all ranks are there until all are done.
double timed(zero::Group& group, const std::function<void()>& step) {
  group.barrier().wait();
  const double begin = seconds_now();
  step();
  group.barrier().wait();
  return seconds_now() - begin;
}

/// A model with private parameters, and a step of AdamW made of our kernels and nothing else. Weights and
/// states lie in the same kind of memory as the engine's (page-aligned, huge pages where they are granted).
class ByHand {
 public:
  ByHand(int layers, std::int64_t width, bool bf16)
      : bf16_(bf16), layer_numel_(width * width), numel_(layers * layer_numel_), model_(layers, width) {
    if (bf16) model_.to(at::kBFloat16);
    weights_ = make(dtype());
    for (std::size_t i = 0; i < model_.layers_.size(); ++i) {
      const at::Tensor weight = model_.layers_[i]->weight;
      const at::Tensor place = weights_.view(offset(i), layer_numel_).view({width, width});
      at::NoGradGuard no_grad;
      place.copy_(weight);
      weight.set_data(place);
    }
  }

  double bare(const at::Tensor& x) {
    const at::Tensor loss = model_.loss(x);
    loss.backward();
    for (const auto& layer : model_.layers_) layer->weight.mutable_grad().reset();
    return loss.item<float>();
  }

  /// Updates the first of `shares` parts of every layer.
  double with_kernels(const at::Tensor& x, int shares) {
    make_states();
    const at::Tensor loss = model_.loss(x);
    loss.backward();
    ++steps_;
    for (std::size_t i = 0; i < model_.layers_.size(); ++i) {
      const at::Tensor gradient = take_gradient(i);
      const void* const slices[] = {gradient.const_data_ptr()};
      reduce(offset(i), layer_numel_ / shares, slices);
      update(offset(i), layer_numel_ / shares);
    }
    return loss.item<float>();
  }

  /// A step of ZeRO without an engine: gradients into one bucket, one exchange, this rank's part summed; then
  /// `whole`: all sums to all ranks, and all updated; else its part updated, and published.
  void with_exchange(const at::Tensor& x, zero::Group& group, bool whole, bool gather) {
    make_states();
    if (bucket_.empty()) {
      const auto transport = zero::comm::make_host_transport(group);
      bucket_ = FlatBuffer::make_readable(ledger_, kKind, dtype(), numel_, *transport);
    }
    const at::Tensor loss = model_.loss(x);
    loss.backward();
    ++steps_;
    for (std::size_t i = 0; i < model_.layers_.size(); ++i) {
      const at::Tensor gradient = take_gradient(i);
      optim::kernels().copy(bucket_.data_at(offset(i)), gradient.const_data_ptr(), gradient.nbytes());
    }
    const std::int64_t mine = numel_ / group.size(), begin = mine * group.rank();
    const std::vector<std::int64_t> counts(group.size(), mine);
    group
        .exchange(bucket_.data(), counts, dtype(),
                  [&](std::span<const void* const> slices) { reduce(begin, mine, slices); })
        .wait();
    if (whole) {
      group.all_gather(sums_.data_at(begin), sums_.data(), counts, DType::kFloat32).wait();
      update(0, numel_);
    } else {
      update(begin, mine);
      if (gather) group.all_gather(weights_.data_at(begin), weights_.data(), counts, dtype()).wait();
      group.barrier().wait();
    }
    loss.item<float>();
  }

 private:
  using FlatBuffer = zero::storage::FlatBuffer;
  static constexpr auto kKind = zero::MemoryKind::kStaging;

  DType dtype() const { return bf16_ ? DType::kBFloat16 : DType::kFloat32; }
  std::int64_t offset(std::size_t layer) const { return static_cast<std::int64_t>(layer) * layer_numel_; }
  FlatBuffer make(DType type) { return FlatBuffer::make_private(ledger_, kKind, type, numel_); }
  at::Tensor take_gradient(std::size_t layer) {
    return std::exchange(model_.layers_[layer]->weight.mutable_grad(), at::Tensor());
  }

  void make_states() {
    if (!sums_.empty()) return;
    sums_ = make(DType::kFloat32);
    exp_avg_ = make(DType::kFloat32);
    exp_avg_sq_ = make(DType::kFloat32);
    if (bf16_) remainder_ = make(DType::kBFloat16);
    sumsq_.resize(numel_ / optim::kSumBlockNumel);
  }

  void reduce(std::int64_t begin, std::int64_t numel, std::span<const void* const> slices) {
    optim::kernels().reduce({.accumulator = static_cast<float*>(sums_.data_at(begin)),
                             .slices = slices,
                             .dtype = dtype(),
                             .numel = numel,
                             .first = true,
                             .block_sumsq = sumsq_.data() + begin / optim::kSumBlockNumel});
  }

  void update(std::int64_t begin, std::int64_t numel) {
    void* const weight = weights_.data_at(begin);
    optim::kernels().update_of(optim::Algorithm::kAdam)(
        {.master = bf16_ ? nullptr : static_cast<float*>(weight),
         .remainder = bf16_ ? static_cast<std::uint16_t*>(remainder_.data_at(begin)) : nullptr,
         .states = {static_cast<float*>(exp_avg_.data_at(begin)), static_cast<float*>(exp_avg_sq_.data_at(begin))},
         .gradient = static_cast<const float*>(sums_.data_at(begin)),
         .low = bf16_ ? weight : nullptr,
         .numel = numel},
        {.lr = kLr, .weight_decay = kWeightDecay, .step = steps_});
  }

  bool bf16_;
  std::int64_t layer_numel_, numel_;
  zero::storage::Ledger ledger_;
  Mlp model_;
  FlatBuffer weights_, bucket_, sums_, exp_avg_, exp_avg_sq_, remainder_;
  std::vector<double> sumsq_;
  std::int64_t steps_ = 0;
};

/// A user's loop without this library: libtorch's AdamW.
class Plain {
 public:
  Plain(int layers, std::int64_t width, bool bf16) : model_(layers, width) {
    if (bf16) model_.to(at::kBFloat16);
    optimizer_.emplace(model_.parameters(), torch::optim::AdamWOptions(kLr).weight_decay(kWeightDecay));
  }
  void step(const at::Tensor& x) {
    const at::Tensor loss = model_.loss(x);
    loss.backward();
    optimizer_->step();
    optimizer_->zero_grad();
    loss.item<float>();
  }

 private:
  Mlp model_;
  std::optional<torch::optim::AdamW> optimizer_;
};

/// Weights that bf16 holds exactly, so that all start from the same masters.
std::shared_ptr<Mlp> make_model(int layers, std::int64_t width, bool bf16) {
  at::manual_seed(1);
  auto model = std::make_shared<Mlp>(layers, width);
  if (bf16) {
    model->to(at::kBFloat16);
    model->to(at::kFloat);
  }
  return model;
}

ordered_json breakdown_of(const std::vector<zero::StepBreakdown>& steps) {
  using B = zero::StepBreakdown;
  ordered_json json;
  const std::pair<const char*, double B::*> parts[] = {{"gradient_copy", &B::gradient_copy},
                                                       {"reduce", &B::reduce},
                                                       {"gather", &B::gather},
                                                       {"wait", &B::wait},
                                                       {"norm", &B::norm},
                                                       {"update", &B::update},
                                                       {"publish", &B::publish}};
  for (const auto& [name, member] : parts) {
    std::vector<double> values;
    for (const auto& step : steps) values.push_back(step.*member);
    json[name] = us(median(values));
  }
  return json;
}

void measure_tiny_step(Rank& rank, const OverheadOptions& options, const Mode& mode) {
  constexpr std::int64_t kWidth = 512, kBatch = 8;
  constexpr int kVerified = 5;
  zero::Group& group = rank.group;
  auto model = make_model(options.layers, kWidth, mode.bf16);
  auto engine = zero::initialize(model, json_of(mode, group.size()), zero::InitializeOptions{.group = group});
  at::manual_seed(1);
  ByHand by_hand(options.layers, kWidth, mode.bf16);
  // The same rows on every rank: then the average over the ranks is what one rank alone has.
  at::manual_seed(7);
  const at::Tensor x = at::randn({kBatch, kWidth}).to(mode.bf16 ? at::kBFloat16 : at::kFloat);
  const auto engine_step = [&] {
    const at::Tensor loss = model->loss(x);
    engine.backward(loss);
    engine.step();
    return static_cast<double>(loss.item<float>());
  };
  for (int i = 0; i < kVerified; ++i) {
    const double wanted = by_hand.with_kernels(x, 1), got = engine_step();
    if (got != wanted) {
      throw std::runtime_error(fmt::format("step {}: the engine's loss is {:.9g}, by hand {:.9g} (stage {}, {})", i,
                                           got, wanted, mode.stage, mode.bf16 ? "bf16" : "fp32"));
    }
  }
  Plain plain(options.layers, kWidth, mode.bf16);
  const bool several = group.size() > 1;
  const bool whole = mode.stage == 0;  // every rank updates all
  const std::function<void()> last = [&] {
    several ? by_hand.with_exchange(x, group, whole, mode.store == "copying") : plain.step(x);
  };
  const std::vector<std::function<void()>> loops{[&] { by_hand.bare(x); },
                                                 [&] { by_hand.with_kernels(x, whole ? 1 : group.size()); },
                                                 [&] { engine_step(); }, last};
  const std::size_t count = loops.size();
  // In blocks: a loop's own memory may stay in the cache, as it would without the others.
  constexpr int kBlock = 25, kSettle = 5;
  std::vector<std::vector<double>> times(count), blocks(count);
  std::vector<zero::StepBreakdown> breakdowns;
  for (int block = 0; block < (options.steps + kBlock - 1) / kBlock; ++block) {
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t loop = (block + k) % count;
      for (int i = 0; i < kSettle; ++i) timed(group, loops[loop]);
      std::vector<double> of_block;
      for (int i = 0; i < kBlock; ++i) {
        of_block.push_back(timed(group, loops[loop]));
        if (loop == 2) breakdowns.push_back(engine.step_breakdown());
      }
      group.all_reduce(of_block.data(), kBlock, DType::kFloat64, zero::ReduceOp::kMax).wait();
      times[loop].insert(times[loop].end(), of_block.begin(), of_block.end());
      blocks[loop].push_back(median(of_block));
    }
  }
  // Medians of the differences between neighbouring blocks.
  const auto over = [&](std::size_t loop) {
    std::vector<double> differences;
    for (std::size_t i = 0; i < blocks[loop].size(); ++i) differences.push_back(blocks[2][i] - blocks[loop][i]);
    return us(median(differences));
  };
  ordered_json line = {{"case", "step"},
                       {"parameters", options.layers * kWidth * kWidth},
                       {"ranks", group.size()},
                       {"stage", mode.stage},
                       {"store", mode.store},
                       {"dtype", mode.bf16 ? "bf16" : "fp32"},
                       {"bare_us", us(median(times[0]))},
                       {"kernels_us", us(median(times[1]))},
                       {"engine_us", us(median(times[2]))},
                       {"over_bare_us", over(0)},
                       {"over_kernels_us", over(1)},
                       {"over_bare_us_of_minima", us(least(times[2]) - least(times[0]))},
                       {"over_kernels_us_of_minima", us(least(times[2]) - least(times[1]))}};
  const std::string name = several ? "exchange" : "libtorch";
  line[name + "_us"] = us(median(times[3]));
  line["over_" + name + "_us"] = over(3);
  line["over_" + name + "_us_of_minima"] = us(least(times[2]) - least(times[3]));
  line.update({{"breakdown_us", breakdown_of(breakdowns)}, {"steps", times[0].size()}, {"verified", true}});
  print(rank, line);
}

// Scaling.

long status_kb(const char* key) {
  std::ifstream in("/proc/self/status");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind(key, 0) == 0) return std::stol(line.substr(std::strlen(key)));
  }
  return 0;
}
/// VmHWM counts from now.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

struct Line {
  double slope = 0, intercept = 0, r2 = 0;
};
Line fit(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0, syy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sx += x[i], sy += y[i], sxx += x[i] * x[i], sxy += x[i] * y[i], syy += y[i] * y[i];
  }
  Line line;
  line.slope = (n * sxy - sx * sy) / (n * sxx - sx * sx);
  line.intercept = (sy - line.slope * sx) / n;
  double residual = 0;
  for (std::size_t i = 0; i < x.size(); ++i) residual += std::pow(y[i] - line.intercept - line.slope * x[i], 2);
  line.r2 = 1 - residual / (syy - sy * sy / n);
  return line;
}

/// Seconds of a copy of `nbytes`, into memory that is touched for the first time and into the same again.
std::pair<double, double> time_of_copy(std::int64_t nbytes) {
  std::vector<char> from(nbytes, 1);
  const std::unique_ptr<char[]> to(new char[nbytes]);
  const auto once = [&] {
    const double begin = seconds_now();
    std::memcpy(to.get(), from.data(), nbytes);
    return seconds_now() - begin;
  };
  const double fresh = once();
  return {fresh, std::min(once(), once())};
}

struct Sized {
  double bare = 0, engine = 0, overhead = 0, initialize = 0;
};

/// Steps of `layers` layers with and without the engine, at a learning rate of zero: hundreds of layers
/// without biases would soon compute with denormal numbers, and only on one side; `apart`: one after the
/// other, for want of memory.
Sized measure_size(Rank& rank, int layers, std::int64_t width, const Mode& mode, int steps, bool apart,
                   ordered_json labels) {
  constexpr std::int64_t kBatch = 4;
  zero::Group& group = rank.group;
  const std::int64_t numel = layers * width * width;
  at::manual_seed(7);
  const at::Tensor x = at::randn({kBatch, width}).to(at::kBFloat16);
  std::vector<double> bare, engines, over;
  std::optional<ByHand> by_hand;
  const auto bare_step = [&] { return timed(group, [&] { by_hand->bare(x); }); };
  at::manual_seed(1);
  by_hand.emplace(layers, width, true);
  double wanted = by_hand->bare(x);
  if (apart) {
    for (int i = 0; i < steps; ++i) bare.push_back(bare_step());
    by_hand.reset();
    zero::storage::give_back_freed_memory();
  }
  const auto [fresh, warm] = apart ? std::pair(0.0, 0.0) : time_of_copy(4 * numel);
  zero::storage::give_back_freed_memory();
  auto model = make_model(layers, width, true);
  zero::storage::give_back_freed_memory();
  group.barrier().wait();
  const long before_kb = status_kb("VmRSS:");
  reset_peak();
  double begin = seconds_now();
  auto engine = zero::initialize(model, json_of(mode, group.size()), zero::InitializeOptions{.group = group});
  group.barrier().wait();
  Sized result;
  result.initialize = seconds_now() - begin;
  const long peak_kb = status_kb("VmHWM:"), after_kb = status_kb("VmRSS:");
  std::vector<zero::StepBreakdown> breakdowns;
  for (int i = -1; i < steps; ++i) {
    double times[2] = {apart ? 0 : bare_step(), timed(group, [&] {
                         const at::Tensor loss = model->loss(x);
                         engine.backward(loss);
                         engine.step();
                         const double got = loss.item<float>();
                         if (got != wanted) throw std::runtime_error(fmt::format("loss {}, by hand {}", got, wanted));
                       })};
    group.all_reduce(times, 2, DType::kFloat64, zero::ReduceOp::kMax).wait();
    if (i < 0) continue;
    if (!apart) bare.push_back(times[0]);
    engines.push_back(times[1]);
    over.push_back(times[1] - (apart ? median(bare) : times[0]));
    breakdowns.push_back(engine.step_breakdown());
  }
  result.bare = median(bare);
  result.engine = median(engines);
  result.overhead = median(over);
  const auto mb = [](double kb) { return std::round(kb / 1024); };
  labels.update({{"parameters", numel},
                 {"ranks", group.size()},
                 {"stage", mode.stage},
                 {"store", mode.store},
                 {"in_backward", mode.in_backward},
                 {"bare_ms", ms(result.bare)},
                 {"engine_ms", ms(result.engine)},
                 {"overhead_ms", ms(result.overhead)},
                 {"overhead_ms_of_minima", ms(least(engines) - least(bare))},
                 {"breakdown_us", breakdown_of(breakdowns)},
                 {"initialize_ms", ms(result.initialize)},
                 {"copy_fresh_ms", ms(fresh)},
                 {"copy_warm_ms", ms(warm)},
                 {"initialize_copies", fresh > 0 ? std::round(result.initialize / fresh * 100) / 100 : 0.0},
                 {"module_mb", std::round(4.0 * static_cast<double>(numel) / (1 << 20))},
                 {"rss_before_mb", mb(before_kb)},
                 {"rss_peak_mb", mb(peak_kb)},
                 {"rss_after_mb", mb(after_kb)},
                 {"steps", steps},
                 {"verified", true}});
  print(rank, labels);
  return result;
}

void print_fit(const Rank& rank, const std::string& what, const std::string& unit, const Mode& mode,
               const std::vector<double>& x, const std::vector<double>& y) {
  if (x.size() < 3) return;
  const Line line = fit(x, y);
  const auto rounded = [](double v) { return std::round(v * 1e4) / 1e4; };
  print(rank, {{"case", "fit"},
               {"of", what},
               {"unit", unit},
               {"ranks", rank.group.size()},
               {"stage", mode.stage},
               {"store", mode.store},
               {"slope", rounded(line.slope)},
               {"intercept", rounded(line.intercept)},
               {"r2", rounded(line.r2)},
               {"linear", line.r2 > 0.99}});
}

}  // namespace

Rank::Rank() {
  zero::storage::keep_freed_memory();
  at::set_num_threads(1);
  group = zero::init_distributed();
  bench::pin_to_core(group.local_rank());
}

void measure_tiny_steps(Rank& rank, const OverheadOptions& options) {
  for (const bool bf16 : {false, true}) {
    if (("," + options.dtypes + ",").find(bf16 ? ",bf16," : ",fp32,") == std::string::npos) continue;
    for (const int stage : options.stages) {
      measure_tiny_step(rank, options, {.stage = stage, .bf16 = bf16});
      if (stage == 3 && rank.group.size() > 1)
        measure_tiny_step(rank, options, {.stage = stage, .bf16 = bf16, .store = "copying"});
    }
  }
}

void measure_operators(Rank& rank) {
  constexpr std::int64_t kWidth = 16;
  constexpr int kCalls = 20'000, kRounds = 15;
  auto model = make_model(1, kWidth, false);
  const at::Tensor parameter = model->layers_[0]->weight;
  at::Tensor plain = parameter.detach().clone().set_requires_grad(true);
  const at::Tensor x = at::randn({kWidth, kWidth});
  const std::pair<const char*, std::function<void(const at::Tensor&)>> operators[] = {
      {"add", [&](const at::Tensor& w) { at::add(w, x); }},
      {"linear", [&](const at::Tensor& w) { at::linear(x, w); }},
      {"t (a view)", [&](const at::Tensor& w) { w.t(); }}};
  const auto ns_per_call = [&](const auto& call, const at::Tensor& w) {
    const double begin = seconds_now();
    for (int i = 0; i < kCalls; ++i) call(w);
    return (seconds_now() - begin) / kCalls * 1e9;
  };
  /// [operator x mode] -> {parameter, plain}
  const auto measure = [&] {
    std::vector<std::pair<double, double>> result;
    for (const auto& [name, call] : operators) {
      for (const bool grad : {false, true}) {
        at::AutoGradMode mode(grad);
        std::vector<double> with, without;
        for (int round = 0; round < kRounds; ++round) {
          with.push_back(ns_per_call(call, parameter));
          without.push_back(ns_per_call(call, plain));
        }
        result.emplace_back(median(with), median(without));
      }
    }
    return result;
  };
  const auto before = measure();
  auto engine = zero::initialize(model, json_of({.stage = 3}, 1), zero::InitializeOptions{.group = rank.group});
  if (!at::equal(at::linear(x, parameter), at::linear(x, plain)))
    throw std::runtime_error("the engine's parameter gives other results");
  const auto during = measure();
  std::size_t i = 0;
  for (const auto& [name, call] : operators) {
    for (const bool grad : {false, true}) {
      const auto rounded = [](double ns) { return std::round(ns); };
      print(rank, {{"case", "operator"},
                   {"operator", name},
                   {"grad_mode", grad},
                   {"without_engine_parameter_ns", rounded(before[i].first)},
                   {"without_engine_other_ns", rounded(before[i].second)},
                   {"with_engine_parameter_ns", rounded(during[i].first)},
                   {"with_engine_other_ns", rounded(during[i].second)},
                   {"interception_ns", rounded(during[i].first - during[i].second)},
                   {"calls", kCalls * kRounds},
                   {"verified", true}});
      ++i;
    }
  }
}

void measure_sizes(Rank& rank, const OverheadOptions& options) {
  constexpr std::int64_t kWidth = 2048;
  constexpr int kSteps = 7;
  {
    const Mode mode{.stage = 3, .bf16 = true, .lr = 0};
    std::vector<double> x, y, load;
    for (const int layers : options.sizes) {
      const Sized sized = measure_size(rank, layers, kWidth, mode, kSteps, false, {{"case", "size"}});
      x.push_back(layers * kWidth * kWidth / 1e6);
      y.push_back(sized.overhead * 1e3);
      load.push_back(sized.initialize * 1e3);
    }
    print_fit(rank, "overhead of a step against size", "ms per million parameters", mode, x, y);
    print_fit(rank, "initialize against size", "ms per million parameters", mode, x, load);
  }
  if (options.billion && rank.group.size() == 1) {
    const Mode mode{.stage = 3, .bf16 = true, .in_backward = true, .lr = 0};
    measure_size(rank, 240, kWidth, mode, 3, true, {{"case", "size"}});
  }
}

void measure_units(Rank& rank, const OverheadOptions& options) {
  constexpr std::int64_t kWidth = 64;
  constexpr int kSteps = 60;
  std::vector<Mode> modes{{.stage = 0, .bf16 = true, .unit_numel = kWidth * kWidth, .lr = 0},
                          {.stage = 3, .bf16 = true, .unit_numel = kWidth * kWidth, .lr = 0}};
  if (rank.group.size() > 1)
    modes.push_back({.stage = 3, .bf16 = true, .store = "copying", .unit_numel = kWidth * kWidth, .lr = 0});
  for (const Mode& mode : modes) {
    std::vector<double> x, y;
    for (const int units : options.units) {
      const Sized sized = measure_size(rank, units, kWidth, mode, kSteps, false, {{"case", "units"}, {"units", units}});
      x.push_back(units);
      y.push_back(sized.overhead * 1e6);
    }
    print_fit(rank, "overhead of a step against units", "us per unit", mode, x, y);
  }
}

}  // namespace bench
