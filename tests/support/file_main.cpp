// The main function of a program with the tests of several files: --file=unit/loss_test.cpp runs those of that one.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace {

/// Suites are of one file each.
std::string suites_of(std::string_view file) {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  std::string filter;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    if (!std::string_view(suite.GetTestInfo(0)->file()).ends_with(file)) continue;
    filter.append(filter.empty() ? "" : ":").append(suite.name()).append(".*");
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kFile = "--file=";
  if (argc > 1 && std::string_view(argv[1]).starts_with(kFile)) {
    const std::string filter = suites_of("/" + std::string(argv[1]).substr(kFile.size()));
    if (filter.empty()) {
      std::fprintf(stderr, "no tests of %s in this program\n", argv[1]);
      return 2;
    }
    // One that was asked for stands: --file=FILE --gtest_filter=SUITE.TEST.
    if (GTEST_FLAG_GET(filter) == "*") {
      GTEST_FLAG_SET(filter, filter);
    }
  }
  return RUN_ALL_TESTS();
}
