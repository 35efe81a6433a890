// How close our passes over memory come to what the memory gives.
//
//   kernels [--mb 256] [--rounds 15] [--threads 1] [--isa avx512] [--only adam]
//
// Every pass is timed in turn with a probe on the same buffers: the same streams read and written, with the
// same element sizes, the same width of vectors and ordinary stores, but only bits combined
// (kernel_probes.h). The ratio is probe time over kernel time: 1 means that arithmetic costs nothing. Buffers
// of `--mb` MiB in all, out of every cache; `--threads 2` runs both cores at once, as two ranks do, and
// counts the slower. Each kernel's result on fresh values is first compared with plain scalar arithmetic. One
// JSON line per pass.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <bit>
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "bench_support.h"
#include "comm/copy.h"
#include "comm/reduce_kernels.h"
#include "kernel_probes.h"
#include "optim/kernels.h"
#include "optim/passes.h"

namespace {

using bench::median;

using bench::Probes;
using zero::DType;
using zero::base::seconds_now;
namespace optim = zero::optim;

struct Options {
  std::int64_t mb = 256;
  int rounds = 15;
  int threads = 1;
  std::string isa;
  std::string only;
};

/// Page-aligned zeroed memory, huge pages where the system grants them: as storage::FlatBuffer.
class Buffer {
 public:
  explicit Buffer(std::size_t nbytes) : nbytes_(nbytes) {
    data_ = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::runtime_error("no memory");
    madvise(data_, nbytes, MADV_HUGEPAGE);
    std::memset(data_, 0, nbytes);
  }
  ~Buffer() { munmap(data_, nbytes_); }
  Buffer(const Buffer&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t nbytes() const { return nbytes_; }

 private:
  void* data_ = nullptr;
  std::size_t nbytes_;
};

float noise(std::int64_t i, std::uint32_t stream) {
  std::uint32_t z = static_cast<std::uint32_t>(i) * 2654435761u + stream * 40503u;
  z = (z ^ z >> 15) * 2246822519u;
  z ^= z >> 13;
  return static_cast<float>(static_cast<std::int32_t>(z % 20001) - 10000) * 1e-4f;
}
void fill(float* values, std::int64_t numel, std::uint32_t stream) {
  for (std::int64_t i = 0; i < numel; ++i) values[i] = noise(i, stream);
}
void fill(std::uint16_t* values, std::int64_t numel, std::uint32_t stream) {
  for (std::int64_t i = 0; i < numel; ++i)
    values[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(noise(i, stream)) >> 16);
}
float widen(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

void expect(const char* name, std::int64_t i, double got, double wanted, double tolerance) {
  if (std::abs(got - wanted) <= tolerance * (1 + std::abs(wanted))) return;
  throw std::runtime_error(fmt::format("{}: element {} is {:.9g}, not {:.9g}", name, i, got, wanted));
}

/// A pass and its probe, on buffers of one thread.
class Pass {
 public:
  virtual ~Pass() = default;
  virtual void kernel() = 0;
  virtual void probe() = 0;
  /// Runs the kernel on fresh values and compares.
  virtual void verify() = 0;
  /// Bytes read and written, not counting lines that the cache reads because they are written.
  virtual double traffic() const = 0;
};

enum class Masters { kFloatOnly, kFloatAndLow, kSplit };

class AdamPass final : public Pass {
 public:
  AdamPass(const optim::Kernels& kernels, const Probes& probes, Masters masters, std::size_t budget)
      : kernels_(kernels),
        probes_(probes),
        masters_(masters),
        numel_(static_cast<std::int64_t>(budget / 18) / 1024 * 1024),
        master_(masters == Masters::kSplit ? 0 + 4096 : numel_ * 4),
        low_(masters == Masters::kFloatOnly ? 4096 : numel_ * 2),
        remainder_(masters == Masters::kSplit ? numel_ * 2 : 4096),
        exp_avg_(numel_ * 4),
        exp_avg_sq_(numel_ * 4),
        gradient_(numel_ * 4) {}

  void kernel() override { kernels_.update_of(optim::Algorithm::kAdam)(args(), hyper_); }
  void probe() override {
    switch (masters_) {
      case Masters::kFloatOnly:
        return probes_.adam_master(args());
      case Masters::kFloatAndLow:
        return probes_.adam_master_and_low(args());
      case Masters::kSplit:
        return probes_.adam_split(args());
    }
  }
  void verify() override {
    const bool split = masters_ == Masters::kSplit;
    std::vector<float> weights(numel_);
    fill(weights.data(), numel_, 1);
    fill(exp_avg_.as<float>(), numel_, 2);
    fill(gradient_.as<float>(), numel_, 4);
    for (std::int64_t i = 0; i < numel_; ++i) exp_avg_sq_.as<float>()[i] = std::abs(noise(i, 3)) + 1e-3f;
    if (split) {
      kernels_.split_master(weights.data(), low_.as<std::uint16_t>(), remainder_.as<std::uint16_t>(), numel_);
    } else {
      std::memcpy(master_.as<float>(), weights.data(), weights.size() * 4);
    }
    kernel();
    std::vector<float> joined(split ? numel_ : 0);
    if (split) kernels_.join_master(low_.as<std::uint16_t>(), remainder_.as<std::uint16_t>(), joined.data(), numel_);
    const float* const got = split ? joined.data() : master_.as<float>();
    for (std::int64_t i = 0; i < numel_; ++i) {
      const double g = noise(i, 4);
      const double m = hyper_.beta1 * noise(i, 2) + (1 - hyper_.beta1) * g;
      const double v = hyper_.beta2 * (std::abs(noise(i, 3)) + 1e-3f) + (1 - hyper_.beta2) * g * g;
      const double root = std::sqrt(v / (1 - std::pow(hyper_.beta2, hyper_.step))) + hyper_.eps;
      const double w = weights[i] * (1 - hyper_.lr * hyper_.weight_decay) -
                       hyper_.lr / (1 - std::pow(hyper_.beta1, hyper_.step)) * m / root;
      expect("adam", i, got[i], w, 1e-6);
      expect("adam exp_avg", i, exp_avg_.as<float>()[i], m, 1e-6);
      expect("adam exp_avg_sq", i, exp_avg_sq_.as<float>()[i], v, 1e-6);
      if (masters_ != Masters::kFloatOnly) expect("adam bf16", i, widen(low_.as<std::uint16_t>()[i]), w, 1.0 / 256);
    }
  }
  double traffic() const override {
    const double masters = masters_ == Masters::kFloatOnly ? 8 : masters_ == Masters::kFloatAndLow ? 10 : 8;
    return static_cast<double>(numel_) * (masters + 16 + 4);
  }

 private:
  optim::UpdateArgs args() const {
    const bool split = masters_ == Masters::kSplit;
    return {.master = split ? nullptr : master_.as<float>(),
            .remainder = split ? remainder_.as<std::uint16_t>() : nullptr,
            .states = {exp_avg_.as<float>(), exp_avg_sq_.as<float>()},
            .gradient = gradient_.as<float>(),
            .low = masters_ == Masters::kFloatOnly ? nullptr : low_.as<void>(),
            .numel = numel_};
  }

  const optim::Kernels& kernels_;
  const Probes& probes_;
  Masters masters_;
  std::int64_t numel_;
  Buffer master_, low_, remainder_, exp_avg_, exp_avg_sq_, gradient_;
  optim::Hyper hyper_{.lr = 1e-4, .weight_decay = 0.01, .step = 7};
};

/// One rule as the optimizer calls it, beside a probe of the same streams.
class RulePass final : public Pass {
 public:
  struct Kind {
    const optim::Rule* rule;
    optim::Hyper hyper = {};
    bool bf16_masters = false, stochastic = false, bf16_gradient = false;
  };

  RulePass(const Probes& probes, const Kind& kind, std::size_t budget) : probes_(probes), kind_(kind) {
    gradient_nbytes_ = kBlock * (kind.bf16_gradient ? 2 : 4);
    for (const auto& state : kind.rule->states)
      nbytes_.push_back(static_cast<std::size_t>(optim::nbytes_of(state.format, kBlock)));
    // The first of two passes reads weights and writes the direction in place of the gradient.
    nbytes_.push_back(kBlock * (kind.bf16_masters ? 2 : 4));
    std::size_t block_nbytes = gradient_nbytes_;
    for (const std::size_t nbytes : nbytes_) block_nbytes += nbytes;
    blocks_ = static_cast<std::int64_t>(budget / block_nbytes);
    for (const std::size_t nbytes : nbytes_) streams_.emplace_back(nbytes * static_cast<std::size_t>(blocks_));
    gradient_ = std::make_unique<Buffer>(gradient_nbytes_ * static_cast<std::size_t>(blocks_));
    for (const Buffer& stream : streams_) written_.push_back(stream.as<void>());
  }

  void kernel() override { optim::passes_for(c10::kCPU).update(*kind_.rule, args(), kind_.hyper); }
  void probe() override { probes_.streams(written_, nbytes_, gradient_->as<void>(), gradient_nbytes_, blocks_); }
  /// Bits are the tests' matter: here only that it is the update that runs.
  void verify() override {
    if (kind_.bf16_gradient) {
      for (std::int64_t i = 0; i < blocks_ * kBlock; ++i) gradient_->as<std::uint16_t>()[i] = 0x3f80;
    } else {
      fill(gradient_->as<float>(), blocks_ * kBlock, 4);
    }
    kernel();
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      if (s + 1 == streams_.size() && kind_.rule->whole) continue;
      const auto* const bytes = streams_[s].as<unsigned char>();
      if (std::all_of(bytes, bytes + nbytes_[s], [](unsigned char byte) { return byte == 0; }))
        throw std::runtime_error(fmt::format("{}: stream {} is as it was", kind_.rule->name, s));
    }
  }
  double traffic() const override {
    double nbytes = static_cast<double>(gradient_nbytes_);
    for (const std::size_t written : nbytes_) nbytes += 2 * static_cast<double>(written);
    return nbytes * static_cast<double>(blocks_);
  }

 private:
  static constexpr std::int64_t kBlock = 2048;

  optim::UpdateArgs args() const {
    optim::UpdateArgs args{.numel = blocks_ * kBlock};
    for (std::size_t s = 0; s + 1 < streams_.size(); ++s) args.states[s] = streams_[s].as<void>();
    if (kind_.bf16_masters) {
      args.narrow.master = streams_.back().as<void>();
      args.narrow.stochastic = kind_.stochastic;
    } else {
      args.master = streams_.back().as<float>();
    }
    if (kind_.bf16_gradient) {
      args.narrow.gradient = gradient_->as<void>();
    } else {
      args.gradient = gradient_->as<float>();
      args.direction = gradient_->as<float>();
    }
    return args;
  }

  const Probes& probes_;
  Kind kind_;
  std::size_t gradient_nbytes_ = 0;
  std::vector<std::size_t> nbytes_;  ///< of a block, by stream
  std::int64_t blocks_ = 0;
  std::deque<Buffer> streams_;
  std::vector<void*> written_;
  std::unique_ptr<Buffer> gradient_;
};

/// The slices of some ranks, two or four.
class Slices {
 public:
  Slices(int ranks, DType dtype, std::int64_t numel) : dtype_(dtype) {
    for (int rank = 0; rank < ranks; ++rank) {
      addresses_.push_back(
          buffers_.emplace_back(static_cast<std::size_t>(numel) * zero::element_nbytes(dtype)).as<void>());
    }
  }
  void fill_all(std::int64_t numel) {
    unsigned seed = 2;
    for (Buffer& buffer : buffers_) {
      dtype_ == DType::kFloat32 ? fill(buffer.as<float>(), numel, seed) : fill(buffer.as<std::uint16_t>(), numel, seed);
      ++seed;
    }
  }
  /// ((base + slice 0) + slice 1) + ... at i.
  float onto(float base, std::int64_t i) const {
    for (const Buffer& buffer : buffers_)
      base += dtype_ == DType::kFloat32 ? buffer.as<float>()[i] : widen(buffer.as<std::uint16_t>()[i]);
    return base;
  }
  std::span<const void* const> addresses() const { return addresses_; }
  void* first() const { return buffers_.front().as<void>(); }

 private:
  DType dtype_;
  std::deque<Buffer> buffers_;
  std::vector<const void*> addresses_;
};

/// What GradientReducer does with the ranks' slices; with sums of squares in a window's last micro-batch.
class ReducePass final : public Pass {
 public:
  ReducePass(const optim::Kernels& kernels, const Probes& probes, int ranks, DType dtype, bool first, bool squares,
             std::size_t budget)
      : kernels_(kernels),
        probes_(probes),
        dtype_(dtype),
        first_(first),
        squares_(squares),
        element_nbytes_(static_cast<double>(zero::element_nbytes(dtype)) * ranks + 4),
        numel_(static_cast<std::int64_t>(static_cast<double>(budget) / element_nbytes_) / 1024 * 1024),
        accumulator_(numel_ * 4),
        slices_(ranks, dtype, numel_),
        sums_(numel_ / optim::kSumBlockNumel) {}

  void kernel() override {
    kernels_.reduce({.accumulator = accumulator_.as<float>(),
                     .slices = slices_.addresses(),
                     .dtype = dtype_,
                     .numel = numel_,
                     .first = first_,
                     .block_sumsq = squares_ ? sums_.data() : nullptr});
  }
  void probe() override { probes_.reduce(accumulator_.as<float>(), slices_.addresses(), dtype_, numel_, first_); }
  void verify() override {
    fill(accumulator_.as<float>(), numel_, 1);
    slices_.fill_all(numel_);
    kernel();
    for (std::int64_t block = 0; block < numel_ / 1024; ++block) {
      double sum = 0;
      for (std::int64_t i = 1024 * block; i < 1024 * (block + 1); ++i) {
        const float wanted = slices_.onto(first_ ? 0.0f : noise(i, 1), i);
        expect("reduce", i, accumulator_.as<float>()[i], wanted, 0);
        sum += static_cast<double>(wanted) * wanted;
      }
      if (squares_) expect("reduce, sum of squares", block, sums_[block], sum, 1e-12);
    }
  }
  double traffic() const override { return static_cast<double>(numel_) * (element_nbytes_ + (first_ ? 0 : 4)); }

 private:
  const optim::Kernels& kernels_;
  const Probes& probes_;
  DType dtype_;
  bool first_, squares_;
  double element_nbytes_;
  std::int64_t numel_;
  Buffer accumulator_;
  Slices slices_;
  std::vector<double> sums_;
};

/// Group::all_reduce and reduce_scatter: slices to another place, or two onto the first.
class OrderedPass final : public Pass {
 public:
  OrderedPass(const Probes& probes, int ranks, DType dtype, bool in_place, std::size_t budget)
      : probes_(probes),
        dtype_(dtype),
        in_place_(in_place),
        element_(zero::element_nbytes(dtype)),
        element_nbytes_(static_cast<double>(element_) * ranks + (in_place ? static_cast<double>(element_) : 4)),
        numel_(static_cast<std::int64_t>(static_cast<double>(budget) / element_nbytes_) / 1024 * 1024),
        out_(in_place ? 4096 : numel_ * 4),
        slices_(ranks, dtype, numel_) {}

  void kernel() override {
    zero::comm::reduce_ordered(slices_.addresses(), numel_, dtype_,
                               {.out = out(),
                                .out_dtype = in_place_ ? dtype_ : DType::kFloat32,
                                .op = zero::ReduceOp::kSum,
                                .base = in_place_ ? zero::comm::ReduceBase::kFirst : zero::comm::ReduceBase::kZero});
  }
  void probe() override {
    if (in_place_) return probes_.sum_onto(out(), slices_.addresses()[1], numel_ * element_);
    probes_.reduce(out_.as<float>(), slices_.addresses(), dtype_, numel_, /*first=*/true);
  }
  void verify() override {
    slices_.fill_all(numel_);
    std::vector<float> wanted(numel_);
    for (std::int64_t i = 0; i < numel_; ++i) wanted[i] = slices_.onto(0, i);
    kernel();
    for (std::int64_t i = 0; i < numel_; ++i) {
      const bool low = in_place_ && dtype_ != DType::kFloat32;
      const float got = low ? widen(static_cast<std::uint16_t*>(out())[i]) : static_cast<float*>(out())[i];
      expect("ordered reduction", i, got, wanted[i], low ? 1.0 / 256 : 0);
    }
  }
  double traffic() const override { return static_cast<double>(numel_) * element_nbytes_; }

 private:
  void* out() const { return in_place_ ? slices_.first() : out_.as<void>(); }

  const Probes& probes_;
  DType dtype_;
  bool in_place_;
  std::size_t element_;
  double element_nbytes_;
  std::int64_t numel_;
  Buffer out_;
  Slices slices_;
};

class NormPass final : public Pass {
 public:
  NormPass(const optim::Kernels& kernels, const Probes& probes, std::size_t budget)
      : kernels_(kernels),
        probes_(probes),
        numel_(static_cast<std::int64_t>(budget / 4) / 1024 * 1024),
        values_(numel_ * 4),
        sums_(numel_ / 1024) {}
  void kernel() override { kernels_.block_sumsq(values_.as<float>(), numel_, sums_.data()); }
  void probe() override { probes_.read(values_.as<void>(), values_.nbytes()); }
  void verify() override {
    fill(values_.as<float>(), numel_, 1);
    kernel();
    for (std::int64_t block = 0; block < numel_ / 1024; ++block) {
      double sum = 0;
      for (std::int64_t i = 1024 * block; i < 1024 * (block + 1); ++i)
        sum += static_cast<double>(noise(i, 1)) * noise(i, 1);
      expect("sum of squares", block, sums_[block], sum, 1e-12);
    }
  }
  double traffic() const override { return static_cast<double>(numel_) * 4; }

 private:
  const optim::Kernels& kernels_;
  const Probes& probes_;
  std::int64_t numel_;
  Buffer values_;
  std::vector<double> sums_;
};

/// Gradients into buckets (`streaming`), and gathered slices.
class CopyPass final : public Pass {
 public:
  CopyPass(const optim::Kernels& kernels, bool streaming, std::size_t budget)
      : kernels_(kernels), streaming_(streaming), from_(budget / 2), to_(budget / 2) {}
  void kernel() override {
    streaming_ ? kernels_.copy(to_.as<void>(), from_.as<void>(), from_.nbytes())
               : zero::comm::copy_bytes(to_.as<void>(), from_.as<void>(), from_.nbytes());
  }
  void probe() override { std::memcpy(to_.as<void>(), from_.as<void>(), from_.nbytes()); }
  void verify() override {
    fill(from_.as<float>(), static_cast<std::int64_t>(from_.nbytes() / 4), 1);
    kernel();
    if (std::memcmp(from_.as<void>(), to_.as<void>(), from_.nbytes()) != 0)
      throw std::runtime_error("copy: the copy differs");
  }
  double traffic() const override { return 2.0 * static_cast<double>(from_.nbytes()); }

 private:
  const optim::Kernels& kernels_;
  bool streaming_;
  Buffer from_, to_;
};

using MakePass = std::function<std::unique_ptr<Pass>(std::size_t budget)>;

void run(const Options& options, const std::string& name, const std::string& isa, const MakePass& make) {
  if (name.find(options.only) == std::string::npos) return;
  const std::size_t budget = static_cast<std::size_t>(options.mb) << 20;
  std::vector<std::vector<double>> kernel(options.threads), probe(options.threads);
  std::vector<std::string> problems(options.threads);
  std::barrier<> together(options.threads);
  double traffic = 0;
  const auto work = [&](int thread) {
    bench::pin_to_core(thread);
    std::unique_ptr<Pass> pass;
    try {
      pass = make(budget);
      pass->verify();
    } catch (const std::exception& error) {
      problems[thread] = error.what();
    }
    together.arrive_and_wait();
    if (std::any_of(problems.begin(), problems.end(), [](const auto& text) { return !text.empty(); })) return;
    if (thread == 0) traffic = pass->traffic();
    const auto timed = [&](auto call) {
      together.arrive_and_wait();
      const double begin = seconds_now();
      call();
      return seconds_now() - begin;
    };
    timed([&] { pass->kernel(), pass->probe(); });
    for (int round = 0; round < options.rounds; ++round) {
      kernel[thread].push_back(timed([&] { pass->kernel(); }));
      probe[thread].push_back(timed([&] { pass->probe(); }));
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < options.threads; ++thread) threads.emplace_back(work, thread);
  for (auto& thread : threads) thread.join();
  for (const auto& problem : problems) {
    if (!problem.empty()) throw std::runtime_error(problem);
  }
  std::vector<double> kernel_s, probe_s, ratios;
  for (int round = 0; round < options.rounds; ++round) {
    const auto slowest = [&](const auto& times) {
      double most = 0;
      for (const auto& of_thread : times) most = std::max(most, of_thread[round]);
      return most;
    };
    kernel_s.push_back(slowest(kernel));
    probe_s.push_back(slowest(probe));
    ratios.push_back(probe_s.back() / kernel_s.back());
  }
  const auto gb_per_s = [&](double seconds) { return std::round(traffic / seconds / 1e7) / 1e2; };
  const auto least = [](const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); };
  const auto rounded = [](double ratio) { return std::round(ratio * 1000) / 1000; };
  const nlohmann::ordered_json line = {{"pass", name},
                                       {"isa", isa},
                                       {"threads", options.threads},
                                       {"mb_per_thread", options.mb},
                                       {"kernel_ms", std::round(median(kernel_s) * 1e6) / 1e3},
                                       {"probe_ms", std::round(median(probe_s) * 1e6) / 1e3},
                                       {"ratio", rounded(median(probe_s) / median(kernel_s))},
                                       {"ratio_pairs_median", rounded(median(ratios))},
                                       {"ratio_of_minima", rounded(least(probe_s) / least(kernel_s))},
                                       {"kernel_GB_per_s", gb_per_s(median(kernel_s))},
                                       {"probe_GB_per_s", gb_per_s(median(probe_s))},
                                       {"rounds", options.rounds},
                                       {"verified", true}};
  std::cout << line.dump() << std::endl;
}

void run_all(const Options& options) {
  const optim::Kernels& kernels = optim::kernels();
  const std::string isa = kernels.isa;
  const Probes& probes = bench::probes_for(isa);
  const auto adam = [&](Masters masters) -> MakePass {
    return [&kernels, &probes, masters](std::size_t budget) {
      return std::make_unique<AdamPass>(kernels, probes, masters, budget);
    };
  };
  run(options, "adam, fp32 master is the parameter", isa, adam(Masters::kFloatOnly));
  run(options, "adam, fp32 master and bf16 parameter", isa, adam(Masters::kFloatAndLow));
  run(options, "adam, bf16 parameter and remainder", isa, adam(Masters::kSplit));
  using optim::Algorithm;
  const auto rule = [&](const std::string& name, const RulePass::Kind& kind) {
    run(options, name, isa,
        [&probes, kind](std::size_t budget) { return std::make_unique<RulePass>(probes, kind, budget); });
  };
  const auto bf16 = optim::StateFormat::kBFloat16;
  const auto of = [](Algorithm algorithm, const optim::Hyper& hyper,
                     optim::StateFormat format = optim::StateFormat::kFloat32) {
    return &optim::rule_for(algorithm, {&hyper, 1}, format);
  };
  const optim::Hyper momentum{.momentum = 0.9}, all{.momentum = 0.9, .centered = true}, amsgrad{.amsgrad = true};
  rule("sgd", {of(Algorithm::kSgd, {}), {}});
  rule("sgd with momentum", {of(Algorithm::kSgd, momentum), momentum});
  rule("amsgrad", {of(Algorithm::kAdam, amsgrad), amsgrad});
  rule("adagrad", {of(Algorithm::kAdagrad, {}), {}});
  rule("rmsprop", {of(Algorithm::kRmsprop, {}), {}});
  rule("rmsprop, centered, with momentum", {of(Algorithm::kRmsprop, all), all});
  rule("lion", {of(Algorithm::kLion, {}), {}});
  rule("lamb, first pass", {of(Algorithm::kLamb, {}), {}});
  rule("muon, first pass", {of(Algorithm::kMuon, momentum), momentum});
  rule("second pass", {&optim::take_direction(), {}});
  rule("adam, bf16 states", {of(Algorithm::kAdam, {}, bf16), {}});
  rule("adam, bf16 states, masters and sums", {of(Algorithm::kAdam, {}, bf16), {}, true, false, true});
  rule("adam, the same, rounded stochastically", {of(Algorithm::kAdam, {}, bf16), {}, true, true, true});
  rule("adam, 8-bit states", {of(Algorithm::kAdam8bit, {}), {}});
  for (const int ranks : {2, 4}) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      for (const auto& [first, squares] : {std::pair{true, true}, {true, false}, {false, false}, {false, true}}) {
        run(options,
            fmt::format("reduce {} x {} {} fp32{}", ranks, zero::dtype_name(dtype), first ? "to" : "onto",
                        squares ? ", with sums of squares" : ""),
            isa, [&kernels, &probes, ranks, dtype, first = first, squares = squares](std::size_t budget) {
              return std::make_unique<ReducePass>(kernels, probes, ranks, dtype, first, squares, budget);
            });
      }
    }
  }
  const auto ordered = [&](const std::string& name, int ranks, DType dtype, bool in_place) {
    run(options, "ordered sum, " + name, isa, [&probes, ranks, dtype, in_place](std::size_t budget) {
      return std::make_unique<OrderedPass>(probes, ranks, dtype, in_place, budget);
    });
  };
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const auto name = zero::dtype_name(dtype);
    ordered(fmt::format("{} onto {}", name, name), 2, dtype, true);
    for (const int ranks : {2, 4}) ordered(fmt::format("{} x {} to fp32", ranks, name), ranks, dtype, false);
  }
  run(options, "norm: sums of squares of fp32", isa,
      [&kernels, &probes](std::size_t budget) { return std::make_unique<NormPass>(kernels, probes, budget); });
  for (const bool streaming : {true, false}) {
    run(options, streaming ? "copy of gradients, beside memcpy" : "copy of slices, beside memcpy", isa,
        [&kernels, streaming](std::size_t budget) { return std::make_unique<CopyPass>(kernels, streaming, budget); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("How close our passes over memory come to what the memory gives.");
  app.add_option("--mb", options.mb, "MiB of buffers per thread");
  app.add_option("--rounds", options.rounds);
  app.add_option("--threads", options.threads, "at once, each on a core and on buffers of its own");
  app.add_option("--isa", options.isa, "generic, avx2 or avx512, where it is not to be the best there is");
  app.add_option("--only", options.only, "passes whose names contain this");
  CLI11_PARSE(app, argc, argv);
  if (!options.isa.empty()) setenv("ZERO_ISA", options.isa.c_str(), 1);
  try {
    run_all(options);
  } catch (const std::exception& error) {
    std::cerr << "kernels: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
