#include <gtest/gtest.h>

#include "base/edit_distance.h"
#include "zero/nearest_name.h"

namespace zero::nearest_name_test {
namespace {

TEST(NearestName, Distance) {
  EXPECT_EQ(base::edit_distance("", ""), 0u);
  EXPECT_EQ(base::edit_distance("", "abc"), 3u);
  EXPECT_EQ(base::edit_distance("stage", "stage"), 0u);
  EXPECT_EQ(base::edit_distance("Stage", "stage"), 0u) << "case does not count";
  EXPECT_EQ(base::edit_distance("stge", "stage"), 1u);
  EXPECT_EQ(base::edit_distance("satge", "stage"), 1u) << "a swap of neighbours is one edit";
  EXPECT_EQ(base::edit_distance("kitten", "sitting"), 3u);
}

TEST(NearestName, Nearest) {
  EXPECT_EQ(nearest_name("reduce_bucket_sizes", {"reduce_scatter", "reduce_bucket_size"}), "reduce_bucket_size");
  EXPECT_EQ(nearest_name("sateg", {"stage", "store"}), "stage");
  EXPECT_EQ(nearest_name("completely_else", {"stage", "store"}), "");
  EXPECT_EQ(nearest_name("xy", {"lr"}), "") << "a name that shares nothing is no suggestion";
  EXPECT_EQ(nearest_name("fetch", {"fetch_and_add", "store"}), "fetch_and_add") << "the beginning of one";
}

TEST(NearestName, OtherNames) {
  constexpr OtherName kOthers[] = {{"learning_rate", "lr"}, {"stages", "store"}};
  EXPECT_EQ(nearest_name("learning_rate", {"lr", "eps"}, kOthers), "lr");
  EXPECT_EQ(nearest_name("lerning_rate", {"lr", "eps"}, kOthers), "lr") << "misspelt, too";
  EXPECT_EQ(nearest_name("learning_rate", {"eps"}, kOthers), "") << "what is none of the candidates is no suggestion";
  EXPECT_EQ(nearest_name("stage", {"stage", "store"}, kOthers), "stage") << "what is nearer by itself";
}

}  // namespace
}  // namespace zero::nearest_name_test
