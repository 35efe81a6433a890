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
  /// Nothing was drawn between the two.
  bool is(const RandomState& other) const;

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

  /// From where the numbers came; empty when none were drawn.
  RandomState state() const;
  /// What begin_random_scope() was given meanwhile, in order.
  std::vector<at::Tensor> take_scopes() { return std::move(scopes_); }

 private:
  friend void random_stream_has_begun();
  friend bool begin_random_scope(at::Tensor& state);
  std::vector<c10::Device> devices_;
  RandomState state_;
  std::vector<at::Tensor> scopes_;
  RandomRecording* outer_;
};

/// While alive, random numbers are those of a recording, and afterwards go on where they were.
class RandomReplay {
 public:
  RandomReplay(const RandomState& recorded, const std::vector<at::Tensor>& scopes, std::vector<c10::Device> devices);
  ~RandomReplay();
  RandomReplay(const RandomReplay&) = delete;
  RandomReplay& operator=(const RandomReplay&) = delete;

 private:
  friend void random_stream_has_begun();
  friend bool begin_random_scope(at::Tensor& state);
  const RandomState& recorded_;
  const std::vector<at::Tensor>& scopes_;
  std::size_t next_scope_ = 0;
  std::vector<c10::Device> devices_;
  RandomState outside_;
  RandomReplay* outer_;
};

/// To be called when the generators were switched to another stream, on the thread that has done it.
void random_stream_has_begun();

/// A scope in which numbers come from another stream of the CPU's generator, which stands at `state`. True while a part
/// runs again: `state` is then where the scope stood the first time, and the stream does not go on from there.
bool begin_random_scope(at::Tensor& state);

}  // namespace zero::intercept
