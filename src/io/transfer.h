#pragma once
// A request on its way: what is left of it, the pieces it is done in, and what becomes of each.
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "io/descriptors.h"

namespace zero::io {

enum class Direction : std::uint8_t { kRead, kWrite };

/// What is left to do.
struct Transfer {
  Direction direction = Direction::kRead;
  std::uint64_t offset = 0;
  std::byte* data = nullptr;  ///< only read from when writing
  std::size_t nbytes = 0;
};

/// The part that one system call can do, from the front.
struct Piece {
  bool direct = false;
  std::size_t nbytes = 0;
};

/// Whole pages go the direct way when file and memory agree about where they begin; the odd bytes before and
/// after, and all else, through the page cache. `transfer` is not empty.
Piece next_piece(const Transfer& transfer, bool has_direct);

/// Takes what the system said of a piece (bytes, or a negative errno) into account. True when there is
/// something left to do, which includes all of an interrupted piece. Throws IoError.
bool take_result(Descriptors& file, Transfer& transfer, const Piece& piece, ssize_t result);

/// Does all of it in the calling thread. Throws IoError.
void run_transfer(Descriptors& file, Transfer transfer);

}  // namespace zero::io
