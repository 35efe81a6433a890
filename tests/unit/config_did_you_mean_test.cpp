#include "config/did_you_mean.h"

#include <gtest/gtest.h>

namespace zero::config::config_did_you_mean_test {
namespace {

TEST(ConfigDidYouMean, Distance) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("stage", "stage"), 0u);
  EXPECT_EQ(edit_distance("Stage", "stage"), 0u) << "case does not count";
  EXPECT_EQ(edit_distance("stge", "stage"), 1u);
  EXPECT_EQ(edit_distance("satge", "stage"), 1u) << "a swap of neighbours is one edit";
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(ConfigDidYouMean, Nearest) {
  EXPECT_EQ(nearest("reduce_bucket_sizes", {"reduce_scatter", "reduce_bucket_size"}), "reduce_bucket_size");
  EXPECT_EQ(nearest("sateg", {"stage", "store"}), "stage");
  EXPECT_EQ(nearest("completely_else", {"stage", "store"}), "");
  EXPECT_EQ(nearest("xy", {"lr"}), "") << "a name that shares nothing is no suggestion";
}

}  // namespace
}  // namespace zero::config::config_did_you_mean_test
