#include "checkpoint/rank_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "checkpoint/folder.h"
#include "checkpoint/ring.h"
#include "checkpoint/safetensors.h"
#include "comm/copy.h"

namespace zero::checkpoint {
namespace {

/// Data begins at a page, so that large pieces can go to the disk without a copy by the kernel.
constexpr std::size_t kAlignment = 4096;

/// For what is read again at once.
void copy_to_cache(void* to, const void* from, std::size_t nbytes) { std::memcpy(to, from, nbytes); }

}  // namespace

/// Hands out the payload from its beginning on.
struct RankFile::Source {
  static constexpr std::uint64_t kScratchNbytes = 16 << 10;

  const RankFile& file;
  void (*copy)(void* to, const void* from, std::size_t nbytes);
  std::size_t piece = 0;
  std::uint64_t done = 0;  ///< bytes of that piece

  /// The next `nbytes` of the piece.
  void take(const Piece& from, std::byte* to, std::size_t nbytes) const {
    if (from.data) {
      copy(to, from.data + done, nbytes);
      return;
    }
    // Whole elements into aligned memory; a request may begin and end within one.
    alignas(64) std::byte scratch[kScratchNbytes];
    const std::uint64_t element = file.piece_nbytes_[piece] / static_cast<std::uint64_t>(from.numel);
    for (std::uint64_t at = done; at < done + nbytes;) {
      const std::uint64_t first = at / element, skip = at % element;
      const std::uint64_t wanted = (done + nbytes - at + skip + element - 1) / element;
      const std::uint64_t count = std::min(wanted, kScratchNbytes / element);
      from.make(static_cast<std::int64_t>(first), static_cast<std::int64_t>(count), scratch);
      const std::uint64_t now = std::min(count * element - skip, done + nbytes - at);
      std::memcpy(to + (at - done), scratch + skip, now);
      at += now;
    }
  }

  void copy_to(std::byte* to, std::size_t nbytes) {
    while (nbytes > 0) {
      const std::uint64_t left = file.piece_nbytes_[piece] - done;
      const std::size_t now = std::min<std::uint64_t>(left, nbytes);
      take(file.pieces_[piece], to, now);
      to += now;
      nbytes -= now;
      done += now;
      if (done == file.piece_nbytes_[piece]) {
        ++piece;
        done = 0;
      }
    }
  }
};

RankFile::RankFile(int rank, const std::string& id, const std::vector<TensorInfo>& tensors, std::vector<Piece> pieces)
    : rank_(rank), pieces_(std::move(pieces)) {
  std::erase_if(pieces_, [](const Piece& piece) { return piece.numel == 0; });
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"},
                     {"zerotorch_checkpoint", id},
                     {"zerotorch_rank", std::to_string(rank)},
                     {"zerotorch_version", std::to_string(kFormatVersion)}};
  for (const Piece& piece : pieces_) {
    const TensorInfo& info = tensors[piece.tensor];
    header.entries.push_back({info.key(), info.dtype, {piece.numel}, 0, 0});
    piece_nbytes_.push_back(static_cast<std::uint64_t>(piece.numel) * element_nbytes(info.dtype));
    payload_nbytes_ += piece_nbytes_.back();
  }
  header_ = make_safetensors_header(header, kAlignment);
}

void RankFile::stage(std::byte* staging) {
  Source{*this, comm::copy_bytes}.copy_to(staging, payload_nbytes_);
  staged_ = staging;
}

std::size_t RankFile::ring_nbytes() { return kSlots * kSlotNbytes; }

RankPart RankFile::write(io::FileSystem& files, const std::string& folder, std::byte* ring) const {
  RankPart part;
  part.file = {rank_file_name(rank_), nbytes(), header_.size(), checksum_of(header_)};
  auto file = files.create(io::join(folder, part.file.name));
  file->write(0, std::as_bytes(std::span(header_)));
  BlockHasher hasher(piece_nbytes_, kBlockNbytes);
  Source source{*this, copy_to_cache};
  std::array<io::File::Request, kSlots> requests{};
  for (std::size_t begin = 0, chunk = 0; begin < payload_nbytes_; begin += kSlotNbytes, ++chunk) {
    const std::size_t size = std::min(kSlotNbytes, payload_nbytes_ - begin);
    const std::size_t slot = chunk % kSlots;
    const std::byte* data = staged_ ? staged_ + begin : ring + slot * kSlotNbytes;
    if (!staged_ && chunk >= kSlots) file->wait(requests[slot]);
    // In blocks that stay in the cache between copy and checksum.
    for (std::size_t at = 0; at < size; at += kBlockNbytes) {
      const std::size_t block = std::min<std::size_t>(kBlockNbytes, size - at);
      if (!staged_) source.copy_to(ring + slot * kSlotNbytes + at, block);
      hasher.update({data + at, block});
    }
    // The unaligned tail goes apart, so that the rest keeps the fast way.
    const std::size_t aligned = size / kAlignment * kAlignment;
    const std::uint64_t offset = header_.size() + begin;
    if (aligned > 0) requests[slot] = file->write(offset, {data, aligned});
    if (aligned < size) requests[slot] = file->write(offset + aligned, {data + aligned, size - aligned});
  }
  file->sync();
  file->close();
  std::uint64_t offset = header_.size();
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    part.places.push_back({pieces_[i].tensor, {0, offset, pieces_[i].begin, pieces_[i].numel, hasher.checksums()[i]}});
    offset += piece_nbytes_[i];
  }
  return part;
}

}  // namespace zero::checkpoint
