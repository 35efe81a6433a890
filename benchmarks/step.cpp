// What a ZeRO step costs over forward and backward alone, in one run on the same model.
//
//   step [--ranks 2] [--preset gpt-152m] [--batch 2] [--accumulation 1] [--modes stage3,...]
//
// Every mode trains interleaved with the baseline: the same GPT in bf16 with private parameters, forward and
// backward, gradients dropped, no optimizer, no communication. The ratio is that of the medians. Verified
// while measured: the losses of all modes must be the same numbers, and on a GPU, whose operators add in any order
// unless it is told otherwise (--deterministic), all but the same. One JSON line per mode on rank 0.
//
// A mode is stage0 to stage3 and words: -copying and -shared (store), -thread (progress thread), -fixed
// (prefetch as far as stage3_prefetch_bucket_size instead of measured), -blocking (overlap_comm false), -8bit
// (AdamW8bit), -nvme (masters and states in a scratch file in --nvme-path; the line says what went to and from the
// disk), -params (parameters in one, too), -default (overlap_comm, progress thread and, at stage 3, store as the engine
// chooses them), -host (states and parameters of a module on a GPU in host memory, where they
// are anyway with several ranks), -ratio (half of the elements updated there, half by the GPU), -late (an update that
// is delayed), -qweights and -qgradients (gathered in 8 bits, sent in 4), -localN (hosts are islands that exchange
// after every N steps: give --in-a-row a multiple of N), -blocksN (gradients of N ranks are added first).
// A GPU's memory is that in use (with what allocators keep, of all processes), what libtorch's allocator had of it at
// most, and the ledger's kinds; --alone for those of the engine. Under mpirun the ranks are mpirun's;
// scripts/slow_network.sh makes them talk over a network of a given speed, and scripts/hosts.sh over one between hosts:
// benchmarks/hosts has the program that measures there.
//
// --in-a-row N takes N steps of the baseline, then N of the engine, of which the time of one is given; another one
// before them is not timed. What a step leaves for the next one to wait for is then in the time of that. --interface
// eth0 counts what the kernel has sent and received there meanwhile, for all ranks of rank 0's host.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/ops/normal_native.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DefaultDtype.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "bench_support.h"
#include "zero/lm/models.h"
#include "zero/train.h"
#include "zero/zero.h"

namespace {

using bench::median;

using zero::base::seconds_now;

struct Options {
  int ranks = 2;
  std::string preset = "gpt-152m";
  std::int64_t layers = 0, dim = 0, heads = 0, seq = 0;
  std::int64_t batch = 2;
  std::int64_t accumulation = 1;
  int steps = 8;
  int warmup = 3;
  int in_a_row = 1;       ///< steps that are timed together
  std::string interface;  ///< of the network, whose bytes are counted; empty: none
  bool fp32 = false;
  bool pin = true;
  std::string device = "cpu";  ///< of the module; "cuda": one GPU for each rank, in turn
  bool deterministic = false;  ///< libtorch's operators on a GPU
  bool alone = false;          ///< no baseline
  bool bf16_sums = false;      ///< data_types.grad_accum_dtype
  bool quick_values = false;   ///< of parameters, in bf16: see quick_normal_()
  bool in_backward = false;    ///< zerotorch.update
  bool glibc = false;          ///< no zerotorch.caching_allocator
  std::string nvme_path = ".";
  std::int64_t block_size = 1 << 20, queue_depth = 32, buffer_count = 4;
  std::string modes = "stage0,stage1,stage2,stage3-copying,stage3";
};

long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// Tokens of step i for this rank: [batch, seq + 1].
at::Tensor tokens_of(const Options& options, std::int64_t seq, int rank, std::int64_t index) {
  at::Tensor tokens = at::empty({options.batch, seq + 1}, at::kLong);
  auto* out = tokens.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i) {
    std::uint64_t z = (i + 1 + index * 7919 + rank * 104729) * 0x9E3779B97F4A7C15ull;
    z ^= z >> 29;
    z *= 0xBF58476D1CE4E5B9ull;
    out[i] = static_cast<std::int64_t>((z >> 33) % 256);
  }
  return tokens;
}

zero::GPTOptions model_options(const Options& options) {
  zero::GPTOptions model = zero::gpt_preset(options.preset);
  if (options.layers) model.layers = options.layers;
  if (options.dim) model.dim = options.dim;
  if (options.heads) model.heads = options.heads;
  if (options.seq) model.seq = options.seq;
  return model;
}

/// 64 of `word` "-local" in "stage1-local64"; 0: it is not there.
int number_after(const std::string& mode, std::string_view word) {
  const std::size_t found = mode.find(word);
  return found == std::string::npos ? 0 : std::stoi(mode.substr(found + word.size()));
}

std::string json_of(const Options& options, const std::string& mode) {
  const auto has = [&](const char* word) { return mode.find(word) != std::string::npos; };
  const bool copying = has("copying") || has("params");
  const bool node_shared = has("shared") || (mode.substr(0, 6) == "stage3" && !copying && !has("qweights"));
  const bool is_default = has("default");
  const std::string overlap = is_default ? "" : fmt::format(R"("overlap_comm": {},)", !has("blocking"));
  const char* const store = is_default && !has("shared") && !has("copying") ? "auto"
                            : copying || !node_shared                       ? "copying"
                                                                            : "node_shared";
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": {}, "gradient_accumulation_steps": {},
           "optimizer": {{"type": "{}", "params": {{"lr": 1e-4, "weight_decay": 0.01}}}},
           "gradient_clipping": {}, "bf16": {{"enabled": {}, "check_grad_overflow": {}}},
           "zero_optimization": {{"stage": {}, {} "stage3_max_reuse_distance": 0,
             "zero_quantized_weights": {}, "zero_quantized_gradients": {},
             "offload_optimizer": {{"device": "{}", "nvme_path": "{}", "buffer_count": {}, "ratio": {}}},
             "offload_param": {{"device": "{}", "nvme_path": "{}"}}}},
           "aio": {{"block_size": {}, "queue_depth": {}}},
           "zerotorch": {{"store": "{}", "update": "{}", "progress_thread": "{}",
             "measured_prefetch": {}, "caching_allocator": {}, "hierarchical_reduce": {},
             "local_steps": {{"steps": {}}}}}{}}})",
      options.batch, options.accumulation, has("8bit") ? "AdamW8bit" : "AdamW", options.in_backward ? 0.0 : 1.0,
      !options.fp32, !options.in_backward, mode[5], overlap, has("qweights"), has("qgradients"),
      has("nvme")   ? "nvme"
      : has("host") ? "cpu"
                    : "none",
      options.nvme_path, options.buffer_count, has("ratio") ? 0.5 : 1.0,
      has("params") ? "nvme"
      : has("host") ? "cpu"
                    : "none",
      options.nvme_path, options.block_size, options.queue_depth, store,
      options.in_backward ? "in_backward"
      : has("late")       ? "delayed"
                          : "after_backward",
      is_default      ? "auto"
      : has("thread") ? "always"
                      : "never",
      !has("fixed"), !options.glibc, number_after(mode, "-blocks"), number_after(mode, "-local"),
      options.bf16_sums ? R"(, "data_types": {"grad_accum_dtype": "bf16"})" : "");
}

/// Forward and backward of one step's micro-batches; returns the last loss.
template <class Loss, class After>
double run_step(const Options& options, at::Device device, std::int64_t seq, int rank, std::int64_t step, Loss loss_of,
                After after) {
  double last = 0;
  for (std::int64_t j = 0; j < options.accumulation; ++j) {
    const at::Tensor tokens = tokens_of(options, seq, rank, step * options.accumulation + j).to(device);
    const at::Tensor loss = loss_of(tokens.narrow(1, 0, seq), tokens.narrow(1, 1, seq).contiguous());
    after(loss);
    last = loss.item<float>();
  }
  return last;
}

/// MB of a GPU in use, by all processes and with what their allocators keep; 0: it does not tell.
double used_mb(at::Device device) {
  if (device.is_cpu()) return 0;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator) return 0;
  const auto [free, total] = allocator->getMemoryInfo(device.index());
  return static_cast<double>(total - free) / 1e6;
}

/// In place of normal_() on the CPU, which draws one after the other: numbers of this spread by all threads, for models
/// that would take longer to draw than to train.
at::Tensor& quick_normal_(at::Tensor& self, double mean, double std, std::optional<at::Generator> generator) {
  if (self.scalar_type() != at::kBFloat16) return at::native::normal_(self, mean, std, std::move(generator));
  auto* const out = self.mutable_data_ptr<at::BFloat16>();
  at::parallel_for(0, self.numel(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto bits = (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull >> 40;
      out[i] = static_cast<float>(mean + std * 3.4641 * (static_cast<double>(bits) * 0x1p-24 - 0.5));
    }
  });
  return self;
}
void draw_quickly() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library.impl("normal_", quick_normal_);
}

/// What an interface of this host has received and sent.
struct Traffic {
  double received_nbytes = 0, sent_nbytes = 0;
};
Traffic traffic_of(const std::string& interface) {
  std::ifstream lines("/proc/net/dev");
  for (std::string line; !interface.empty() && std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(line.find_first_not_of(' '), interface.size() + 1) != interface + ":")
      continue;
    std::istringstream numbers(line.substr(colon + 1));
    Traffic traffic;
    double other = 0;
    numbers >> traffic.received_nbytes;
    for (int i = 0; i < 7; ++i) numbers >> other;
    numbers >> traffic.sent_nbytes;
    return traffic;
  }
  return {};
}

struct Measured {
  std::vector<double> baseline, engine;
  std::vector<long> faults;
  std::vector<zero::StepBreakdown> breakdowns;
  std::vector<double> disk_nbytes, disk_waited;      ///< of the steps
  std::vector<double> received_nbytes, sent_nbytes;  ///< by the interface
  double last_loss = 0;
  double device_used_mb = 0;
  zero::DeviceMemory of_libtorch;
  zero::MemoryReport ledger;
};

/// MB of a GPU by the ledger's kinds, at most.
nlohmann::json device_peaks(const zero::MemoryReport& ledger) {
  nlohmann::json kinds;
  for (int i = 0; i < zero::kMemoryKinds; ++i) {
    const auto kind = static_cast<zero::MemoryKind>(i);
    if (ledger[kind].peak_device_nbytes > 0)
      kinds[std::string(zero::memory_kind_name(kind))] =
          std::round(static_cast<double>(ledger[kind].peak_device_nbytes) / 1e6);
  }
  return kinds;
}

int steps_taken(const Options& options) {
  return (options.warmup + options.steps) * (options.in_a_row + (options.in_a_row > 1 ? 1 : 0));
}

nlohmann::json summary(const Options& options, const std::string& mode, const Measured& measured, std::int64_t numel,
                       double peak_mb, const zero::CommunicationReport& sent, zero::Group group) {
  const auto mean_of = [&](auto member) {
    std::vector<double> values;
    for (const auto& breakdown : measured.breakdowns) values.push_back(breakdown.*member * 1e3);
    double value = median(values);
    group.all_reduce(&value, 1, zero::DType::kFloat64).wait();
    return std::round(value / group.size() * 10) / 10;
  };
  std::vector<double> ratios;
  for (std::size_t i = 0; i < measured.engine.size(); ++i) ratios.push_back(measured.engine[i] / measured.baseline[i]);
  // Without a baseline there is nothing to compare with.
  const auto ratio = [&](double value) {
    return options.alone ? nlohmann::json() : nlohmann::json(std::round(value * 1000) / 1000);
  };
  using B = zero::StepBreakdown;
  return {{"mode", mode},
          {"parameters", numel},
          {"ranks", options.ranks},
          {"batch", options.batch},
          {"accumulation", options.accumulation},
          {"dtype", options.fp32 ? "fp32" : "bf16"},
          {"baseline_s", options.alone ? nlohmann::json() : nlohmann::json(median(measured.baseline))},
          {"step_s", median(measured.engine)},
          {"received_mb", std::round(median(measured.received_nbytes) / 1e4) / 100},
          {"sent_mb", std::round(median(measured.sent_nbytes) / 1e4) / 100},
          {"ratio", ratio(median(measured.engine) / median(measured.baseline))},
          {"ratio_pairs_median", ratio(median(ratios))},
          {"page_faults_per_step", median({measured.faults.begin(), measured.faults.end()})},
          {"pss_mb_all_ranks", std::round(peak_mb)},
          {"device", options.device},
          {"device_used_mb", std::round(measured.device_used_mb)},
          {"device_allocated_mb", std::round(static_cast<double>(measured.of_libtorch.peak_allocated_nbytes) / 1e6)},
          {"device_reserved_mb", std::round(static_cast<double>(measured.of_libtorch.peak_reserved_nbytes) / 1e6)},
          {"device_ledger_mb", device_peaks(measured.ledger)},
          {"loss", measured.last_loss},
          {"backend", group.backend()},
          {"received_numel_per_step", sent.total_numel() / steps_taken(options)},
          {"prefetched_gathers", sent.prefetched_gathers},
          {"gathers", sent.gathers},
          {"prefetch_window_numel", sent.prefetch_window_numel},
          {"disk_mb", std::round(median(measured.disk_nbytes) / 1e6)},
          {"disk_waited_ms", std::round(median(measured.disk_waited) * 1e3)},
          {"ms",
           {{"gradient_copy", mean_of(&B::gradient_copy)},
            {"reduce", mean_of(&B::reduce)},
            {"gather", mean_of(&B::gather)},
            {"wait", mean_of(&B::wait)},
            {"norm", mean_of(&B::norm)},
            {"update", mean_of(&B::update)},
            {"publish", mean_of(&B::publish)},
            {"islands", mean_of(&B::islands)}}}};
}

/// Modes of a kind train alike.
std::string kind_of(const std::string& mode) {
  std::string kind;
  for (const char* const word : {"8bit", "late", "qweights", "qgradients"})
    kind += mode.find(word) != std::string::npos ? word : "";
  return kind + std::to_string(number_after(mode, "-local"));
}

int run_rank(const Options& options) {
  zero::Group group = zero::init_distributed();
  zero::Config process;
  process.zerotorch.bind_cores_to_rank = options.pin;
  zero::set_up_process(group, process, {.watch_stop_signals = false});
  at::set_num_threads(1);
  const auto model_opts = model_options(options);
  at::Device device(options.device);
  if (device.is_cuda() && !device.has_index())
    device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(group.local_rank() % at::getNumGPUs()));
  // The host updates what the ranks of GPUs share, and draws.
  if (!device.is_cpu() || options.quick_values)
    at::set_num_threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / options.ranks));
  at::globalContext().setDeterministicAlgorithms(options.deterministic, /*warn_only=*/true);
  const double tolerance = device.is_cpu() || options.deterministic ? 0 : 2e-3;
  if (options.quick_values) {
    draw_quickly();
    c10::set_default_dtype(caffe2::TypeMeta::Make<at::BFloat16>());
  }
  at::manual_seed(1);
  zero::GPT plain{nullptr};
  if (!options.alone) {
    plain = zero::GPT(model_opts);
    plain->to(device);
    if (!options.fp32) plain->to(at::kBFloat16);
  }
  std::map<std::string, double> expected_loss;
  std::stringstream modes(options.modes);
  for (std::string mode; std::getline(modes, mode, ',');) {
    at::manual_seed(1);
    zero::InitializeOptions initialize{.group = group};
    if (!device.is_cpu()) {
      initialize.device = device;
      zero::reset_peak_device_memory(device);
    }
    // Never whole on a GPU, whose allocator would keep the memory.
    auto model = device.is_cpu() ? zero::GPT(model_opts) : zero::deferred_init([&] { return zero::GPT(model_opts); });
    auto engine = zero::initialize(model, json_of(options, mode), initialize);
    Measured measured;
    double peak = 0;
    std::int64_t next = 0;
    const auto take_step = [&] {
      measured.last_loss = run_step(
          options, device, model_opts.seq, group.rank(), next++,
          [&](const at::Tensor& x, const at::Tensor& y) { return model->loss(x, y); },
          [&](const at::Tensor& loss) {
            engine.backward(loss);
            engine.step();
          });
    };
    const bool in_a_row = options.in_a_row > 1, is_late = mode.find("late") != std::string::npos;
    for (int i = 0; i < options.warmup + options.steps; ++i) {
      group.barrier().wait();
      double begin = seconds_now();
      for (int j = 0; plain && j < options.in_a_row; ++j) {
        run_step(
            options, device, model_opts.seq, group.rank(), next + j,
            [&](const at::Tensor& x, const at::Tensor& y) { return plain->loss(x, y); },
            [&](const at::Tensor& loss) {
              loss.backward();
              for (auto& parameter : plain->parameters()) parameter.mutable_grad().reset();
            });
      }
      group.barrier().wait();
      const double baseline = (seconds_now() - begin) / options.in_a_row;
      if (in_a_row) {
        take_step();
        group.barrier().wait();
      }
      begin = seconds_now();
      const long faults = page_faults();
      const Traffic before = traffic_of(options.interface);
      const zero::OffloadReport disk_before = engine.offload_report();
      for (int j = 0; j < options.in_a_row; ++j) take_step();
      if (!in_a_row && !is_late) engine.finish_update();  // nothing is left for the baseline to compete with
      group.barrier().wait();
      const double step = (seconds_now() - begin) / options.in_a_row;
      const Traffic after = traffic_of(options.interface);
      if (in_a_row && !is_late) engine.finish_update();
      peak = std::max(peak, static_cast<double>(zero::process_memory().proportional_nbytes) / 1e6);
      measured.device_used_mb = std::max(measured.device_used_mb, used_mb(device));
      if (i < options.warmup) continue;
      measured.baseline.push_back(baseline);
      measured.engine.push_back(step);
      measured.faults.push_back((page_faults() - faults) / options.in_a_row);
      measured.received_nbytes.push_back((after.received_nbytes - before.received_nbytes) / options.in_a_row);
      measured.sent_nbytes.push_back((after.sent_nbytes - before.sent_nbytes) / options.in_a_row);
      measured.breakdowns.push_back(engine.step_breakdown());
      const zero::OffloadReport disk = engine.offload_report();
      measured.disk_nbytes.push_back(static_cast<double>(disk.read_nbytes - disk_before.read_nbytes +
                                                         disk.written_nbytes - disk_before.written_nbytes));
      measured.disk_waited.push_back(disk.waited_seconds - disk_before.waited_seconds);
    }
    if (!device.is_cpu()) measured.of_libtorch = zero::device_memory(device);
    measured.ledger = engine.memory_report();
    engine.finish_update();  // of -late, which is timed without it
    group.all_reduce(&peak, 1, zero::DType::kFloat64).wait();
    const auto line =
        summary(options, mode, measured, zero::gpt_numel(model_opts), peak, engine.communication_report(), group);
    if (group.rank() == 0) {
      std::cout << line.dump() << std::endl;
      const double expected = expected_loss.try_emplace(kind_of(mode), measured.last_loss).first->second;
      if (!(std::abs(measured.last_loss - expected) <= tolerance * std::abs(expected))) {
        std::cerr << mode << ": loss " << measured.last_loss << ", other modes " << expected << "\n";
        return 1;
      }
    }
    group.barrier().wait();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What a ZeRO step costs over forward and backward alone.");
  app.add_option("--ranks", options.ranks);
  app.add_option("--preset", options.preset);
  app.add_option("--layers", options.layers);
  app.add_option("--dim", options.dim);
  app.add_option("--heads", options.heads);
  app.add_option("--seq", options.seq);
  app.add_option("--batch", options.batch);
  app.add_option("--accumulation", options.accumulation);
  app.add_option("--steps", options.steps);
  app.add_option("--warmup", options.warmup);
  app.add_option("--in-a-row", options.in_a_row, "steps that are timed together, after one that is not")
      ->check(CLI::PositiveNumber);
  app.add_option("--interface", options.interface, "of the network, as eth0: its bytes are counted");
  app.add_option("--modes", options.modes);
  app.add_option("--nvme-path", options.nvme_path, "of -nvme: a folder on a local disk");
  app.add_option("--block-size", options.block_size);
  app.add_option("--queue-depth", options.queue_depth);
  app.add_option("--buffer-count", options.buffer_count);
  app.add_option("--device", options.device, "of the module: cpu, cuda (ranks take GPUs in turn) or cuda:N");
  app.add_flag("--deterministic", options.deterministic, "libtorch's operators on a GPU");
  app.add_flag("--fp32", options.fp32);
  app.add_flag("!--no-pin", options.pin);
  app.add_flag("--bf16-sums", options.bf16_sums, "of gradients");
  app.add_flag("--quick-values", options.quick_values, "of parameters, in bf16, not drawn one after the other");
  app.add_flag("--alone", options.alone, "without forward and backward of a model of its own: for memory");
  app.add_flag("--glibc", options.glibc, "without zerotorch.caching_allocator");
  app.add_flag("--step-in-backward", options.in_backward, "without clipping");
  CLI11_PARSE(app, argc, argv);
  return bench::run_on_ranks("step", options.ranks, [&] { return run_rank(options); });
}
