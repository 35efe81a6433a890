#include <algorithm>
#include <array>
#include <cctype>

#include "checkpoint/checksum.h"
#include "fuzz/fuzz.h"

namespace zero::fuzz {
namespace {

constexpr std::array<std::string_view, 22> kNumbers = {"0",
                                                       "1",
                                                       "2",
                                                       "-1",
                                                       "7",
                                                       "255",
                                                       "4096",
                                                       "65536",
                                                       "1048576",
                                                       "2147483647",
                                                       "2147483648",
                                                       "4294967295",
                                                       "9007199254740993",
                                                       "576460752303423488",   // 2^59
                                                       "4611686018427387904",  // 2^62
                                                       "9223372036854775807",
                                                       "9223372036854775808",
                                                       "18446744073709551615",
                                                       "18446744073709551616",
                                                       "1.5",
                                                       "1e400",
                                                       "-0.0"};

std::size_t below(std::mt19937_64& random, std::size_t bound) { return bound ? random() % bound : 0; }

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

void replace_number(std::string& input, std::mt19937_64& random) {
  std::size_t begin = below(random, input.size());
  while (begin < input.size() && !is_digit(input[begin])) ++begin;
  if (begin == input.size()) return;
  std::size_t end = begin;
  while (end < input.size() && is_digit(input[end])) ++end;
  while (begin > 0 && is_digit(input[begin - 1])) --begin;
  std::string number(kNumbers[below(random, kNumbers.size())]);
  if (end - begin < 18 && random() % 3 == 0) {
    number = std::to_string(std::stoll(input.substr(begin, end - begin)) + (random() % 2 ? 1 : -1));
  }
  input.replace(begin, end - begin, number);
}

/// A run of up to 64 bytes, or rarely of any length.
std::pair<std::size_t, std::size_t> run_of(const std::string& input, std::mt19937_64& random) {
  const std::size_t begin = below(random, input.size());
  const std::size_t most = random() % 8 == 0 ? input.size() : 64;
  return {begin, std::min(input.size() - begin, 1 + below(random, most))};
}

}  // namespace

void mutate(std::string& input, const std::string& other, const std::vector<std::string>& words,
            std::mt19937_64& random) {
  const std::size_t at = below(random, input.size() + 1);
  if (input.empty()) input = "x";
  const auto [begin, length] = run_of(input, random);
  switch (random() % 10) {
    case 0:
      input[begin] = static_cast<char>(input[begin] ^ (1 << random() % 8));
      break;
    case 1:
      input[begin] = static_cast<char>(random());
      break;
    case 2:
      input.erase(begin, length);
      break;
    case 3:
      input.insert(std::min(at, input.size()), input.substr(begin, length));
      break;
    case 4:
      if (!other.empty()) {
        const auto [from, taken] = run_of(other, random);
        input.replace(begin, length, other, from, taken);
      }
      break;
    case 5:
    case 6:
      if (!words.empty()) {
        const std::string& word = words[below(random, words.size())];
        input.replace(begin, random() % 2 ? std::min(word.size(), length) : 0, word);
      }
      break;
    default:
      replace_number(input, random);
  }
}

std::vector<std::string_view> split(std::string_view input, std::size_t count) {
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    const std::size_t cut = input.find(kCut);
    parts.push_back(input.substr(0, cut));
    input.remove_prefix(cut == std::string_view::npos ? input.size() : cut + kCut.size());
  }
  parts.push_back(input);
  return parts;
}

std::string with_right_checksum(std::string_view manifest) {
  constexpr std::string_view kMember = ",\n\"checksum\":";
  std::string body(manifest.substr(0, manifest.rfind(kMember)));
  body += kMember;
  return body + '"' + checkpoint::to_hex(checkpoint::checksum_of(std::string_view(body))) + "\"}\n";
}

}  // namespace zero::fuzz
