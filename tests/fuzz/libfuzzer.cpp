// What libFuzzer programs have on top: mutations that know the formats, half of the time, and the corpus,
// written into the folder that ZERO_FUZZ_CORPUS names before the first input.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "fuzz/fuzz.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

const zero::fuzz::Corpus& corpus() {
  static const zero::fuzz::Corpus corpus = zero::fuzz::corpus_of(zero::fuzz::kTarget);
  return corpus;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const char* folder = std::getenv("ZERO_FUZZ_CORPUS");
  if (folder == nullptr) return 0;
  std::filesystem::create_directories(folder);
  for (std::size_t i = 0; i < corpus().inputs.size(); ++i) {
    std::ofstream(std::filesystem::path(folder) / ("made_" + std::to_string(i)), std::ios::binary)
        << corpus().inputs[i];
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned int seed) {
  std::mt19937_64 random(seed);
  if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string input(reinterpret_cast<const char*>(data), size);
  const std::string& other = corpus().inputs[random() % corpus().inputs.size()];
  for (auto changes = 1 + random() % 4; changes > 0; --changes)
    zero::fuzz::mutate(input, other, corpus().words, random);
  const std::size_t kept = std::min(input.size(), max_size);
  std::memcpy(data, input.data(), kept);
  return kept;
}
