#include "zero/errors.h"

#include <utility>
#include <vector>

namespace zero {
namespace {

std::vector<std::pair<std::string, std::string>>& words() {
  static auto& all = *new std::vector<std::pair<std::string, std::string>>;  // errors may come after static objects
  return all;
}

std::string in_words_of_front_end(std::string text) {
  for (const auto& [from, to] : words()) {
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  }
  return text;
}

}  // namespace

Error::Error(const std::string& what) : std::runtime_error(in_words_of_front_end(what)) {}

namespace detail {

void set_error_words(std::vector<std::pair<std::string, std::string>> from_to) { words() = std::move(from_to); }

}  // namespace detail
}  // namespace zero
