// measure_disk(): pieces as large as those of optimizer states, some of them read while others are written.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "io/aligned_buffer.h"
#include "io/file_system.h"
#include "zero/disk.h"
#include "zero/errors.h"

namespace zero {
namespace {

constexpr std::size_t kPieceNbytes = 8 << 20;
constexpr std::size_t kBuffers = 4;

void check(const DiskProbe& probe) {
  if (probe.block_size < 4096 || probe.queue_depth < 1 || probe.ranks < 1 || probe.seconds <= 0 ||
      probe.file_nbytes < static_cast<std::int64_t>(kBuffers * kPieceNbytes)) {
    throw ConfigError(
        fmt::format("measure_disk: want blocks of at least 4096 bytes, a queue depth and ranks of at least 1, "
                    "seconds above 0 and files of at least {} bytes",
                    kBuffers * kPieceNbytes));
  }
}

/// One rank's file, and pieces of it on their way. Reads and writes go round the file, half of it apart.
class Prober {
 public:
  Prober(const std::string& folder, const DiskProbe& probe)
      : memory_(kBuffers * kPieceNbytes, io::AlignedBuffer::Pages::kHuge),
        file_(io::system_files().create_scratch(
            folder, {static_cast<std::uint64_t>(probe.block_size), static_cast<unsigned>(probe.queue_depth)})),
        pieces_(static_cast<std::size_t>(probe.file_nbytes) / kPieceNbytes) {
    std::memset(memory_.data(), 1, memory_.nbytes());
    file_->use_memory(memory_.span());
    file_->reserve(pieces_ * kPieceNbytes);
  }

  std::string description() const { return file_->description(); }

  /// So that reading finds something on the disk.
  void fill() {
    for (std::size_t piece = 0; piece < pieces_; ++piece) start(piece % kBuffers, piece, /*writes=*/true);
    finish_all();
  }

  struct Moved {
    double read = 0, written = 0;
  };
  /// Keeps all buffers busy until `until`; bytes that were done by then.
  Moved run(double until, bool reads, bool writes) {
    Moved moved;
    std::size_t next = 0;
    for (std::size_t buffer = 0; base::seconds_now() < until; buffer = (buffer + 1) % kBuffers) {
      if (busy_[buffer]) {
        finish(buffer);
        (writes_[buffer] ? moved.written : moved.read) += static_cast<double>(kPieceNbytes);
      }
      const bool write = writes && (!reads || buffer % 2 == 1);
      start(buffer, (next++ + (write ? pieces_ / 2 : 0)) % pieces_, write);
    }
    finish_all();
    return moved;
  }

 private:
  void start(std::size_t buffer, std::size_t piece, bool writes) {
    if (busy_[buffer]) finish(buffer);
    const auto memory = memory_.span().subspan(buffer * kPieceNbytes, kPieceNbytes);
    requests_[buffer] = writes ? file_->write(piece * kPieceNbytes, memory) : file_->read(piece * kPieceNbytes, memory);
    busy_[buffer] = true;
    writes_[buffer] = writes;
  }
  void finish(std::size_t buffer) {
    file_->wait(requests_[buffer]);
    busy_[buffer] = false;
  }
  void finish_all() {
    file_->drain();
    std::fill(std::begin(busy_), std::end(busy_), false);
  }

  io::AlignedBuffer memory_;
  std::unique_ptr<io::File> file_;
  const std::size_t pieces_;
  io::File::Request requests_[kBuffers] = {};
  bool busy_[kBuffers] = {}, writes_[kBuffers] = {};
};

}  // namespace

DiskSpeed measure_disk(const std::string& folder, const DiskProbe& probe) {
  check(probe);
  std::vector<std::unique_ptr<Prober>> probers;
  for (int r = 0; r < probe.ranks; ++r) probers.push_back(std::make_unique<Prober>(folder, probe));
  DiskSpeed speed;
  speed.description = probers.front()->description();

  std::mutex mutex;
  std::exception_ptr error;
  double read = 0, written = 0;  // of a measurement
  const auto on_all = [&](auto run) {
    std::vector<std::thread> threads;
    for (const auto& prober : probers) {
      threads.emplace_back([&, it = prober.get()] {
        try {
          const Prober::Moved moved = run(*it);
          const std::lock_guard lock(mutex);
          read += moved.read, written += moved.written;
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!error) error = std::current_exception();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
  };
  const auto measure = [&](bool reads, bool writes) {
    read = written = 0;
    const double until = base::seconds_now() + probe.seconds;
    on_all([&](Prober& it) { return it.run(until, reads, writes); });
  };
  on_all([](Prober& it) {
    it.fill();
    return Prober::Moved{};
  });
  measure(true, false);
  speed.read = read / probe.seconds;
  measure(false, true);
  speed.write = written / probe.seconds;
  measure(true, true);
  speed.mixed_read = read / probe.seconds;
  speed.mixed_write = written / probe.seconds;
  return speed;
}

}  // namespace zero
