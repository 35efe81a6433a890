#include "checkpoint/range_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "checkpoint/checksum.h"
#include "checkpoint/ring.h"
#include "zero/errors.h"

namespace zero::checkpoint {
namespace {

constexpr std::size_t kRingNbytes = kSlots * kSlotNbytes;

std::uint64_t round_down(std::uint64_t value, std::uint64_t multiple) { return value / multiple * multiple; }

}  // namespace

/// One checksummed block of a piece, and what of it goes where.
struct RangeReader::Block {
  int file = 0;
  std::uint64_t offset = 0;  ///< in the file
  std::uint32_t nbytes = 0;
  std::uint32_t from = 0, size = 0;  ///< bytes of the block that are wanted
  std::byte* to = nullptr;           ///< null: only verified
  Checksum checksum = 0;
  std::size_t tensor = 0;

  std::uint64_t end() const { return offset + nbytes; }
};

/// Blocks that are read together.
struct RangeReader::Chunk {
  std::size_t first = 0, count = 0;
  std::uint64_t begin = 0, end = 0;  ///< in the file; begin is aligned
};

RangeReader::RangeReader(io::FileSystem& files, const Found& found) : files_(files), found_(found) {}

void RangeReader::make_ring() {
  // The kernel pins the pages of every request: with huge ones large reads took a sixth less time.
  const bool huge = total_nbytes_ >= kSlotNbytes;
  if (ring_.nbytes() > 0 && (ring_is_huge_ || !huge)) return;
  ring_ = io::AlignedBuffer(kRingNbytes, huge ? io::AlignedBuffer::Pages::kHuge : io::AlignedBuffer::Pages::kOrdinary);
  ring_is_huge_ = huge;
}

std::vector<RangeReader::Block> RangeReader::blocks_of(std::span<const Target> targets) const {
  std::vector<Block> blocks;
  for (const Target& target : targets) {
    const ManifestTensor& tensor = found_.manifest.tensors[target.tensor];
    const auto element = static_cast<std::int64_t>(element_nbytes(tensor.info.dtype));
    const std::int64_t end = target.begin + target.numel;
    for (const auto& piece : tensor.pieces) {
      const std::int64_t begin = std::max(piece.begin, target.begin);
      const std::int64_t stop = std::min(piece.begin + piece.numel, end);
      if (begin >= stop) continue;
      // In bytes from the piece's start; blocks hold whole elements.
      const auto wanted_begin = static_cast<std::uint64_t>((begin - piece.begin) * element);
      const auto wanted_end = static_cast<std::uint64_t>((stop - piece.begin) * element);
      const auto piece_nbytes = static_cast<std::uint64_t>(piece.numel * element);
      for (std::uint64_t at = round_down(wanted_begin, kBlockNbytes); at < wanted_end; at += kBlockNbytes) {
        Block block;
        block.file = piece.file;
        block.offset = piece.offset + at;
        block.nbytes = static_cast<std::uint32_t>(std::min(kBlockNbytes, piece_nbytes - at));
        const std::uint64_t part_begin = std::max(at, wanted_begin);
        const std::uint64_t part_end = std::min(at + block.nbytes, wanted_end);
        block.from = static_cast<std::uint32_t>(part_begin - at);
        block.size = static_cast<std::uint32_t>(part_end - part_begin);
        block.checksum = piece.checksums[at / kBlockNbytes];
        block.tensor = target.tensor;
        if (target.data) {
          block.to = target.data + (piece.begin - target.begin) * element + static_cast<std::int64_t>(part_begin);
        }
        blocks.push_back(block);
      }
    }
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& a, const Block& b) { return a.file != b.file ? a.file < b.file : a.offset < b.offset; });
  return blocks;
}

void RangeReader::check_header(io::File& file, int index, const std::string& path) const {
  const ManifestFile& expected = found_.manifest.files[index];
  if (const std::uint64_t nbytes = file.size(); nbytes != expected.nbytes) {
    throw CheckpointError(fmt::format("'{}' has {} bytes, the manifest says {}: it was cut off or replaced", path,
                                      nbytes, expected.nbytes));
  }
  std::string header(expected.header_nbytes, '\0');
  file.read(0, std::as_writable_bytes(std::span(header)));
  file.drain();
  if (checksum_of(header) == expected.header_checksum) return;
  const bool other = header.size() > 8 && header.find("zerotorch_checkpoint") != std::string::npos &&
                     header.find(found_.manifest.id) == std::string::npos;
  throw CheckpointError(
      fmt::format("the header of '{}' is not what was written{}", path,
                  other ? ": the file belongs to another checkpoint" : ": it is damaged, or another rank's file"));
}

void RangeReader::take_chunk(const Chunk& chunk, std::span<const Block> blocks, const std::byte* data,
                             const std::string& path, const OnProblem& on_problem) const {
  for (const Block& block : blocks.subspan(chunk.first, chunk.count)) {
    const std::byte* at = data + (block.offset - chunk.begin);
    if (checksum_of({at, block.nbytes}) != block.checksum) {
      on_problem(
          {path, fmt::format("'{}' is damaged: bytes {} to {} of '{}' are not what was written",
                             found_.manifest.tensors[block.tensor].info.key(), block.offset, block.end(), path)});
      continue;
    }
    if (block.to) std::memcpy(block.to, at + block.from, block.size);
  }
}

void RangeReader::read_file(int index, std::span<Block> blocks, const OnProblem& on_problem) {
  const std::string path = io::join(found_.folder, found_.manifest.files[index].name);
  auto file = files_.open(path);
  check_header(*file, index, path);
  nbytes_read_ += found_.manifest.files[index].header_nbytes;
  const std::uint64_t alignment = file->alignment();
  const std::uint64_t file_nbytes = found_.manifest.files[index].nbytes;
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < blocks.size();) {
    Chunk chunk{i, 1, round_down(blocks[i].offset, alignment), blocks[i].end()};
    // What lies between two wanted blocks is read along when it is less than a page.
    for (++i; i < blocks.size() && blocks[i].offset <= chunk.end + alignment &&
              std::max(chunk.end, blocks[i].end()) + alignment - chunk.begin <= kSlotNbytes;
         ++i) {
      chunk.end = std::max(chunk.end, blocks[i].end());
      ++chunk.count;
    }
    // Whole pages, but for the end of the file.
    chunk.end = std::min((chunk.end + alignment - 1) / alignment * alignment, file_nbytes);
    chunks.push_back(chunk);
  }
  std::array<io::File::Request, kSlots> requests{};
  const auto post = [&](std::size_t c) {
    const Chunk& chunk = chunks[c];
    std::byte* slot = ring_.data() + (c % kSlots) * kSlotNbytes;
    const std::size_t size = chunk.end - chunk.begin;
    const std::size_t aligned = round_down(size, alignment);
    if (aligned > 0) requests[c % kSlots] = file->read(chunk.begin, {slot, aligned});
    if (aligned < size) {
      if (aligned > 0) file->wait(requests[c % kSlots]);  // one request stands for the chunk
      requests[c % kSlots] = file->read(chunk.begin + aligned, {slot + aligned, size - aligned});
    }
  };
  for (std::size_t c = 0; c < std::min(chunks.size(), kSlots); ++c) post(c);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    file->wait(requests[c % kSlots]);
    take_chunk(chunks[c], blocks, ring_.data() + (c % kSlots) * kSlotNbytes, path, on_problem);
    nbytes_read_ += chunks[c].end - chunks[c].begin;
    if (progress_ && *progress_) (*progress_)(std::min(nbytes_read_, total_nbytes_), total_nbytes_);
    if (c + kSlots < chunks.size()) post(c + kSlots);
  }
  file->close();
}

void RangeReader::read(std::span<const Target> targets, const Progress& progress) {
  auto blocks = blocks_of(targets);
  progress_ = &progress;
  nbytes_read_ = total_nbytes_ = 0;
  for (const Block& block : blocks) total_nbytes_ += block.nbytes;
  make_ring();
  for (std::size_t begin = 0; begin < blocks.size();) {
    std::size_t end = begin;
    while (end < blocks.size() && blocks[end].file == blocks[begin].file) ++end;
    read_file(blocks[begin].file, std::span(blocks).subspan(begin, end - begin),
              [](const Problem& problem) { throw CheckpointError(problem.text); });
    begin = end;
  }
  progress_ = nullptr;
}

std::vector<Problem> RangeReader::verify(const Progress& progress) {
  std::vector<Target> everything;
  for (std::size_t t = 0; t < found_.manifest.tensors.size(); ++t) {
    everything.push_back({t, 0, found_.manifest.tensors[t].info.numel(), nullptr});
  }
  auto blocks = blocks_of(everything);
  progress_ = &progress;
  nbytes_read_ = 0;
  total_nbytes_ = found_.manifest.nbytes();
  make_ring();
  std::vector<Problem> problems;
  const auto note = [&problems](const Problem& problem) { problems.push_back(problem); };
  for (int file = 0; file < static_cast<int>(found_.manifest.files.size()); ++file) {
    const auto first = std::find_if(blocks.begin(), blocks.end(), [&](const Block& b) { return b.file == file; });
    const auto last = std::find_if(first, blocks.end(), [&](const Block& b) { return b.file != file; });
    try {
      read_file(file, {first, last}, note);
    } catch (const Error& error) {
      problems.push_back({io::join(found_.folder, found_.manifest.files[file].name), error.what()});
    }
  }
  progress_ = nullptr;
  return problems;
}

}  // namespace zero::checkpoint
