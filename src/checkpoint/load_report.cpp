#include "checkpoint/load_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "zero/errors.h"

namespace zero::checkpoint {

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMaxNamed = 8;
  const std::size_t shown = std::min(names.size(), kMaxNamed);
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(shown);
  return fmt::format("{}{}", fmt::join(names.begin(), end, ", "),
                     names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

std::string shape_mismatch(const std::string& name, const std::vector<std::int64_t>& model,
                           const std::vector<std::int64_t>& found, const std::string& where) {
  return fmt::format("{}: [{}] in the model, [{}] in {}", name, fmt::join(model, ", "), fmt::join(found, ", "), where);
}

void require_all_match(const LoadReport& report, const std::string& what, const std::string& remedy) {
  std::string text;
  const auto add = [&text](std::string_view problem, const std::vector<std::string>& names) {
    if (names.empty()) return;
    text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", names.size(), problem, some_of(names));
  };
  add("missing there", report.missing);
  add("not in the model", report.unexpected);
  add("of another shape", report.mismatched);
  if (!text.empty()) throw CheckpointError(fmt::format("{}: {}. {}", what, text, remedy));
}

}  // namespace zero::checkpoint
