// A run that was saved anywhere continues anywhere else with the same bits as the run that was never
// interrupted: {stage, ranks, store} x {at a step's end, inside an accumulation window} x {stage, ranks,
// store}.
//
//   resume_test                a sample
//   ZERO_PARITY=full           every combination
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "support/resume.h"
#include "support/spawn.h"

namespace zero::testing::resume_test {
namespace {

bool full_matrix() {
  const char* wanted = std::getenv("ZERO_PARITY");
  return wanted && std::string_view(wanted) == "full";
}

constexpr int kRanks[] = {1, 2, 3, 4, 8};

std::vector<ResumePlace> places(bool bf16, int ranks) {
  std::vector<ResumePlace> all;
  for (int stage = 0; stage < 4; ++stage) {
    for (const bool node_shared : {false, true}) all.push_back({ranks, stage, node_shared, bf16});
  }
  return all;
}

/// Where a checkpoint is taken: after two steps, or a part of the third window that the ranks can share out.
std::int64_t end_of(const ResumePlace& place, bool inside) {
  return 2 * kResumeWindow + (inside ? (place.ranks == 8 ? 16 : 12) : 0);
}

std::string tag_of(const ResumePlace& place, bool inside) {
  return fmt::format("{}_{}_{}_{}{}", place.ranks, place.stage, place.node_shared ? "shared" : "copying",
                     place.bf16 ? "bf16" : "fp32", inside ? "_inside" : "");
}

/// In the sample every save place is loaded somewhere and every load place loads something.
bool wanted(std::size_t save, std::size_t load) { return full_matrix() || (save * 7 + load * 3) % 41 == 0; }

class Resume : public ::testing::Test {
 protected:
  std::string folder_ = fmt::format("{}/zero_resume_{}", std::filesystem::temp_directory_path().string(), getpid());
  void TearDown() override { std::filesystem::remove_all(folder_); }
};

TEST_F(Resume, EveryCombinationContinuesTheSameCurve) {
  for (const int ranks : kRanks) {
    expect_all_ok(spawn(ranks,
                        [&](Group group) {
                          for (const bool bf16 : {false, true}) {
                            for (const auto& place : places(bf16, group.size())) {
                              for (const bool inside : {false, true}) {
                                train_and_save(place, group, end_of(place, inside), folder_, tag_of(place, inside),
                                               {.async = inside});
                              }
                            }
                          }
                        },
                        {.timeout = std::chrono::seconds(900)}));
  }
  const std::string count_path = folder_ + "/count";
  for (const int ranks : kRanks) {
    expect_all_ok(spawn(ranks,
                        [&](Group group) {
                          int count = 0;
                          for (const bool bf16 : {false, true}) {
                            // One process, never interrupted; each rank computes it by itself.
                            const Trajectory expected =
                                train_and_save({1, 3, false, bf16}, Group(), kResumeSteps * kResumeWindow, "", "");
                            std::size_t save = 0;
                            for (const int save_ranks : kRanks) {
                              for (const auto& from : places(bf16, save_ranks)) {
                                for (const bool inside : {false, true}) {
                                  ++save;
                                  std::size_t load = static_cast<std::size_t>(group.size()) * 8;
                                  for (const auto& to : places(bf16, group.size())) {
                                    if (!wanted(save, ++load)) continue;
                                    const Trajectory got = load_and_train(to, group, folder_, tag_of(from, inside));
                                    EXPECT_EQ(expected.difference(got), "")
                                        << "saved at " << from.name() << (inside ? ", inside a window" : "")
                                        << "; loaded at " << to.name();
                                    ++count;
                                  }
                                }
                              }
                            }
                          }
                          if (group.rank() == 0) {
                            FILE* file = std::fopen(count_path.c_str(), "a");
                            std::fprintf(file, "%d\n", count);
                            std::fclose(file);
                          }
                        },
                        {.timeout = std::chrono::seconds(full_matrix() ? 3000 : 300)}));
  }
  int total = 0, lines = 0, count = 0;
  FILE* file = std::fopen(count_path.c_str(), "r");
  ASSERT_NE(file, nullptr);
  while (std::fscanf(file, "%d", &count) == 1) {
    total += count;
    ++lines;
  }
  std::fclose(file);
  EXPECT_EQ(lines, 5);
  std::printf("%d resumed runs bit-equal to the uninterrupted one\n", total);
  EXPECT_GE(total, full_matrix() ? 2 * 80 * 40 : 100);
}

}  // namespace
}  // namespace zero::testing::resume_test
