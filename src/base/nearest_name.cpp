#include <algorithm>
#include <numeric>

#include "base/edit_distance.h"
#include "zero/nearest_name.h"

namespace zero {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

namespace base {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before.swap(row);
    row.swap(next);
  }
  return row[b.size()];
}

}  // namespace base

std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& candidates,
                              std::span<const OtherName> other_names) {
  const auto begins_so = [&](std::string_view candidate) { return candidate.starts_with(name); };
  if (name.size() > 3 && std::ranges::count_if(candidates, begins_so) == 1)
    return *std::ranges::find_if(candidates, begins_so);
  std::string_view best;
  const std::size_t allowed = name.size() <= 3 ? 1 : std::max<std::size_t>(2, name.size() / 3);
  std::size_t best_distance = allowed + 1;
  const auto look_at = [&](std::string_view known, std::string_view candidate) {
    const std::size_t distance = base::edit_distance(name, known);
    if (distance >= best_distance || distance >= known.size()) return;
    best = candidate;
    best_distance = distance;
  };
  for (const std::string_view candidate : candidates) look_at(candidate, candidate);
  for (const auto& [other, here] : other_names) {
    if (std::ranges::find(candidates, here) != candidates.end()) look_at(other, here);
  }
  return best;
}

}  // namespace zero
