#include "data/permutation.h"

#include <algorithm>
#include <bit>
#include <string>

#include "data/random.h"
#include "zero/errors.h"

namespace zero::data {

Permutation::Permutation(std::uint64_t count, std::uint64_t seed) : count_(count) {
  if (count == 0 || count > (std::uint64_t{1} << 62)) {
    throw InternalError("Permutation: a count of " + std::to_string(count));
  }
  const int bits = std::max(2, static_cast<int>(std::bit_width(count - 1)));
  half_bits_ = (bits + 1) / 2;
  half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
  Random random(seed);
  for (std::uint64_t& key : keys_) key = random.next();
}

std::uint64_t Permutation::encrypt(std::uint64_t x) const {
  std::uint64_t left = x >> half_bits_;
  std::uint64_t right = x & half_mask_;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t next = left ^ (mix64(right ^ key) & half_mask_);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  do {
    index = encrypt(index);
  } while (index >= count_);
  return index;
}

}  // namespace zero::data
