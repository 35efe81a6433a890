#include "checkpoint/agree.h"

#include <fmt/format.h>

#include <vector>

#include "zero/errors.h"

namespace zero::checkpoint {

void agree(const std::string& what, const std::string& error, Group& group) {
  if (group.size() == 1) {
    if (!error.empty()) throw CheckpointError(fmt::format("{} failed: {}", what, error));
    return;
  }
  const auto length = static_cast<std::int64_t>(error.size());
  std::vector<std::int64_t> lengths(group.size());
  const std::vector<std::int64_t> ones(group.size(), 1);
  group.all_gather(&length, lengths.data(), ones, DType::kInt64, {.label = "checkpoint"}).wait();
  std::int64_t total = 0;
  for (const auto one : lengths) total += one;
  if (total == 0) return;
  std::string all(static_cast<std::size_t>(total), '\0');
  group.all_gather(error.data(), all.data(), lengths, DType::kByte, {.label = "checkpoint"}).wait();
  group.barrier({.label = "checkpoint"}).wait();  // the first to throw takes nothing from the others
  std::string text;
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    if (lengths[rank] > 0) {
      text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank,
                          std::string_view(all).substr(at, static_cast<std::size_t>(lengths[rank])));
    }
    at += static_cast<std::size_t>(lengths[rank]);
  }
  throw CheckpointError(fmt::format("{} failed: {}", what, text));
}

}  // namespace zero::checkpoint
