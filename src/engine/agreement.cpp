#include "engine/agreement.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <sstream>

#include "zero/errors.h"

namespace zero::engine {
namespace {

std::string compare(const std::string& mine, const std::string& root, int rank) {
  std::istringstream mine_lines(mine), root_lines(root);
  std::string mine_line, root_line;
  while (true) {
    const bool has_mine = static_cast<bool>(std::getline(mine_lines, mine_line));
    const bool has_root = static_cast<bool>(std::getline(root_lines, root_line));
    if (!has_mine && !has_root) return {};
    if (!has_mine) mine_line = "nothing";
    if (!has_root) root_line = "nothing";
    if (mine_line != root_line) return fmt::format("rank {} has {}, rank 0 has {}", rank, mine_line, root_line);
  }
}

}  // namespace

std::string broadcast_text(std::string text, int root, Group& group, std::string_view label) {
  std::int64_t length = static_cast<std::int64_t>(text.size());
  group.broadcast(&length, 1, DType::kInt64, root, {.label = label}).wait();
  text.resize(static_cast<std::size_t>(length));
  group.broadcast(text.data(), length, DType::kByte, root, {.label = label}).wait();
  return text;
}

void leave_together(Group& group) {
  try {
    group.barrier({.label = "error on all ranks"}).wait();
  } catch (const CommError&) {  // a rank that was faster has left: what they all know says more
  }
}

std::optional<std::string> first_difference(const std::string& text, Group& group, std::string_view label) {
  if (group.size() == 1) return std::nullopt;
  const std::string root = broadcast_text(text, 0, group, label);
  const std::string difference = compare(text, root, group.rank());
  std::int64_t lowest = difference.empty() ? group.size() : group.rank();
  group.all_reduce(&lowest, 1, DType::kInt64, ReduceOp::kMin, {.label = label}).wait();
  if (lowest == group.size()) return std::nullopt;
  std::string found = broadcast_text(difference, static_cast<int>(lowest), group, label);
  leave_together(group);
  return found;
}

bool have_same_values(const at::Tensor& values, Group& group, std::string_view label) {
  const at::Tensor host = values.cpu().contiguous();
  const auto hash = fmt::format("{:x}", XXH3_64bits(host.const_data_ptr(), host.nbytes()));
  return !first_difference(hash, group, label);
}

}  // namespace zero::engine
