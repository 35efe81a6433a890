#pragma once
// UpdateThread: a thread in which an optimizer's update runs beside what the program does.
#include <sys/types.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "sharding/timeline.h"

namespace zero::sharding {

/// For one thread, beside its own. Functions are local.
class UpdateThread {
 public:
  /// `work` is what start() begins, `name` its span in a trace.
  UpdateThread(std::function<void()> work, std::string name, Timeline& timeline);
  /// wait(); what was thrown is dropped.
  ~UpdateThread();
  UpdateThread(const UpdateThread&) = delete;
  UpdateThread& operator=(const UpdateThread&) = delete;

  /// While nothing runs. It has as many threads for operators as the caller.
  void start();
  /// Returns when nothing runs.
  void wait();
  /// After wait(): throws what the work has thrown, once.
  void rethrow();

 private:
  void run();

  const std::function<void()> work_;
  const std::string name_;
  Timeline& timeline_;
  const pid_t process_;  ///< a forked child has no thread
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_wanted_ = false, ends_ = false;
  int compute_threads_ = 1;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace zero::sharding
