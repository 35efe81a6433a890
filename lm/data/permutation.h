#pragma once
// A pseudo-random permutation of [0, count) that needs no table.
#include <array>
#include <cstdint>

namespace zero::data {

/// A balanced Feistel network over the smallest even number of bits that holds `count`, walked along its
/// cycle until it lands inside [0, count) again (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
/// 2002). At most four rounds of the network on average.
class Permutation {
 public:
  /// count > 0.
  Permutation(std::uint64_t count, std::uint64_t seed);

  /// The image of index, index < count.
  std::uint64_t operator()(std::uint64_t index) const;

 private:
  static constexpr int kRounds = 6;
  std::uint64_t encrypt(std::uint64_t x) const;

  std::uint64_t count_;
  int half_bits_;
  std::uint64_t half_mask_;
  std::array<std::uint64_t, kRounds> keys_;
};

}  // namespace zero::data
