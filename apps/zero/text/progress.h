#pragma once
// How training goes, while it goes: one line that is rewritten on a terminal, plain lines elsewhere.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "text/console.h"

namespace zero::app {

/// A mean that follows recent values: each new one counts a tenth (1 - `keep`), without a bias at the start.
class RecentMean {
 public:
  explicit RecentMean(double keep = 0.9) : keep_(keep) {}
  void add(double value) {
    sum_ = keep_ * sum_ + (1 - keep_) * value;
    weight_ = keep_ * weight_ + (1 - keep_);
  }
  double value() const { return weight_ > 0 ? sum_ / weight_ : 0; }

  /// For a checkpoint: everything that value() and add() depend on.
  std::pair<double, double> state() const { return {sum_, weight_}; }
  void restore(std::pair<double, double> state) { std::tie(sum_, weight_) = state; }

 private:
  double keep_, sum_ = 0, weight_ = 0;
};

struct StepLine {
  std::int64_t step = 0;
  double loss = 0;  ///< smoothed, nats per byte
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_s = 0;
  double seconds_left = 0;
  std::int64_t resident_nbytes = 0;  ///< of this process
};

/// The line of a terminal, at most `columns` wide: bar, counts, and as many of the values as fit.
std::string live_line(const StepLine& line, std::int64_t steps, int columns);
/// The line of a log file.
std::string plain_line(const StepLine& line, std::int64_t steps);

/// Prints `text` once if it lives longer than `patience`, during which nobody else prints.
class SlowNotice {
 public:
  SlowNotice(const Console& console, std::chrono::seconds patience, std::string text);
  ~SlowNotice();
  SlowNotice(const SlowNotice&) = delete;
  SlowNotice& operator=(const SlowNotice&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;
};

class Progress {
 public:
  /// `steps_per_print`: plain lines every so many steps; 0: about every five seconds.
  Progress(const Console& console, std::int64_t steps, std::int64_t steps_per_print);

  void update(const StepLine& line);
  /// Terminal only: says what is done between steps, until the next output.
  void busy(const std::string& what);
  /// A line of its own; the progress line goes on below it.
  void note(const std::string& text);
  /// Leaves the last progress line standing.
  void finish();

 private:
  bool due(std::int64_t step) const;
  void clear();

  Console console_;
  std::int64_t steps_;
  std::int64_t steps_per_print_;
  bool live_;
  bool shown_ = false;  ///< a live line is on the screen
  std::string last_;
  std::chrono::steady_clock::time_point last_time_;
};

}  // namespace zero::app
