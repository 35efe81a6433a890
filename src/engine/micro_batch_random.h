#pragma once
// MicroBatchRandom: whose numbers libtorch's default generators give. The program's own, but while a
// micro-batch's forward and backward run: then those of a stream that belongs to the micro-batch, whatever
// rank it falls on, so that dropout does not depend on the number of ranks, and the program's draws do not
// depend on dropout.
//
// The stream of a micro-batch begins at the first use of a parameter with gradients on (or in the call
// operator of an engine), is interrupted at the end of every backward and ends with step(). One engine's
// stream at a time: another engine's modules draw from the one that has begun.
#include <ATen/core/Tensor.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <optional>

namespace zero::engine {

class MicroBatchRandom {
 public:
  MicroBatchRandom() = default;
  ~MicroBatchRandom();
  MicroBatchRandom(const MicroBatchRandom&) = delete;
  MicroBatchRandom& operator=(const MicroBatchRandom&) = delete;

  /// The device whose generator is looked after beside the CPU's.
  void set_device(c10::Device device) { device_ = device; }
  /// True where an engine's stream has begun, this one's or another's.
  static bool has_begun();
  /// True where the program has called manual_seed() since the stream began.
  static bool was_reseeded();
  /// Whether the program has called manual_seed() since the last forget_seeding() and has drawn nothing since. While no
  /// stream has begun.
  static bool is_just_seeded();
  static void forget_seeding();
  /// The next begin() is the micro-batch's first.
  void restart() { interrupted_.reset(); }
  /// From here on numbers come from the stream of `seed`, or from where this micro-batch's was interrupted.
  /// After has_begun() was false.
  void begin(std::uint64_t seed);
  /// The program's numbers again, whichever engine's stream it is; from the seed that the program has set
  /// meanwhile, if it has.
  static void interrupt();
  /// interrupt(), and what begins next is another micro-batch's.
  void end();
  /// The seed of the program's own numbers. While no stream has begun.
  static std::uint64_t program_seed();

 private:
  /// Of the generators; costs no allocation on the CPU.
  struct State {
    at::mt19937 cpu;
    std::optional<float> next_float;
    std::optional<double> next_double;
    at::Tensor device;
  };
  State take_state() const;
  void give_state(const State& state) const;

  c10::Device device_{c10::kCPU};
  std::uint64_t seed_ = 0;
  std::optional<State> interrupted_;  ///< where this micro-batch's stream goes on
  State program_;                     ///< while the stream runs
};

}  // namespace zero::engine
