#include "sharding/micro_batch_agreement.h"

#include <algorithm>

namespace zero::sharding {

void MicroBatchAgreement::reach(Group& group, std::string_view label, const Facts& mine,
                                const std::vector<std::uint8_t>& used) {
  std::fill(words_.begin(), words_.end(), 0);
  words_[0] = static_cast<std::uint64_t>(mine.rounds);
  words_[1] = mine.flags;
  words_[2] = mine.must_agree;
  for (std::size_t p = 0; p < used.size(); ++p) {
    if (used[p]) words_[kWords + p / 64] |= std::uint64_t{1} << p % 64;
  }
  facts_ = mine;
  differing_rank_ = -1;
  if (group.size() == 1) return;
  const auto ranks = static_cast<std::size_t>(group.size());
  all_.resize(words_.size() * ranks);
  counts_.assign(ranks, static_cast<std::int64_t>(words_.size()));
  group.all_gather(words_.data(), all_.data(), counts_, DType::kInt64, {.label = label}).wait();
  received_nbytes_ += static_cast<std::int64_t>((ranks - 1) * words_.size() * sizeof(std::uint64_t));
  facts_.must_agree = all_[2];
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::uint64_t* theirs = all_.data() + r * words_.size();
    facts_.rounds = std::max(facts_.rounds, static_cast<std::int64_t>(theirs[0]));
    facts_.flags |= theirs[1];
    if (theirs[2] != facts_.must_agree && differing_rank_ < 0) differing_rank_ = static_cast<int>(r);
    for (std::size_t w = kWords; w < words_.size(); ++w) words_[w] |= theirs[w];
  }
}

}  // namespace zero::sharding
