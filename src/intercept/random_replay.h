#pragma once
// Random numbers of a part of a forward that runs twice.
//
// libtorch's generators give the program's numbers, or those of an engine's stream, which begins at a micro-batch's
// first use of a parameter: perhaps in the middle of a part. A recording knows both states; a replay changes from one
// to the other at the same use.
#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

namespace zero::intercept {

/// The states of libtorch's default generators, of the CPU and of `devices`.
class RandomState {
 public:
  static RandomState take(const std::vector<c10::Device>& devices);
  void give() const;
  /// Nothing was drawn between the two.
  bool is(const RandomState& other) const;

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

struct RecordedRandom {
  RandomState begin;
  std::optional<RandomState> stream;  ///< of an engine, where it has begun meanwhile
  std::vector<at::Tensor> scopes;     ///< what begin_random_scope() was given, in order
};

/// While alive, notes where this thread's random numbers come from.
class RandomRecording {
 public:
  explicit RandomRecording(std::vector<c10::Device> devices);
  ~RandomRecording();
  RandomRecording(const RandomRecording&) = delete;
  RandomRecording& operator=(const RandomRecording&) = delete;

  /// Nothing when no numbers were drawn.
  std::optional<RecordedRandom> take();

 private:
  friend void random_stream_has_begun();
  friend bool begin_random_scope(at::Tensor& state);
  std::vector<c10::Device> devices_;
  RecordedRandom recorded_;
  RandomRecording* outer_;
};

/// While alive, random numbers are those of a recording, and afterwards go on where they were.
class RandomReplay {
 public:
  RandomReplay(const RecordedRandom& recorded, std::vector<c10::Device> devices);
  ~RandomReplay();
  RandomReplay(const RandomReplay&) = delete;
  RandomReplay& operator=(const RandomReplay&) = delete;

 private:
  friend void random_stream_begins();
  friend void random_stream_has_begun();
  friend bool begin_random_scope(at::Tensor& state);
  const RecordedRandom& recorded_;
  std::vector<c10::Device> devices_;
  std::size_t next_scope_ = 0;
  std::optional<RandomState> outside_;  ///< what the numbers go on from
  std::optional<RandomState> here_;     ///< of the replay, while a stream begins
  RandomReplay* outer_;
};

/// To be called before and after the generators are switched to an engine's stream, on the thread that does it.
void random_stream_begins();
void random_stream_has_begun();
/// True while the calling thread runs a part again.
bool replays_random();
/// How to switch them back; a stream that has begun begins once more at the next use of a parameter.
void set_random_stream_interrupt(void (*interrupt)());

/// A scope in which numbers come from another stream of the CPU's generator, which stands at `state`. True while a part
/// runs again: `state` is then where the scope stood the first time, and the stream does not go on from there.
bool begin_random_scope(at::Tensor& state);

}  // namespace zero::intercept
