// What the tools take of memory does not grow with the checkpoint: peak resident memory of an export, a
// verification and a comparison. ZERO_CHECKPOINT_MB=2000 for a larger one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "checkpoint/checkpointer.h"
#include "checkpoint/tools.h"
#include "io/aligned_buffer.h"
#include "support/peak_memory.h"
#include "unit/io_support.h"

namespace zero::testing::checkpoint_memory_test {
namespace {

constexpr int kLayers = 6;

/// By how much `work` makes the resident memory of a process of its own grow at its peak; -1: it failed.
std::int64_t growth_of(const std::function<void()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    std::int64_t grown = -1;
    try {
      const PeakMemory memory;
      work();
      grown = memory.grown();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    const bool told = ::write(ends[1], &grown, sizeof grown) == sizeof grown;
    ::_exit(told ? 0 : 1);
  }
  ::close(ends[1]);
  std::int64_t grown = -1;
  if (::read(ends[0], &grown, sizeof grown) != sizeof grown) grown = -1;
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return grown;
}

/// A checkpoint of `nbytes` of weights, one small tensor of which lies column by column; made on the way to
/// the file.
void save(const std::string& folder, std::int64_t nbytes) {
  using checkpoint::ElementType;
  namespace kinds = checkpoint::kinds;
  checkpoint::Contents contents;
  const std::int64_t rows = nbytes / kLayers / 4 / 1024;
  for (int layer = 0; layer <= kLayers; ++layer) {
    checkpoint::TensorInfo info{
        "layer" + std::to_string(layer), kinds::kWeight, ElementType::kF32, {layer == kLayers ? 512 : rows, 1024}};
    info.module_dtype = ElementType::kBF16;
    if (layer == kLayers) info.order.dim_order = {1, 0};
    const auto make = [layer](std::int64_t first, std::int64_t count, std::byte* out) {
      auto* values = reinterpret_cast<float*>(out);
      for (std::int64_t i = 0; i < count; ++i) {
        values[i] = static_cast<float>((first + i) % 1000 + layer);
      }
    };
    contents.pieces.push_back({contents.tensors.size(), 0, info.numel(), nullptr, make});
    contents.tensors.push_back(info);
  }
  io::AlignedBuffer staging;
  checkpoint::Checkpointer checkpointer(io::system_files(), Group(), [&](std::size_t wanted) {
    staging = io::AlignedBuffer(wanted);
    return staging.data();
  });
  checkpointer.save(folder, "a", std::move(contents), {});
}

TEST(CheckpointMemory, ToolsTakeAFewBlocksNotTheModel) {
  const char* wanted = std::getenv("ZERO_CHECKPOINT_MB");
  const std::int64_t total = (wanted ? std::atoll(wanted) : 400) * 1'000'000;
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer's own memory grows with what is touched";
#endif
  const io::TestFolder folder;
  const std::string path = folder.path() + "/ckpt", out = folder.path() + "/out";
  struct Case {
    const char* what;
    std::function<void()> work;
    std::int64_t most;
  };
  constexpr std::int64_t kMB = 1'000'000;
  const Case cases[] = {
      {"save", [&] { save(path, total); }, 60 * kMB},
      {"verify", [&] { checkpoint::verify(path); }, 60 * kMB},
      {"export to fp32", [&] { checkpoint::export_weights(path, out); }, 130 * kMB},
      {"export to bf16", [&] { checkpoint::export_weights(path, out, {.dtype = "bf16"}); }, 130 * kMB},
      {"diff", [&] { checkpoint::diff(path, path); }, 130 * kMB},
  };
  for (const auto& [what, work, most] : cases) {
    const std::int64_t grown = growth_of(work);
    EXPECT_GE(grown, 0) << what;
    EXPECT_LE(grown, most) << what;
    std::printf("%s of %lld MB, the largest tensor of %lld MB: %lld MB of memory\n", what,
                static_cast<long long>(total / kMB), static_cast<long long>(total / kMB / kLayers),
                static_cast<long long>(grown / kMB));
  }
}

}  // namespace
}  // namespace zero::testing::checkpoint_memory_test
