#pragma once
// How states that are not in memory lie in their file: slots of some elements each, with the columns of a slot one
// after the other, so that one request reads or writes all of them. Pure integer maths.
#include <cstdint>
#include <span>
#include <vector>

#include "layout/shard.h"

namespace zero::layout {

/// Columns begin at multiples of this many bytes, as direct requests have to.
inline constexpr std::int64_t kColumnAlignNbytes = 4096;
/// About what a slot takes: a disk is at its full speed, and a few of them stay in the cache of a core's neighbours.
inline constexpr std::int64_t kSlotNbytes = 8 << 20;

/// One state of all elements: `block_nbytes` for every `block_numel` elements that lie together.
struct ColumnShape {
  std::int64_t block_nbytes = 4;
  std::int64_t block_numel = 1;
};

/// Elements that follow each other and have the same columns (bit c: column c).
struct ColumnsPart {
  Range range;
  std::uint32_t columns = 0;
  /// Visited in pieces that end at multiples of so many elements of the unit, or where the part does; 0: in any.
  std::int64_t piece_numel = 0;
};
/// Where a parameter begins in its unit, and its columns.
struct ParameterColumns {
  std::int64_t begin = 0;
  std::uint32_t columns = 0;
};

/// `range` of a unit with these parameters, in their order, as parts. Padding goes with the parameter before it; where
/// there is no parameter the part has `columns_of_none`.
std::vector<ColumnsPart> columns_parts(std::span<const ParameterColumns> parameters, Range range,
                                       std::uint32_t columns_of_none, std::int64_t piece_numel = 0);

/// How parts are cut into slots: of at most `slot_numel` elements, multiples of `multiple` but for the last.
struct SlotCuts {
  std::int64_t slot_numel = 0;
  std::int64_t multiple = kBlockNumel;
};

/// Slots that have all columns: multiples of kBlockNumel and of every block_numel, of at most `most_numel` elements
/// (but one such multiple), and no more than are needed for `part_numel`.
SlotCuts slot_cuts(std::span<const ColumnShape> columns, std::int64_t most_numel, std::int64_t part_numel);
/// Where the slot of a part that begins at `begin` ends. No two pieces share a slot, where that can be.
std::int64_t slot_end(const SlotCuts& cuts, const ColumnsPart& part, std::int64_t begin);
/// Bytes of column `c` of `numel` elements, padding included.
std::int64_t column_nbytes(const ColumnShape& column, std::int64_t numel);
/// Bytes of a slot of `numel` elements with those columns (bit c: column c).
std::int64_t slot_nbytes(std::span<const ColumnShape> columns, std::uint32_t which, std::int64_t numel);
/// Bytes of a part, in slots.
std::int64_t slots_nbytes(std::span<const ColumnShape> columns, const ColumnsPart& part, const SlotCuts& cuts);

}  // namespace zero::layout
