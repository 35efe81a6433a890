#pragma once
// A few threads that do system calls for somebody who has other things to do.
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace zero::io {

/// The threads start with the first job. Any thread. The destructor does what was submitted first.
class WorkerPool {
 public:
  explicit WorkerPool(int threads) : wanted_threads_(threads) {}
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return wanted_threads_; }
  /// `job` throws nothing. It is done here when no thread can be had.
  void submit(std::function<void()> job);

 private:
  void start_threads();
  void work();

  const int wanted_threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace zero::io
