// training_fuzz: random training programs, by plain libtorch and by zerotorch, compared.
//
//   training_fuzz --first SEED --count N [--shrink] [--seconds S] [--only INGREDIENT] [--without
//   INGREDIENT]... [--print]
//                [--timeout S] [--simulated-device [--states-there [--by-nccl]]]
//
// Exit code 0: no difference. A line for each program that fails, and the shrunk program with --shrink.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "campaign.h"

namespace zero::fuzz_training {
namespace {

constexpr std::uint64_t kBatch = 40;  ///< programs that share forked ranks

struct Options {
  std::uint64_t first = 1, count = 100;
  double seconds = 0;
  bool shrink = false, print = false;
  bool until_found = false;
  std::optional<Ingredient> only;
  std::vector<Ingredient> without;
};

int usage(const char* what) {
  fmt::print(stderr,
             "{}\nusage: training_fuzz --first SEED --count N [--shrink] [--seconds S] [--only INGREDIENT] "
             "[--without INGREDIENT]... [--print] [--until-found] [--timeout S] "
             "[--simulated-device [--states-there [--by-nccl]]]\n",
             what);
  for (int i = 0; i < static_cast<int>(Ingredient::kCount); ++i)
    fmt::print(stderr, "{} ", name_of(static_cast<Ingredient>(i)));
  fmt::print(stderr, "\n");
  return 2;
}

void report(Case failing, Verdict verdict, bool with_shrink) {
  fmt::print("---- seed {}: {}: {}\n", failing.program.seed, verdict.kind, verdict.text);
  if (with_shrink) {
    const Verdict alone = run_cases({failing}).front();
    if (alone.ok()) {
      fmt::print("  (not when it runs alone)\n");
    } else {
      verdict = alone;
      failing = shrink(failing, verdict);
      fmt::print("  shrunk: {}: {}\n", verdict.kind, verdict.text);
    }
  }
  fmt::print("{}\n", text_of(failing));
  std::fflush(stdout);
}

int run(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::uint64_t programs = 0;
  int differences = 0, invalid = 0;
  for (std::uint64_t seed = options.first; seed < options.first + options.count;) {
    if (options.seconds > 0 && seconds() > options.seconds) break;
    std::vector<Case> cases;
    for (std::uint64_t i = 0; i < kBatch && seed < options.first + options.count; ++i, ++seed)
      cases.push_back(generate(seed, options.only, options.without));
    if (options.print)
      for (const Case& c : cases) fmt::print("{}\n", text_of(c));
    const auto verdicts = run_cases(cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (verdicts[i].ok()) continue;
      ++(verdicts[i].kind == "invalid" ? invalid : differences);
      report(cases[i], verdicts[i], options.shrink && verdicts[i].kind != "invalid");
    }
    programs += cases.size();
    if (options.until_found && differences > 0) break;
  }
  fmt::print("{} programs, {} differences", programs, differences);
  if (invalid) fmt::print(" ({} that plain libtorch refuses)", invalid);
  fmt::print(", {:.1f} a second\n", static_cast<double>(programs) / seconds());
  return differences + invalid > 0 ? 1 : 0;
}

}  // namespace
}  // namespace zero::fuzz_training

int main(int argc, char** argv) {
  using namespace zero::fuzz_training;
  setenv("ZERO_LOG_LEVEL", "error", 0);
  setenv("OMP_NUM_THREADS", "1", 1);
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--shrink")
      options.shrink = true;
    else if (flag == "--print")
      options.print = true;
    else if (flag == "--until-found")
      options.until_found = true;
    else if (flag == "--simulated-device") {
      on_simulated_device = true;
      // What libtorch has no kernels for there.
      options.without.push_back(Ingredient::kSparse);
      options.without.push_back(Ingredient::kLazy);
    } else if (flag == "--states-there") {
      states_on_device = true;
    } else if (flag == "--by-nccl") {
      moved_by_nccl = true;
    } else if (i + 1 == argc)
      return usage("a value is missing");
    else if (flag == "--first")
      options.first = std::strtoull(argv[++i], nullptr, 10);
    else if (flag == "--count")
      options.count = std::strtoull(argv[++i], nullptr, 10);
    else if (flag == "--seconds")
      options.seconds = std::strtod(argv[++i], nullptr);
    else if (flag == "--timeout")
      collective_timeout_s = std::strtod(argv[++i], nullptr);
    else if (flag == "--only") {
      options.only = ingredient_of(argv[++i]);
      if (!options.only) return usage("no such ingredient");
    } else if (flag == "--without") {
      const auto left_out = ingredient_of(argv[++i]);
      if (!left_out) return usage("no such ingredient");
      options.without.push_back(*left_out);
    } else
      return usage(argv[i]);
  }
  return run(options);
}
