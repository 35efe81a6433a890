// Ranks that meet in a sum every so often, for tests of what happens when some are lost.
//
//   steady_ranks SECONDS PAUSE_MS   sums for SECONDS, with a pause before each; prints "sums N" on rank 0 at the end
//
// Exit code: 0, or 3 with "CommError: ..." when the group fails.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "zero/errors.h"
#include "zero/group.h"

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  const std::chrono::milliseconds pause(argc > 2 ? std::atoi(argv[2]) : 10);
  try {
    zero::Group group = zero::init_distributed();
    std::printf("rank %d of %d over %s\n", group.rank(), group.size(), std::string(group.backend()).c_str());
    std::fflush(stdout);
    const auto begin = Clock::now();
    std::vector<float> values(1 << 18);
    for (std::int64_t sums = 0;; ++sums) {
      std::this_thread::sleep_for(pause);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(group.rank() + 1);
      group.all_reduce(values.data(), static_cast<std::int64_t>(values.size()), zero::DType::kFloat32).wait();
      const float wanted = static_cast<float>(group.size() * (group.size() + 1) / 2);
      for (const float value : values) {
        if (value != wanted) return std::fprintf(stderr, "wrong sum %g, not %g\n", value, wanted), 4;
      }
      std::int64_t over = std::chrono::duration<double>(Clock::now() - begin).count() >= seconds ? 1 : 0;
      group.all_reduce(&over, 1, zero::DType::kInt64, zero::ReduceOp::kMax).wait();
      if (over == 0) continue;
      if (group.rank() == 0) std::printf("sums %lld\n", static_cast<long long>(sums + 1));
      return 0;
    }
  } catch (const zero::CommError& error) {
    std::fprintf(stderr, "CommError: %s\n", error.what());
    return 3;
  }
}
