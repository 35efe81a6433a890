// Time of our collectives, beside those of MPI in the same process when started under mpirun.
//
//   collectives [--ranks 2] [--min-nbytes 8] [--max-nbytes 268435456] [--seconds 0.3]
//   mpirun --bind-to none -n 2 collectives
//
// A case is a collective, a dtype and a size; the implementations take turns, sample by sample. A sample is
// `calls` calls in a row after a barrier, and its time per call is that of the slowest rank. After the last
// sample of a case every element of the result is compared with what it must be. One JSON line per case and
// implementation on rank 0. Sizes are those of the whole tensor: what all_gather puts together, what
// reduce_scatter, all_reduce and broadcast take.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/small_floats.h"
#include "bench_support.h"
#include "collective_calls.h"
#include "comm/wait_policy.h"
#include "zero/zero.h"

namespace {

using bench::median;

using bench::CollectiveCalls;
using zero::DType;
using zero::base::seconds_now;

struct Options {
  int ranks = 2;
  std::int64_t min_nbytes = 8, max_nbytes = 256 << 20;
  double seconds = 0.3;
  std::string collectives = "barrier,all_gather,reduce_scatter,all_reduce,broadcast";
  std::string dtypes = "fp32,bf16";
  std::string pinning = "pinned,unpinned";  ///< of barriers; data moves pinned
  bool no_mpi = false;
};

/// Our own collectives, on a group.
class GroupCalls final : public CollectiveCalls {
 public:
  GroupCalls(zero::Group group, std::string name)
      : group_(std::move(group)), name_(std::move(name)), counts_(group_.size()) {}
  std::string name() const override { return name_; }
  void all_gather(const void* in, void* out, std::int64_t numel, DType dtype) override {
    std::fill(counts_.begin(), counts_.end(), numel);
    group_.all_gather(in, out, counts_, dtype).wait();
  }
  void reduce_scatter(const void* in, void* out, std::int64_t numel, DType dtype) override {
    std::fill(counts_.begin(), counts_.end(), numel);
    group_.reduce_scatter(in, out, counts_, dtype, DType::kFloat32, /*accumulate=*/false).wait();
  }
  void all_reduce(void* inout, std::int64_t numel, DType dtype) override {
    group_.all_reduce(inout, numel, dtype).wait();
  }
  void broadcast(void* inout, std::int64_t numel, DType dtype) override {
    group_.broadcast(inout, numel, dtype, 0).wait();
  }
  void barrier() override { group_.barrier().wait(); }
  DType reduced_dtype(DType) const override { return DType::kFloat32; }

 private:
  zero::Group group_;
  std::string name_;
  std::vector<std::int64_t> counts_;
};

/// Who makes the calls, and where the tensors lie: ours are read in place from memory of Group::allocate, and
/// staged from any other.
struct Variant {
  CollectiveCalls* calls;
  bool allocated;
  bool pinned = true;
};

struct Case {
  std::string collective;
  DType dtype;
  std::int64_t nbytes;
};

// Values are small whole numbers times a power of two, so that sums are exact in any order and in bf16;
// repeated all_reduce multiplies them by the number of ranks.
constexpr int kExponent = -100;
float value_of(int rank, std::int64_t i) {
  const auto hash = static_cast<std::uint32_t>(i) * 2654435761u >> 13;
  return std::ldexp(static_cast<float>(hash % 7 + 1 + rank % 4), kExponent);
}
float sum_of(int ranks, std::int64_t i) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank, i);
  return sum;
}

void write(void* data, DType dtype, std::int64_t i, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto high = static_cast<std::uint16_t>(bits >> 16);  // exact: few digits
  if (dtype == DType::kFloat32) {
    std::memcpy(static_cast<char*>(data) + 4 * i, &bits, 4);
  } else {
    std::memcpy(static_cast<char*>(data) + 2 * i, &high, 2);
  }
}
float read(const void* data, DType dtype, std::int64_t i) {
  std::uint32_t bits = 0;
  if (dtype == DType::kFloat32) {
    std::memcpy(&bits, static_cast<const char*>(data) + 4 * i, 4);
  } else {
    std::uint16_t high = 0;
    std::memcpy(&high, static_cast<const char*>(data) + 2 * i, 2);
    bits = static_cast<std::uint32_t>(high) << 16;
  }
  return std::bit_cast<float>(bits);
}

/// Rank r on CPU r, or anywhere.
void pin(int local_rank, bool pinned) {
  const int cpus = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu = 0; cpu < cpus; ++cpu) {
    if (!pinned || cpu == local_rank % cpus) CPU_SET(cpu, &set);
  }
  sched_setaffinity(0, sizeof set, &set);
}

/// How long the group's ranks spin, as their backend chose it.
std::int64_t spin_ns_of(zero::Group& group) {
  const std::int64_t mine = ::getpid();
  std::vector<std::int64_t> all(group.size());
  const std::vector<std::int64_t> counts(group.size(), 1);
  group.all_gather(&mine, all.data(), counts, DType::kInt64).wait();
  const std::vector<pid_t> processes(all.begin(), all.end());
  return zero::comm::WaitPolicy::for_local_ranks(processes).spin_ns;
}

class Bench {
 public:
  Bench(Options options, zero::Group control)
      : options_(std::move(options)), control_(std::move(control)), spin_ns_(spin_ns_of(control_)) {
    const auto nbytes = static_cast<std::size_t>(options_.max_nbytes) + 4096;
    shared_in_ = control_.allocate(nbytes);
    shared_out_ = control_.allocate(nbytes);
    private_in_.resize(nbytes);
    private_out_.resize(nbytes);
    source_.resize(nbytes);
  }

  void run(const Case& the_case, std::vector<Variant> variants) {
    const bool is_barrier = the_case.collective == "barrier";
    const auto element = static_cast<std::int64_t>(zero::element_nbytes(the_case.dtype));
    per_rank_ = std::max<std::int64_t>(1, the_case.nbytes / element / ranks());
    numel_ = is_barrier ? 0 : per_rank_ * ranks();
    const bool is_gather = the_case.collective == "all_gather";
    const std::int64_t in_numel = is_gather ? per_rank_ : numel_;
    for (std::int64_t i = 0; i < in_numel; ++i) write(source_.data(), the_case.dtype, i, value_of(control_.rank(), i));

    std::vector<std::vector<double>> seconds(variants.size());
    std::vector<int> calls(variants.size(), 1);
    for (std::size_t v = 0; v < variants.size(); ++v) {
      double once = 1;
      for (int i = 0; i < 3; ++i) once = std::min(once, sample(the_case, variants[v], 1, false));
      calls[v] = std::clamp(static_cast<int>(kSampleSeconds / once), 1, most_calls(the_case));
    }
    double spent = 0;
    constexpr int kFewest = 5, kMost = 400;
    for (int i = 0; i < kFewest || (i < kMost && spent < options_.seconds); ++i) {
      for (std::size_t v = 0; v < variants.size(); ++v) {
        const double time = sample(the_case, variants[v], calls[v], false);
        seconds[v].push_back(time);
        spent += time * calls[v] / static_cast<double>(variants.size());
      }
    }
    for (std::size_t v = 0; v < variants.size(); ++v) {
      sample(the_case, variants[v], calls[v], /*verify=*/true);
      if (control_.rank() == 0) print(the_case, variants[v], calls[v], seconds[v]);
    }
  }

 private:
  static constexpr double kSampleSeconds = 200e-6;

  int ranks() const { return control_.size(); }

  /// How many in a row keep the values exact.
  int most_calls(const Case& the_case) const {
    if (the_case.collective == "barrier") return 1000;
    if (the_case.collective != "all_reduce") return 64;
    const auto n = static_cast<unsigned>(ranks());
    if (std::has_single_bit(n)) return std::min(64, 100 / std::max(1, std::countr_zero(n)));
    return 1;
  }

  /// Seconds per call on the slowest rank.
  double sample(const Case& the_case, const Variant& variant, int calls, bool verify) {
    void* const in = variant.allocated ? shared_in_.data() : private_in_.data();
    void* const out = variant.allocated ? shared_out_.data() : private_out_.data();
    const auto element = zero::element_nbytes(the_case.dtype);
    const bool in_place = the_case.collective == "all_reduce" || the_case.collective == "broadcast";
    const std::int64_t in_numel = the_case.collective == "all_gather" ? per_rank_ : numel_;
    std::memcpy(in, source_.data(), static_cast<std::size_t>(in_numel) * element);
    if (verify && !in_place) {
      const std::size_t nbytes = static_cast<std::size_t>(numel_) * element;
      std::memset(out, 0xff, the_case.collective == "all_gather" ? nbytes : nbytes / element * 4 / ranks());
    }
    if (verify && the_case.collective == "broadcast" && control_.rank() != 0)
      std::memset(in, 0xff, static_cast<std::size_t>(numel_) * element);
    if (variant.pinned != pinned_ || !placed_) pin(control_.local_rank(), variant.pinned);
    pinned_ = variant.pinned;
    placed_ = true;
    control_.barrier().wait();
    const double begin = seconds_now();
    for (int i = 0; i < calls; ++i) call(the_case, variant, in, out);
    double time = (seconds_now() - begin) / calls;
    if (verify) check(the_case, variant, calls, in, out);
    control_.all_reduce(&time, 1, DType::kFloat64, zero::ReduceOp::kMax).wait();
    return time;
  }

  void call(const Case& the_case, const Variant& variant, void* in, void* out) {
    switch (the_case.collective[0]) {
      case 'r':
        return variant.calls->reduce_scatter(in, out, per_rank_, the_case.dtype);
      case 'a':
        return the_case.collective == "all_gather" ? variant.calls->all_gather(in, out, per_rank_, the_case.dtype)
                                                   : variant.calls->all_reduce(in, numel_, the_case.dtype);
      default:
        return the_case.collective == "barrier" ? variant.calls->barrier()
                                                : variant.calls->broadcast(in, numel_, the_case.dtype);
    }
  }

  void check(const Case& the_case, const Variant& variant, int calls, const void* in, const void* out) const {
    const auto expect = [&](const void* data, DType dtype, std::int64_t i, float wanted) {
      const float got = read(data, dtype, i);
      if (got == wanted) return;
      throw std::runtime_error(fmt::format("{} of {}, {} bytes of {}, rank {}: element {} is {}, not {}",
                                           the_case.collective, variant.calls->name(), the_case.nbytes,
                                           zero::dtype_name(the_case.dtype), control_.rank(), i, got, wanted));
    };
    if (the_case.collective == "all_gather") {
      for (int rank = 0; rank < ranks(); ++rank) {
        for (std::int64_t i = 0; i < per_rank_; ++i)
          expect(out, the_case.dtype, rank * per_rank_ + i, value_of(rank, i));
      }
    } else if (the_case.collective == "reduce_scatter") {
      const DType reduced = variant.calls->reduced_dtype(the_case.dtype);
      for (std::int64_t i = 0; i < per_rank_; ++i)
        expect(out, reduced, i, sum_of(ranks(), control_.rank() * per_rank_ + i));
    } else if (the_case.collective == "all_reduce") {
      const auto factor = static_cast<float>(std::pow(ranks(), calls - 1));
      for (std::int64_t i = 0; i < numel_; ++i) expect(in, the_case.dtype, i, sum_of(ranks(), i) * factor);
    } else if (the_case.collective == "broadcast") {
      for (std::int64_t i = 0; i < numel_; ++i) expect(in, the_case.dtype, i, value_of(0, i));
    }
  }

  void print(const Case& the_case, const Variant& variant, int calls, const std::vector<double>& seconds) {
    const double middle = median(seconds), least = *std::min_element(seconds.begin(), seconds.end());
    const auto nbytes = numel_ * static_cast<std::int64_t>(zero::element_nbytes(the_case.dtype));
    nlohmann::ordered_json line = {{"impl", variant.calls->name()},
                                   {"memory", variant.allocated ? "allocated" : "private"},
                                   {"collective", the_case.collective},
                                   {"dtype", zero::dtype_name(the_case.dtype)},
                                   {"nbytes", nbytes},
                                   {"ranks", control_.size()},
                                   {"pinned", variant.pinned},
                                   {"us", std::round(middle * 1e9) / 1e3},
                                   {"us_min", std::round(least * 1e9) / 1e3},
                                   {"GB_per_s", std::round(nbytes / middle / 1e7) / 1e2},
                                   {"samples", seconds.size()},
                                   {"calls", calls},
                                   {"verified", the_case.collective != "barrier"}};
    if (the_case.collective == "barrier") line["spin_us"] = spin_ns_ / 1000;
    std::cout << line.dump() << std::endl;
  }

  Options options_;
  zero::Group control_;
  zero::SharedMemory shared_in_, shared_out_;
  std::vector<char> private_in_, private_out_, source_;
  std::int64_t per_rank_ = 0, numel_ = 0;
  bool pinned_ = false, placed_ = false;
  const std::int64_t spin_ns_;
};

bool contains(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

/// min, then every power of 8 that meets 32 MiB, up to max.
std::vector<std::int64_t> sizes_of(const Options& options) {
  std::vector<std::int64_t> sizes{options.min_nbytes};
  for (std::int64_t nbytes = 128; nbytes <= options.max_nbytes; nbytes *= 8) {
    if (nbytes > options.min_nbytes) sizes.push_back(nbytes);
  }
  return sizes;
}

int run_rank(const Options& options) {
  std::vector<std::unique_ptr<CollectiveCalls>> all;
  auto mpi = options.no_mpi ? nullptr : bench::make_mpi_calls();  // first: it must outlive our own use of MPI
  zero::Group group = zero::init_distributed({.backend = "shm"});
  all.push_back(std::make_unique<GroupCalls>(group, "shm"));
  if (mpi) {
    all.push_back(std::make_unique<GroupCalls>(zero::init_distributed({.backend = "mpi"}), std::string("zero-mpi")));
    all.push_back(std::move(mpi));
  }
  Bench bench(options, group);
  if (contains(options.collectives, "barrier")) {
    std::vector<Variant> variants;
    for (const auto& calls : all) {
      for (const bool pinned : {true, false}) {
        if (contains(options.pinning, pinned ? "pinned" : "unpinned")) variants.push_back({calls.get(), false, pinned});
      }
    }
    bench.run({"barrier", DType::kByte, 0}, variants);
  }
  std::vector<Variant> variants{{all[0].get(), true}};
  for (const auto& calls : all) variants.push_back({calls.get(), false});
  for (const std::string collective : {"all_gather", "reduce_scatter", "all_reduce", "broadcast"}) {
    if (!contains(options.collectives, collective)) continue;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      if (!contains(options.dtypes, std::string(zero::dtype_name(dtype)))) continue;
      const bool reduces = collective == "all_reduce" || collective == "reduce_scatter";
      if (!reduces && dtype != DType::kFloat32) continue;  // bytes are bytes
      for (const std::int64_t nbytes : sizes_of(options)) bench.run({collective, dtype, nbytes}, variants);
    }
  }
  group.barrier().wait();
  while (all.size() > 1) all.erase(all.end() - 2);  // MPI itself goes last
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Time of our collectives, beside those of MPI under mpirun.");
  app.add_option("--ranks", options.ranks, "ranks to start, unless a launcher has started them");
  app.add_option("--min-nbytes", options.min_nbytes);
  app.add_option("--max-nbytes", options.max_nbytes);
  app.add_option("--seconds", options.seconds, "per case and implementation");
  app.add_option("--collectives", options.collectives);
  app.add_option("--dtypes", options.dtypes, "of reductions");
  app.add_option("--pinning", options.pinning, "of barriers");
  app.add_flag("--no-mpi", options.no_mpi, "without MPI's own, also under mpirun");
  CLI11_PARSE(app, argc, argv);
  return bench::run_on_ranks("collectives", options.ranks, [&] { return run_rank(options); });
}
