#pragma once
// One small value of every rank, on every rank.
#include <string_view>
#include <type_traits>
#include <vector>

#include "zero/group.h"

namespace zero::comm {

/// By rank. *Collective.* Throws CommError.
template <class T>
std::vector<T> gather_values(Group& group, const T& mine, std::string_view label) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(group.size()), mine);
  const std::vector<std::int64_t> counts(all.size(), sizeof(T));
  if (group.size() > 1) group.all_gather(&mine, all.data(), counts, DType::kByte, {.label = label}).wait();
  return all;
}

}  // namespace zero::comm
