#include "comm/staging.h"

#include <algorithm>

namespace zero::comm {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kFirstNbytes = 1u << 20;

}  // namespace

bool StagingArena::fits(std::size_t nbytes, std::size_t& begin) const {
  if (!region_) return false;
  const auto in_region = [&](const Taken& taken) { return taken.region == region_.get(); };
  const auto oldest = std::find_if(taken_.begin(), taken_.end(), in_region);
  if (oldest == taken_.end()) {
    begin = 0;
    return nbytes <= region_->nbytes();
  }
  const Taken& newest = taken_.back();
  if (newest.begin >= oldest->begin) {  // taken: one stretch in the middle
    begin = newest.end;
    if (begin + nbytes <= region_->nbytes()) return true;
    begin = 0;
    return nbytes <= oldest->begin;
  }
  begin = newest.end;  // wrapped around: room between newest and oldest
  return begin + nbytes <= oldest->begin;
}

StagingArena::Block StagingArena::take(std::size_t nbytes, std::uint64_t sequence) {
  const std::size_t rounded = round_up(nbytes, kAlignment);
  std::size_t begin = 0;
  if (!fits(rounded, begin)) {
    const std::size_t doubled = region_ ? 2 * region_->nbytes() : kFirstNbytes;
    region_ = Region::create(registry_, round_up(std::max(doubled, rounded), kPageBytes), Region::Sharing::kReadable,
                             "staging of a collective's input");
    begin = 0;
  }
  taken_.push_back({sequence, begin, begin + rounded, region_.get()});
  used_nbytes_ += rounded;
  return {region_, region_->data() + begin};
}

void StagingArena::release_before(std::uint64_t sequence) {
  while (!taken_.empty() && taken_.front().sequence < sequence) {
    used_nbytes_ -= taken_.front().end - taken_.front().begin;
    taken_.pop_front();
  }
}

}  // namespace zero::comm
