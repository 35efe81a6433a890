#pragma once
// Checksums of checkpoint files: XXH3, 64 bits, seed 0, written as 16 lower-case hexadecimal digits.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::checkpoint {

using Checksum = std::uint64_t;

Checksum checksum_of(std::span<const std::byte> data);
Checksum checksum_of(std::string_view text);
std::string to_hex(Checksum checksum);
/// Empty unless exactly 16 lower-case digits.
std::optional<Checksum> parse_hex(std::string_view text);

/// The checksums of consecutive runs of bytes ("pieces"), each cut into blocks of `block_nbytes` from its own
/// start, from data that comes in chunks of any size.
class BlockHasher {
 public:
  BlockHasher(std::vector<std::uint64_t> piece_nbytes, std::uint64_t block_nbytes);
  ~BlockHasher();
  BlockHasher(BlockHasher&&) noexcept;

  void update(std::span<const std::byte> data);
  /// By piece; complete when all bytes have come.
  const std::vector<std::vector<Checksum>>& checksums() const { return checksums_; }

 private:
  struct State;
  void next_piece();

  std::vector<std::uint64_t> piece_nbytes_;
  std::uint64_t block_nbytes_;
  std::size_t piece_ = 0;
  std::uint64_t piece_done_ = 0;  ///< bytes of the current piece
  std::unique_ptr<State> state_;
  std::vector<std::vector<Checksum>> checksums_;
};

}  // namespace zero::checkpoint
