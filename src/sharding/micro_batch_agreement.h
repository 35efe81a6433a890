#pragma once
// MicroBatchAgreement: what the ranks tell each other at the end of a micro-batch, in one small collective.
//
// Ranks may use other parameters and run other numbers of backwards. What they must know of each other is which
// parameters any of them used, how many rounds of buckets to send, and that what must be the same is the same.
#include <cstdint>
#include <string_view>
#include <vector>

#include "zero/group.h"

namespace zero::sharding {

class MicroBatchAgreement {
 public:
  /// Facts that are true for all as soon as they are for one rank.
  enum Flag : std::uint64_t {
    kBuffersChanged = 1,     ///< a buffer was written
    kParametersWritten = 2,  ///< the module wrote parameters itself
    kWindowStarted = 4,      ///< an earlier micro-batch of the window is in the sums
    kRouted = 8,             ///< ranks were seen to use different parameters
    kRows = 16,              ///< there are gradients of rows, see RowGradients
  };

  struct Facts {
    std::int64_t rounds = 0;       ///< of buckets, at least
    std::uint64_t flags = 0;       ///< Flag
    std::uint64_t must_agree = 0;  ///< a hash of what must be the same on all ranks
  };

  explicit MicroBatchAgreement(std::size_t parameters) : words_(kWords + (parameters + 63) / 64) {}

  /// *Collective.* `used[p]`: this rank has a gradient of parameter p. `label`: what for; ranks that call for
  /// other purposes fail. Afterwards the facts are those of all ranks: the largest, the union, rank 0's.
  void reach(Group& group, std::string_view label, const Facts& mine, const std::vector<std::uint8_t>& used);

  const Facts& facts() const { return facts_; }
  /// True when any rank has used parameter p.
  bool used(std::size_t p) const { return words_[kWords + p / 64] >> p % 64 & 1; }
  /// The first rank whose `must_agree` is not rank 0's; -1: all are alike.
  int differing_rank() const { return differing_rank_; }
  std::int64_t received_nbytes() const { return received_nbytes_; }  ///< of all calls

 private:
  static constexpr std::size_t kWords = 3;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint64_t> all_;  ///< [N * words], reused
  std::vector<std::int64_t> counts_;
  Facts facts_;
  int differing_rank_ = -1;
  std::int64_t received_nbytes_ = 0;
};

}  // namespace zero::sharding
