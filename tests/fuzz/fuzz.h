#pragma once
// Fuzzers of the readers of what others may have written. Each is one function from any bytes to nothing:
// errors of ours are the right answer to bad input; every other exception, InternalError included, ends the
// program. libFuzzer drives them (scripts/fuzz.sh), and so does replay.cpp, in every `make test`.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "zero/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace zero::fuzz {

/// Which fuzzer this program is: the name behind "fuzz_".
extern const char* const kTarget;

/// Inputs to begin with, real ones among them, and words of the format.
struct Corpus {
  std::vector<std::string> inputs;
  std::vector<std::string> words;
};
Corpus corpus_of(std::string_view target);

/// Changes one thing: a bit, a byte, a number to a notable one, a run cut out, doubled, moved or taken from
/// `other`, a word put in.
void mutate(std::string& input, const std::string& other, const std::vector<std::string>& words,
            std::mt19937_64& random);

/// Inputs of several files: their contents with this between them.
inline constexpr std::string_view kCut = "\n=CUT=\n";
/// Exactly `count`; the last has what is left, those that are not there are empty.
std::vector<std::string_view> split(std::string_view input, std::size_t count);

/// False when `work` refused its input with an error that is not our own fault.
template <class Work>
bool accepted(Work work) {
  try {
    work();
    return true;
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    return false;
  }
}

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: not so: %s\n", what);
  std::abort();
}

/// The manifest's text with the checksum that belongs to it: few mutations would get past it otherwise.
std::string with_right_checksum(std::string_view manifest);

}  // namespace zero::fuzz
