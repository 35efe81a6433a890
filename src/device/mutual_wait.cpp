#include "device/mutual_wait.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "comm/backend.h"

namespace zero::device {
namespace {

using namespace std::chrono_literals;

constexpr auto kVain = 10s;  ///< so long it may just be late

}  // namespace

MutualWait::MutualWait(Group group)
    : group_(std::move(group)),
      process_(::getpid()),
      exceptions_at_start_(std::uncaught_exceptions()),
      everyones_(static_cast<std::size_t>(group_.size())) {
  if (comm::GroupAccess::backend(group_)->sees_waits()) return;
  mine_ = group_.allocate(sizeof(std::int64_t));
  const std::vector<std::int64_t> counts(everyones_.size(), 1);
  window_ = comm::make_shard_window(group_, "waits for NCCL", {{"waits", counts}}, DType::kInt64, {mine_.data()});
}

MutualWait::~MutualWait() {
  if (!read_.valid() || ::getpid() != process_ || std::uncaught_exceptions() > exceptions_at_start_) return;
  try {
    read_.wait();  // which others answer
  } catch (const std::exception& error) {
    base::log_warning("leaving NCCL: {}", error.what());
  }
}

bool MutualWait::wait(comm::ExchangeBoard& board, int parcel, Work& post) {
  return window_ ? wait_and_ask(post) : wait_and_look(board, parcel, post);
}

bool MutualWait::wait_and_look(comm::ExchangeBoard& board, int parcel, Work& post) {
  constexpr std::chrono::nanoseconds kPause = 50ms;
  for (std::chrono::nanoseconds in_vain{0}; in_vain < kVain; in_vain += kPause) {
    const std::int64_t begin = base::monotonic_ns();
    if (board.wait_while_others_run(parcel, post, group_.timeout())) return true;
    if (base::monotonic_ns() - begin > kPause.count()) in_vain = {};  // some rank did something else
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

bool MutualWait::wait_and_ask(Work& post) {
  constexpr auto kBetween = 1s;
  constexpr int kAlike = 6;  ///< seen so often: nobody has left his wait in between
  if (post.wait_for(kVain)) return true;
  struct Long {
    explicit Long(MutualWait& of) : waits(of) { waits.say(++waits.long_waits_); }
    ~Long() { waits.say(0); }
    MutualWait& waits;
  } const here(*this);
  std::vector<std::int64_t> before;
  for (int alike = 0; alike < kAlike;) {
    if (!read_.valid() || read_.test()) read_ = window_->fetch(0, everyones_.data(), "who waits");
    if (post.wait_for(kBetween)) return true;
    if (!read_.test()) continue;  // some rank is in no call of the group
    const bool all_wait = std::ranges::min(everyones_) > 0;
    alike = !all_wait ? 0 : everyones_ == before ? alike + 1 : 1;
    before = everyones_;
  }
  return false;
}

void MutualWait::say(std::int64_t wait) {
  // A thread that moves data for the others reads it.
  const comm::BackendGuard guard(*comm::GroupAccess::backend(group_)->lock());
  *static_cast<std::int64_t*>(mine_.data()) = wait;
}

}  // namespace zero::device
