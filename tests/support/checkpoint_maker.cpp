// Makes real checkpoints for tests that look at them from outside:
//
//   checkpoint_maker <folder> <ranks> <stage> <fp32|bf16> <tag>=<micro-batches>...
//
// Every tag is a training run of the odd model from its beginning to that micro-batch; 24 of them make a
// step, and a run that ends between two steps leaves gradient sums.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "support/resume.h"
#include "support/spawn.h"

namespace {

using zero::testing::ResumePlace;

/// What went wrong, or nothing.
std::string make(const std::string& folder, const ResumePlace& place, const std::string& request) {
  const auto equals = request.rfind('=');
  if (equals == std::string::npos) return "want <tag>=<micro-batches>, got '" + request + "'";
  const std::string tag = request.substr(0, equals);
  const long end = std::atol(request.c_str() + equals + 1);
  const auto results = zero::testing::spawn(place.ranks, [&](zero::Group group) {
    zero::testing::train_and_save(place, std::move(group), end, folder, tag);
  });
  for (const auto& result : results) {
    if (!result.ok) return "rank " + std::to_string(result.rank) + ": " + result.error;
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: checkpoint_maker <folder> <ranks> <stage> <fp32|bf16> <tag>=<micro-batches>...\n");
    return 2;
  }
  ResumePlace place;
  place.ranks = std::atoi(argv[2]);
  place.stage = std::atoi(argv[3]);
  place.bf16 = std::string(argv[4]) == "bf16";
  for (int i = 5; i < argc; ++i) {
    const std::string error = make(argv[1], place, argv[i]);
    if (error.empty()) continue;
    std::fprintf(stderr, "checkpoint_maker: %s\n", error.c_str());
    return 1;
  }
  return 0;
}
