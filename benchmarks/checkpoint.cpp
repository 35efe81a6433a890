// What a checkpoint costs beside what the disk and the memory can do, in one run on the same folder.
//
//   checkpoint [--ranks 2] [--preset gpt-152m] [--folder .] [--rounds 5]
//
// save, load: Engine::save_checkpoint and load_checkpoint of a GPT after one step, all ranks together, beside
// plain files of as many bytes, written (with fdatasync) and read past the page cache, 8 MiB at a time: one
// file by one process (ratio), and one for each rank by all at once (ratio_by_all). stall: how long an
// asynchronous save keeps the training loop, beside one memcpy of as many bytes as the rank writes, by all
// ranks at once, into memory that is warm.
//
// Sides take turns in who is first; ratios are of medians. Verified while measured: the states after a load
// are those that were saved. One JSON line per case on rank 0.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/clock.h"
#include "bench_support.h"
#include "checkpoint/checksum.h"
#include "checkpoint/folder.h"
#include "io/aligned_buffer.h"
#include "storage/cpu_allocator.h"
#include "zero/lm/models.h"
#include "zero/zero.h"

namespace {

using bench::median;

namespace fs = std::filesystem;
using zero::base::seconds_now;

struct Options {
  int ranks = 2;
  std::string preset = "gpt-152m";
  std::string folder = ".";
  int stage = 3;
  int rounds = 5;
  bool pin = true;
};

constexpr std::size_t kProbeBlock = 8 << 20;

template <class Work>
double seconds_of(Work work) {
  const double begin = seconds_now();
  work();
  return seconds_now() - begin;
}

/// A plain file of so many bytes (whole pages), without anything of ours.
class Probe {
 public:
  Probe(std::string path, std::uint64_t nbytes)
      : path_(std::move(path)), nbytes_((nbytes + kPage - 1) / kPage * kPage) {
    for (std::size_t i = 0; i < kProbeBlock; ++i) buffer_.data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  }
  ~Probe() { remove(); }

  void remove() const { ::unlink(path_.c_str()); }
  void write() {
    const int fd = open(O_CREAT | O_EXCL | O_WRONLY);
    for_each_block([&](off_t at, std::size_t nbytes) {
      check(::pwrite(fd, buffer_.data(), nbytes, at) == static_cast<ssize_t>(nbytes));
    });
    check(::fdatasync(fd) == 0);
    ::close(fd);
  }
  void read() {
    const int fd = open(O_RDONLY);
    for_each_block([&](off_t at, std::size_t nbytes) {
      check(::pread(fd, buffer_.data(), nbytes, at) == static_cast<ssize_t>(nbytes));
    });
    ::close(fd);
  }

 private:
  static constexpr std::uint64_t kPage = 4096;

  template <class Visit>
  void for_each_block(Visit visit) const {
    for (std::uint64_t at = 0; at < nbytes_; at += kProbeBlock)
      visit(static_cast<off_t>(at), std::min<std::uint64_t>(kProbeBlock, nbytes_ - at));
  }
  void check(bool ok) const {
    if (!ok) throw std::system_error(errno, std::generic_category(), path_);
  }
  int open(int flags) const {
    const int fd = ::open(path_.c_str(), flags | O_DIRECT | O_CLOEXEC, 0600);
    check(fd >= 0);
    return fd;
  }

  const std::string path_;
  const std::uint64_t nbytes_;
  zero::io::AlignedBuffer buffer_{kProbeBlock};
};

/// Bytes of a file that lie in the page cache.
std::uint64_t cached_nbytes(const std::string& path) {
  const auto nbytes = fs::file_size(path);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* address = ::mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  if (address == MAP_FAILED) return 0;
  std::vector<unsigned char> pages((nbytes + 4095) / 4096);
  ::mincore(address, nbytes, pages.data());
  ::munmap(address, nbytes);
  return 4096 * static_cast<std::uint64_t>(
                    std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

at::Tensor tokens_of(std::int64_t seq, int rank, std::int64_t step) {
  at::Tensor tokens = at::empty({1, seq + 1}, at::kLong);
  auto* out = tokens.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i) out[i] = (i * i * 7 + rank * 31 + step * 101) % 256;
  return tokens;
}

/// Of all weights and optimizer states, the same on every rank. *Collective.*
zero::checkpoint::Checksum checksum_of(zero::Engine& engine) {
  std::vector<zero::checkpoint::Checksum> sums;
  const auto add = [&](const at::Tensor& tensor) {
    const at::Tensor flat = tensor.contiguous();
    sums.push_back(
        zero::checkpoint::checksum_of(std::span(static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes())));
  };
  for (const auto& item : engine.module().named_parameters()) {
    add(engine.full_weight(item.key()));
    add(engine.full_optimizer_state(item.key(), "exp_avg"));
    add(engine.full_optimizer_state(item.key(), "exp_avg_sq"));
  }
  return zero::checkpoint::checksum_of(std::as_bytes(std::span(sums)));
}

std::string json_of(const Options& options) {
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}},
           "bf16": {{"enabled": true}}, "zero_optimization": {{"stage": {}}}}})",
      options.stage);
}

class Benchmark {
 public:
  Benchmark(const Options& options, zero::Group group)
      : options_(options), group_(std::move(group)), folder_(options.folder + "/zero_checkpoint_benchmark") {
    at::manual_seed(1);
    model_ = zero::GPT(zero::gpt_preset(options.preset));
    engine_.emplace(zero::initialize(model_, json_of(options), zero::InitializeOptions{.group = group_}));
    seq_ = zero::gpt_preset(options.preset).seq;
  }
  ~Benchmark() {
    std::error_code ignored;
    if (group_.rank() == 0) fs::remove_all(folder_, ignored);
  }

  void run() {
    train(0);
    const auto saved = checksum_of(*engine_);
    save("first");  // warms up, and says how much there is
    for (int rank = 0; rank < group_.size(); ++rank) {
      rank_nbytes_.push_back(fs::file_size(folder_ + "/first/" + zero::checkpoint::rank_file_name(rank)));
      total_nbytes_ += rank_nbytes_.back();
    }
    train(1);
    require(checksum_of(*engine_) != saved, "a step changes the states");
    load("first");
    require(checksum_of(*engine_) == saved, "a load brings back what was saved");
    remove("first");
    measure_files();
    measure_stall();
    require(checksum_of(*engine_) == saved, "the states are still those that were saved");
  }

 private:
  /// Seconds of ours, of the one plain file, and of as many as there are ranks.
  struct Times {
    std::vector<double> ours, plain, plain_by_all;
    std::uint64_t cached = 0;
  };

  void measure_files() {
    Probe one(folder_ + "/probe", total_nbytes_);
    Probe mine(folder_ + fmt::format("/probe_{}", group_.rank()),
               rank_nbytes_[static_cast<std::size_t>(group_.rank())]);
    Times saving, loading;
    const auto write_plain = [&] { saving.plain.push_back(alone([&] { one.write(); })); };
    const auto write_by_all = [&] { saving.plain_by_all.push_back(together([&] { mine.write(); })); };
    const auto read_plain = [&] { loading.plain.push_back(alone([&] { one.read(); })); };
    const auto read_by_all = [&] { loading.plain_by_all.push_back(together([&] { mine.read(); })); };
    for (int round = 0; round < options_.rounds; ++round) {
      const bool even = round % 2 == 0;
      even ? write_plain() : write_by_all();
      saving.ours.push_back(save("measured"));
      even ? write_by_all() : write_plain();
      saving.cached = cached("measured");
      even ? read_plain() : read_by_all();
      loading.ours.push_back(load("measured"));
      even ? read_by_all() : read_plain();
      loading.cached = cached("measured");
      one.remove();
      mine.remove();
      remove("measured");
    }
    report("save", saving);
    report("load", loading);
  }

  void measure_stall() {
    const std::size_t nbytes = rank_nbytes_[static_cast<std::size_t>(group_.rank())];
    zero::io::AlignedBuffer from(nbytes, zero::io::AlignedBuffer::Pages::kHuge),
        to(nbytes, zero::io::AlignedBuffer::Pages::kHuge);
    std::memset(from.data(), 1, nbytes);
    std::memset(to.data(), 2, nbytes);
    std::vector<double> stalls, totals, copies;
    for (int round = 0; round <= options_.rounds; ++round) {
      const double copy = together([&] { std::memcpy(to.data(), from.data(), nbytes); });
      double stall = 0;
      const double total = together([&] {
        stall = seconds_of([&] { engine_->save_checkpoint(folder_, "stall", "", {.async = true}); });
        engine_->wait_checkpoint();
      });
      stall = slowest(stall);
      remove("stall");
      if (round == 0) continue;  // the staging memory was new
      copies.push_back(copy);
      stalls.push_back(stall);
      totals.push_back(total);
    }
    if (group_.rank() != 0) return;
    std::cout << nlohmann::json{{"case", "stall"},
                                {"ranks", group_.size()},
                                {"rank_gb", gb(*std::max_element(rank_nbytes_.begin(), rank_nbytes_.end()))},
                                {"stall_s", rounded(median(stalls))},
                                {"memcpy_s", rounded(median(copies))},
                                {"until_committed_s", rounded(median(totals))},
                                {"ratio", rounded(median(copies) / median(stalls))},
                                {"all_stall_s", rounded(stalls)},
                                {"all_memcpy_s", rounded(copies)}}
                     .dump()
              << std::endl;
  }

  void report(const char* name, const Times& times) const {
    if (group_.rank() != 0) return;
    const auto speed = [&](const std::vector<double>& seconds) { return gb(total_nbytes_) / median(seconds); };
    const double ours = speed(times.ours), plain = speed(times.plain), by_all = speed(times.plain_by_all);
    std::cout << nlohmann::json{{"case", name},
                                {"ranks", group_.size()},
                                {"gb", rounded(gb(total_nbytes_))},
                                {"seconds", rounded(median(times.ours))},
                                {"gb_per_s", rounded(ours)},
                                {"plain_gb_per_s", rounded(plain)},
                                {"plain_by_all_gb_per_s", rounded(by_all)},
                                {"ratio", rounded(ours / plain)},
                                {"ratio_by_all", rounded(ours / by_all)},
                                {"in_page_cache_gb", rounded(gb(times.cached))},
                                {"all_seconds", rounded(times.ours)},
                                {"all_plain_seconds", rounded(times.plain)},
                                {"all_plain_by_all_seconds", rounded(times.plain_by_all)}}
                     .dump()
              << std::endl;
  }

  static double gb(std::uint64_t nbytes) { return static_cast<double>(nbytes) / 1e9; }
  static double rounded(double value) { return std::round(value * 1e4) / 1e4; }
  static std::vector<double> rounded(std::vector<double> values) {
    for (double& value : values) value = rounded(value);
    return values;
  }
  static void require(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(fmt::format("not so: {}", what));
  }

  void train(std::int64_t step) {
    const at::Tensor tokens = tokens_of(seq_, group_.rank(), step);
    engine_->backward(model_->loss(tokens.narrow(1, 0, seq_), tokens.narrow(1, 1, seq_).contiguous()));
    engine_->step();
  }

  double slowest(double seconds) {
    group_.all_reduce(&seconds, 1, zero::DType::kFloat64, zero::ReduceOp::kMax).wait();
    return seconds;
  }
  /// From all ranks' start to the end of the last.
  template <class Work>
  double together(Work work) {
    group_.barrier().wait();
    return slowest(seconds_of(work));
  }
  /// On rank 0, while the others sleep.
  template <class Work>
  double alone(Work work) {
    return together([&] {
      if (group_.rank() == 0) work();
    });
  }

  double save(const std::string& tag) {
    return together([&] { engine_->save_checkpoint(folder_, tag); });
  }
  double load(const std::string& tag) {
    return together([&] { engine_->load_checkpoint(folder_, tag); });
  }
  void remove(const std::string& tag) {
    alone([&] {
      fs::remove_all(folder_ + "/" + tag);
      ::sync();
    });
  }
  std::uint64_t cached(const std::string& tag) const {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < group_.size(); ++rank)
      sum += cached_nbytes(folder_ + "/" + tag + "/" + zero::checkpoint::rank_file_name(rank));
    return sum;
  }

  const Options options_;
  zero::Group group_;
  const std::string folder_;
  zero::GPT model_{nullptr};
  std::optional<zero::Engine> engine_;
  std::int64_t seq_ = 0;
  std::vector<std::uint64_t> rank_nbytes_;
  std::uint64_t total_nbytes_ = 0;
};

int run_rank(const Options& options) {
  zero::storage::keep_freed_memory();
  at::set_num_threads(1);
  zero::Group group = zero::init_distributed();
  if (options.pin) bench::pin_to_core(group.local_rank());
  Benchmark(options, group).run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What a checkpoint costs beside what the disk and the memory can do.");
  app.add_option("--ranks", options.ranks);
  app.add_option("--preset", options.preset);
  app.add_option("--folder", options.folder, "where the files go; about two times the states");
  app.add_option("--stage", options.stage);
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_flag("!--no-pin", options.pin);
  CLI11_PARSE(app, argc, argv);
  return bench::run_on_ranks("checkpoint", options.ranks, [&] { return run_rank(options); });
}
