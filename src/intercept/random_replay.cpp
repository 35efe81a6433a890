#include "intercept/random_replay.h"

#include <ATen/Context.h>

#include <algorithm>
#include <atomic>
#include <mutex>

namespace zero::intercept {
namespace {

thread_local RandomRecording* t_recording = nullptr;
thread_local RandomReplay* t_replay = nullptr;
std::atomic<void (*)()> g_interrupt{nullptr};

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
    : devices_(std::move(devices)),
      recorded_{.begin = RandomState::take(devices_)},
      outer_(std::exchange(t_recording, this)) {}

RandomRecording::~RandomRecording() { t_recording = outer_; }

std::optional<RecordedRandom> RandomRecording::take() {
  const bool drawn = recorded_.stream || !recorded_.scopes.empty() || !recorded_.begin.is(RandomState::take(devices_));
  return drawn ? std::optional(std::move(recorded_)) : std::nullopt;
}

RandomReplay::RandomReplay(const RecordedRandom& recorded, std::vector<c10::Device> devices)
    : recorded_(recorded), devices_(std::move(devices)), outer_(t_replay) {
  // A stream that began in the part is to begin there again. Inside another replay the generators do not stand where
  // the stream does, and must not be taken for it.
  if (void (*const interrupt)() = g_interrupt; recorded_.stream && interrupt && !outer_) interrupt();
  t_replay = this;
  outside_ = RandomState::take(devices_);
  recorded_.begin.give();
}

RandomReplay::~RandomReplay() {
  t_replay = outer_;
  outside_->give();
}

void random_stream_begins() {
  if (!t_replay) return;
  t_replay->here_ = RandomState::take(t_replay->devices_);
  RandomReplay* outermost = t_replay;
  while (outermost->outer_) outermost = outermost->outer_;
  outermost->outside_->give();
}

void random_stream_has_begun() {
  if (t_replay) {
    // What the replays found is behind the stream now, and nobody has drawn from it yet.
    RandomReplay* outermost = t_replay;
    while (outermost->outer_) outermost = outermost->outer_;
    outermost->outside_ = RandomState::take(outermost->devices_);
    const std::optional<RandomState> here = std::exchange(t_replay->here_, std::nullopt);
    (t_replay->recorded_.stream ? *t_replay->recorded_.stream : *here).give();
  }
  for (RandomRecording* one = t_recording; one; one = one->outer_) {
    if (!one->recorded_.stream) one->recorded_.stream = RandomState::take(one->devices_);
  }
}

bool replays_random() { return t_replay != nullptr; }

void set_random_stream_interrupt(void (*interrupt)()) { g_interrupt = interrupt; }

bool begin_random_scope(at::Tensor& state) {
  const bool again = t_replay != nullptr;
  // One scope more than the first time is another run, which its results tell.
  if (again && t_replay->next_scope_ < t_replay->recorded_.scopes.size())
    state = t_replay->recorded_.scopes[t_replay->next_scope_++];
  for (RandomRecording* one = t_recording; one; one = one->outer_) one->recorded_.scopes.push_back(state);
  return again;
}

}  // namespace zero::intercept
