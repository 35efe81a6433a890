#include "checkpoint/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "base/check.h"

namespace zero::checkpoint {

struct BlockHasher::State {
  XXH3_state_t* hash = XXH3_createState();
  State() { XXH3_64bits_reset(hash); }
  State(const State&) = delete;
  ~State() { XXH3_freeState(hash); }
};

Checksum checksum_of(std::span<const std::byte> data) { return XXH3_64bits(data.data(), data.size()); }
Checksum checksum_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string to_hex(Checksum checksum) { return fmt::format("{:016x}", checksum); }

std::optional<Checksum> parse_hex(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  Checksum value = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'a' && c <= 'f')) return std::nullopt;
    value = value << 4 | static_cast<Checksum>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

BlockHasher::BlockHasher(std::vector<std::uint64_t> piece_nbytes, std::uint64_t block_nbytes)
    : piece_nbytes_(std::move(piece_nbytes)),
      block_nbytes_(block_nbytes),
      state_(std::make_unique<State>()),
      checksums_(piece_nbytes_.size()) {
  next_piece();
}
BlockHasher::~BlockHasher() = default;
BlockHasher::BlockHasher(BlockHasher&&) noexcept = default;

void BlockHasher::next_piece() {
  while (piece_ < piece_nbytes_.size() && piece_done_ == piece_nbytes_[piece_]) {
    ++piece_;
    piece_done_ = 0;
  }
}

void BlockHasher::update(std::span<const std::byte> data) {
  while (!data.empty()) {
    ZERO_CHECK(piece_ < piece_nbytes_.size(), "more data than pieces");
    const std::uint64_t in_block = piece_done_ % block_nbytes_;
    const std::uint64_t block_left = std::min(block_nbytes_ - in_block, piece_nbytes_[piece_] - piece_done_);
    const auto part = data.first(std::min<std::uint64_t>(block_left, data.size()));
    if (in_block == 0 && part.size() == block_left) {
      checksums_[piece_].push_back(checksum_of(part));
    } else {
      XXH3_64bits_update(state_->hash, part.data(), part.size());
      if (part.size() == block_left) {
        checksums_[piece_].push_back(XXH3_64bits_digest(state_->hash));
        XXH3_64bits_reset(state_->hash);
      }
    }
    piece_done_ += part.size();
    data = data.subspan(part.size());
    next_piece();
  }
}

}  // namespace zero::checkpoint
