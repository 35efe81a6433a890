#include "config/problems.h"

#include <fmt/format.h>

#include <algorithm>

#include "zero/errors.h"

namespace zero::config {

void Problems::add(int line, std::string text) { problems_.push_back({line, std::move(text)}); }

void Problems::throw_if_any() const {
  if (problems_.empty()) return;
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
  std::string message;
  for (std::size_t i = 0; i < std::min(sorted.size(), kShown); ++i) {
    if (i > 0) message += '\n';
    message += sorted[i].line > 0 ? fmt::format("{}:{}: {}", source_, sorted[i].line, sorted[i].text)
                                  : fmt::format("{}: {}", source_, sorted[i].text);
  }
  if (sorted.size() > kShown) message += fmt::format("\n{}: and {} more", source_, sorted.size() - kShown);
  throw ConfigError(message);
}

}  // namespace zero::config
