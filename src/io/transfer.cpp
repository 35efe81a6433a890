#include "io/transfer.h"

#include <algorithm>
#include <cerrno>

#include "io/io_error.h"

namespace zero::io {
namespace {

/// Linux transfers at most 2 GiB less a page in one call.
constexpr std::size_t kMaxPieceNbytes = std::size_t{1} << 30;

bool is_aligned(std::uint64_t value) { return value % kAlignment == 0; }

}  // namespace

Piece next_piece(const Transfer& transfer, bool has_direct) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(transfer.data);
  const std::size_t most = std::min(transfer.nbytes, kMaxPieceNbytes);
  if (!has_direct || !is_aligned(address - transfer.offset)) return {false, most};
  const std::size_t before = (kAlignment - transfer.offset % kAlignment) % kAlignment;
  if (before == 0 && most >= kAlignment) return {true, most / kAlignment * kAlignment};
  return {false, before == 0 ? most : std::min(most, before)};
}

bool take_result(Descriptors& file, Transfer& transfer, const Piece& piece, ssize_t result) {
  if (result > 0) {
    const auto done = static_cast<std::size_t>(result);
    transfer.offset += done;
    transfer.data += done;
    transfer.nbytes -= done;
    return transfer.nbytes > 0;
  }
  // A request is cancelled when the thread that queued it ends.
  if (result == -EINTR || result == -EAGAIN || result == -ECANCELED) return true;
  if (result == -EINVAL && piece.direct) {
    file.give_up_direct();
    return true;
  }
  if (transfer.direction == Direction::kWrite) {
    throw_io_error("write", file.path(), result == 0 ? EIO : static_cast<int>(-result));
  }
  if (result == 0) throw_file_ends(file.path(), transfer.offset, transfer.nbytes, file.size());
  throw_io_error("read", file.path(), static_cast<int>(-result));
}

void run_transfer(Descriptors& file, Transfer transfer) {
  bool more = transfer.nbytes > 0;
  while (more) {
    const Piece piece = next_piece(transfer, file.has_direct());
    const int fd = file.get(piece.direct);
    const auto offset = static_cast<off_t>(transfer.offset);
    const ssize_t result = transfer.direction == Direction::kWrite
                               ? file.syscalls().pwrite(fd, transfer.data, piece.nbytes, offset)
                               : file.syscalls().pread(fd, transfer.data, piece.nbytes, offset);
    more = take_result(file, transfer, piece, result < 0 ? -errno : result);
  }
}

}  // namespace zero::io
