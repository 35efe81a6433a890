#pragma once
// Trace: what a process did when, for a while: spans of its threads, calls on their way, values that change. In memory,
// and bounded; whoever writes it reads it at the end.
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::base {

/// Thread-safe. While it does not record, everything costs one look at a flag.
class Trace {
 public:
  enum class Row : std::uint8_t { kThread, kCommunication, kDisk };  ///< calls of the last two overlap

  struct Event {
    std::int64_t begin_ns = 0, end_ns = 0;  ///< monotonic_ns()
    std::int64_t nbytes = -1;               ///< -1: it moves nothing
    std::int32_t name = 0, what = 0;        ///< in names()
    std::int32_t thread = 0;                ///< from 0, in the order in which they came; of calls the one that ended it
    Row row = Row::kThread;
  };
  struct Sample {
    std::int64_t at_ns = 0;
    std::span<const std::int64_t> values;  ///< as the sampler gives them
  };
  /// Fills in the values of now. Called by any thread that ends a span, one at a time.
  using Sampler = std::function<void(std::span<std::int64_t>)>;

  /// At most so many events, and as many samples of `values` numbers each.
  Trace(std::size_t most_events, std::size_t values, Sampler sampler);

  bool records() const { return records_.load(std::memory_order_relaxed); }
  /// What began before is left out.
  void start();
  void stop();

  /// Of this thread: `name` of the kind (a literal), `what` it was about. Spans of a thread lie within each other or
  /// apart.
  void add_span(std::string_view name, std::string_view what, std::int64_t begin_ns, std::int64_t end_ns) noexcept;
  void add_call(Row row, std::string_view name, std::string_view what, std::int64_t begin_ns, std::int64_t end_ns,
                std::int64_t nbytes) noexcept;
  /// Takes a sample, unless nothing has changed since the last one.
  void sample() noexcept;

  // Of a trace that has stopped:
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<Event>& events() const { return events_; }
  std::size_t samples() const { return sampled_at_ns_.size(); }
  Sample sample_at(std::size_t index) const;
  std::int64_t begin_ns() const { return begin_ns_; }
  std::int64_t left_out() const { return left_out_; }  ///< events for which there was no room

 private:
  void add(Row row, std::string_view name, std::string_view what, std::int64_t begin_ns, std::int64_t end_ns,
           std::int64_t nbytes) noexcept;
  std::int32_t number_of(std::string_view name);
  std::int32_t this_thread();

  const std::size_t most_events_;
  const Sampler sampler_;
  std::atomic<bool> records_{false};
  std::mutex mutex_;  ///< of all below
  std::int64_t begin_ns_ = 0;
  std::int64_t left_out_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, std::int32_t, std::less<>> number_of_name_;
  std::map<int, std::int32_t> number_of_thread_;  ///< by the system's
  std::vector<Event> events_;
  std::vector<std::int64_t> sampled_at_ns_;
  std::vector<std::int64_t> sampled_;  ///< the values of all, one after the other
  std::vector<std::int64_t> now_;      ///< scratch of sample()
};

}  // namespace zero::base
