#pragma once
// Random numbers of a part of a forward that runs twice.
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace zero::intercept {

/// The states of libtorch's default generators, of the CPU and of `devices`.
class RandomState {
 public:
  static RandomState take(const std::vector<c10::Device>& devices);
  void give() const;
  bool empty() const { return states_.empty(); }

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

/// While alive, knows from where on this thread's random numbers come, also when an engine's stream of a micro-batch
/// begins meanwhile.
class RandomRecording {
 public:
  explicit RandomRecording(std::vector<c10::Device> devices);
  ~RandomRecording();
  RandomRecording(const RandomRecording&) = delete;
  RandomRecording& operator=(const RandomRecording&) = delete;

  const RandomState& state() const { return state_; }

 private:
  friend void random_stream_has_begun();
  std::vector<c10::Device> devices_;
  RandomState state_;
  RandomRecording* outer_;
};

/// While alive, random numbers are those of a recording, and afterwards go on where they were.
class RandomReplay {
 public:
  RandomReplay(const RandomState& recorded, std::vector<c10::Device> devices);
  ~RandomReplay();
  RandomReplay(const RandomReplay&) = delete;
  RandomReplay& operator=(const RandomReplay&) = delete;

 private:
  friend void random_stream_has_begun();
  const RandomState& recorded_;
  std::vector<c10::Device> devices_;
  RandomState outside_;
  RandomReplay* outer_;
};

/// To be called when the generators were switched to another stream, on the thread that has done it.
void random_stream_has_begun();

}  // namespace zero::intercept
