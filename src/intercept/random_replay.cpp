#include "intercept/random_replay.h"

#include <ATen/Context.h>

#include <algorithm>
#include <mutex>

namespace zero::intercept {
namespace {

thread_local RandomRecording* t_recording = nullptr;
thread_local RandomReplay* t_replay = nullptr;

}  // namespace

RandomState RandomState::take(const std::vector<c10::Device>& devices) {
  RandomState taken;
  const auto add = [&](c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    taken.states_.emplace_back(device, generator.get_state());
  };
  add(c10::kCPU);
  for (const c10::Device device : devices) add(device);
  return taken;
}

bool RandomState::is(const RandomState& other) const {
  return std::equal(states_.begin(), states_.end(), other.states_.begin(), other.states_.end(),
                    [](const auto& a, const auto& b) { return a.first == b.first && a.second.equal(b.second); });
}

void RandomState::give() const {
  for (const auto& [device, state] : states_) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

RandomRecording::RandomRecording(std::vector<c10::Device> devices)
    : devices_(std::move(devices)), state_(RandomState::take(devices_)), outer_(std::exchange(t_recording, this)) {}

RandomState RandomRecording::state() const {
  return state_.is(RandomState::take(devices_)) && scopes_.empty() ? RandomState() : state_;
}

RandomRecording::~RandomRecording() { t_recording = outer_; }

RandomReplay::RandomReplay(const RandomState& recorded, const std::vector<at::Tensor>& scopes,
                           std::vector<c10::Device> devices)
    : recorded_(recorded),
      scopes_(scopes),
      devices_(std::move(devices)),
      outside_(RandomState::take(devices_)),
      outer_(std::exchange(t_replay, this)) {
  recorded_.give();
}

RandomReplay::~RandomReplay() {
  t_replay = outer_;
  outside_.give();
}

void random_stream_has_begun() {
  for (RandomRecording* one = t_recording; one; one = one->outer_) one->state_ = RandomState::take(one->devices_);
  if (!t_replay) return;
  // Nobody has drawn from it yet. Those further out go on from here as well.
  for (RandomReplay* one = t_replay; one; one = one->outer_) one->outside_ = RandomState::take(one->devices_);
  t_replay->recorded_.give();
}

bool begin_random_scope(at::Tensor& state) {
  const bool again = t_replay != nullptr;
  // One scope more than the first time is another run, which its results tell.
  if (again && t_replay->next_scope_ < t_replay->scopes_.size()) state = t_replay->scopes_[t_replay->next_scope_++];
  for (RandomRecording* one = t_recording; one; one = one->outer_) one->scopes_.push_back(state);
  return again;
}

}  // namespace zero::intercept
