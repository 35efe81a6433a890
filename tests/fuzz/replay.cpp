// Without libFuzzer: the corpus, what was found before, and a few thousand mutations, the same every time, in
// bounded memory. Usage: fuzz_<target>_test [<file>...]
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fuzz/fuzz.h"

namespace {

using namespace zero::fuzz;

constexpr int kMutations = 4000;
constexpr double kMostSeconds = 8;
constexpr std::size_t kMostInput = 1 << 16;

/// What a reader may allocate on top of the program itself.
void bound_memory() {
#ifndef ZERO_SANITIZED
  constexpr rlim_t kMost = rlim_t{512} << 20;
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t most = pages * static_cast<rlim_t>(::getpagesize()) + kMost;
  const rlimit limit{most, most};
  require(::setrlimit(RLIMIT_AS, &limit) == 0, "memory can be bounded");
#endif
}

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void run(const std::string& input) {
  // In a block of its own, so that the address sanitizer sees a read past its end.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

std::vector<std::string> found_before() {
  std::vector<std::string> inputs;
  const auto folder = std::filesystem::path(ZERO_SOURCE_DIR) / "tests/fuzz/regressions" / kTarget;
  if (!std::filesystem::is_directory(folder)) return inputs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) inputs.push_back(content(entry.path()));
  return inputs;
}

}  // namespace

int main(int argc, char** argv) {
  bound_memory();
  if (argc > 1) {
    for (int i = 1; i < argc; ++i) run(content(argv[i]));
    return 0;
  }
  const Corpus corpus = corpus_of(kTarget);
  for (const auto& input : corpus.inputs) run(input);
  const auto before = found_before();
  for (const auto& input : before) run(input);
  std::mt19937_64 random(1);
  const auto begin = std::chrono::steady_clock::now();
  int done = 0;
  for (; done < kMutations; ++done) {
    std::string input = corpus.inputs[random() % corpus.inputs.size()];
    const std::string& other = corpus.inputs[random() % corpus.inputs.size()];
    for (auto changes = 1 + random() % 6; changes > 0; --changes) mutate(input, other, corpus.words, random);
    if (input.size() > kMostInput) continue;
    run(input);
    // Slow machines do less of the same.
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > kMostSeconds) break;
  }
  std::printf("%s: %zu inputs, %zu found before, %d mutations: none does harm\n", kTarget, corpus.inputs.size(),
              before.size(), done);
  return 0;
}
