#include "device/device_reach.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "comm/gather_values.h"
#include "device/device_sharing.h"
#include "device/device_stream.h"
#include "device/tensor_view.h"

namespace zero::device {
namespace {

constexpr std::int64_t kNumel = 16 << 10, kNbytes = kNumel * static_cast<std::int64_t>(sizeof(std::int32_t));
constexpr std::string_view kLabel = "shared device memory";

struct Offer {
  SharedHandle handle;
  bool is_there = false;
};

struct Finding {
  std::array<char, 400> problem{};
  bool reads_rightly = true;
};

/// What a rank writes, no two the same.
at::Tensor words_of(int rank) { return at::arange(kNumel, at::kInt).mul_(131071).add_(rank); }

at::Tensor words_at(void* memory, c10::Device device) {
  return view_of(memory, DType::kByte, kNbytes, device).view(at::kInt);
}

/// Notes the first error.
template <class Try>
void attempt(Finding& mine, Try what) {
  try {
    what();
  } catch (const std::exception& error) {
    if (mine.problem[0] != 0) return;
    const std::string_view words = error.what();
    std::ranges::copy(words.substr(0, std::min(words.find('\n'), mine.problem.size() - 1)), mine.problem.begin());
  }
}

}  // namespace

DeviceReach find_device_reach(Group group, c10::Device device) {
  const auto sharing = device_sharing(device.type());
  ZERO_CHECK(sharing, "{} shares no memory", device.str());
  const at::NoGradGuard no_grad;
  Finding mine;
  Offer offer;
  std::shared_ptr<void> block;
  attempt(mine, [&] {
    block = sharing->allocate(device, kNbytes, offer.handle);
    words_at(block.get(), device).copy_(words_of(group.rank()));
    finish_current_stream(device);
    offer.is_there = true;
  });
  const auto offers = comm::gather_values(group, offer, kLabel);
  for (int peer = 0; peer < group.size(); ++peer) {
    const Offer& theirs = offers[static_cast<std::size_t>(peer)];
    if (peer == group.rank() || !theirs.is_there) continue;
    attempt(mine, [&] {
      const auto mapped = sharing->open(device, theirs.handle, kNbytes);
      mine.reads_rightly = mine.reads_rightly && at::equal(words_at(mapped.get(), device).cpu(), words_of(peer));
    });
  }
  // Nobody frees a block before all have let go of it.
  const auto findings = comm::gather_values(group, mine, kLabel);
  if (const auto wrong = std::ranges::find(findings, false, &Finding::reads_rightly); wrong != findings.end())
    return {fmt::format("rank {} reads other bytes there than were written", wrong - findings.begin()), false};
  const auto failed = std::ranges::find_if(findings, [](const Finding& one) { return one.problem[0] != 0; });
  if (failed == findings.end()) return {};
  return {fmt::format("rank {}: {}", failed - findings.begin(), failed->problem.data()), true};
}

}  // namespace zero::device
