#include "layout/state_slots.h"

#include <numeric>

namespace zero::layout {

std::vector<ColumnsPart> columns_parts(std::span<const ParameterColumns> parameters, Range range,
                                       std::uint32_t columns_of_none, std::int64_t piece_numel) {
  std::vector<ColumnsPart> parts;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const std::int64_t end = p + 1 < parameters.size() ? parameters[p + 1].begin : range.end;
    const Range own = intersect({parameters[p].begin, end}, range);
    if (own.empty()) continue;
    if (!parts.empty() && parts.back().columns == parameters[p].columns) {
      parts.back().range.end = own.end;
    } else {
      parts.push_back({own, parameters[p].columns, piece_numel});
    }
  }
  if (parts.empty()) parts.push_back({range, columns_of_none, piece_numel});
  return parts;
}

SlotCuts slot_cuts(std::span<const ColumnShape> columns, std::int64_t most_numel, std::int64_t part_numel) {
  std::int64_t multiple = kBlockNumel;
  double nbytes_of_element = 0;
  for (const ColumnShape& column : columns) {
    multiple = std::lcm(multiple, column.block_numel);
    nbytes_of_element += static_cast<double>(column.block_nbytes) / static_cast<double>(column.block_numel);
  }
  std::int64_t numel = std::min(most_numel, round_up(part_numel, multiple));
  if (nbytes_of_element > 0)
    numel = std::min(numel, static_cast<std::int64_t>(static_cast<double>(kSlotNbytes) / nbytes_of_element));
  return {std::max(multiple, numel / multiple * multiple), multiple};
}

std::int64_t slot_end(const SlotCuts& cuts, const ColumnsPart& part, std::int64_t begin) {
  const auto is_multiple = [&](std::int64_t value) { return value % cuts.multiple == 0; };
  if (part.piece_numel <= 0 || !is_multiple(part.piece_numel) || !is_multiple(part.range.begin))
    return std::min(part.range.end, begin + cuts.slot_numel);
  // As even as can be within a piece.
  const std::int64_t slots = (part.piece_numel + cuts.slot_numel - 1) / cuts.slot_numel;
  const std::int64_t each = round_up((part.piece_numel + slots - 1) / slots, cuts.multiple);
  const std::int64_t piece = begin / part.piece_numel * part.piece_numel;
  const std::int64_t end = piece + std::min(part.piece_numel, ((begin - piece) / each + 1) * each);
  return std::min(part.range.end, end);
}

std::int64_t column_nbytes(const ColumnShape& column, std::int64_t numel) {
  return round_up(round_up(numel, column.block_numel) / column.block_numel * column.block_nbytes, kColumnAlignNbytes);
}

std::int64_t slot_nbytes(std::span<const ColumnShape> columns, std::uint32_t which, std::int64_t numel) {
  std::int64_t nbytes = 0;
  for (std::size_t c = 0; c < columns.size(); ++c)
    nbytes += (which >> c & 1u) != 0 ? column_nbytes(columns[c], numel) : 0;
  return nbytes;
}

std::int64_t slots_nbytes(std::span<const ColumnShape> columns, const ColumnsPart& part, const SlotCuts& cuts) {
  std::int64_t nbytes = 0;
  for (std::int64_t begin = part.range.begin; begin < part.range.end;) {
    const std::int64_t end = slot_end(cuts, part, begin);
    nbytes += slot_nbytes(columns, part.columns, end - begin);
    begin = end;
  }
  return nbytes;
}

}  // namespace zero::layout
