#pragma once
// The parts of the simulated accelerator (simulated_device.h) below its operators: queues of tasks that run in random
// legal orders, memory, and both as libtorch asks for them. For simulated_device.cpp and simulated_kernels.cpp only.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "support/simulated_device.h"

namespace zero::testing::simulated {

using c10::DeviceIndex;
using c10::DispatchKey;

inline constexpr auto kSim = c10::DeviceType::PrivateUse1;
inline constexpr std::size_t kArenaBytes = std::size_t{4} << 30;
inline constexpr std::size_t kAlignment = 512;
inline constexpr int kPoison = 0xff;  // NaN in every floating-point type, -1 in integers
inline constexpr int kPoolStreams = 16;
inline constexpr std::size_t kMostPending = 4096;

inline const c10::Device kDevice(kSim, 0);
inline const c10::DispatchKeySet kKeys(DispatchKey::PrivateUse1);

/// What runs on behalf of the device runs as in a fresh thread without autograd, whatever the state of the thread.
class CleanState {
 public:
  CleanState()
      : autograd_(c10::AutogradState::get_tls_state()),
        keys_(c10::DispatchKeySet({DispatchKey::BackendSelect}),
              c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset) {
    c10::AutogradState::set_tls_state(c10::AutogradState(false, false, false, true));
  }
  ~CleanState() { c10::AutogradState::set_tls_state(autograd_); }
  CleanState(const CleanState&) = delete;
  CleanState& operator=(const CleanState&) = delete;

 private:
  c10::AutogradState autograd_;
  c10::impl::ForceDispatchKeyGuard keys_;
  at::DisableRecordFunctionGuard no_records_;
};

/// splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  bool once_in(std::uint64_t n) { return n != 0 && below(n) == 0; }

 private:
  std::uint64_t state_;
};

/// A file of memory, mapped twice: where device pointers lie it cannot be accessed.
struct Region {
  Region(int file, std::size_t size) : nbytes(size) {
    const auto map = [&](int protection) {
      void* const address = mmap(nullptr, nbytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
      TORCH_CHECK(address != MAP_FAILED, "simulated device: no address space: ", std::strerror(errno));
      return static_cast<char*>(address);
    };
    hidden = map(PROT_NONE);
    readable = map(PROT_READ | PROT_WRITE);
    madvise(readable, nbytes, MADV_DONTDUMP);
  }
  void unmap() const {
    munmap(hidden, nbytes);
    munmap(readable, nbytes);
  }
  bool has(const void* pointer) const { return pointer >= hidden && pointer < hidden + nbytes; }

  std::size_t nbytes = 0;
  char* hidden = nullptr;
  char* readable = nullptr;
};

/// A new file of memory. The caller closes it.
inline int memory_file(std::size_t nbytes) {
  const int file = memfd_create("simulated_device", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(nbytes)) == 0,
              "simulated device: no memory: ", std::strerror(errno));
  return file;
}

/// All memory of the device: what it hands out itself, and what is shared with other processes, block by block.
struct Arena {
  Arena() : own(make_own()), hidden(own.hidden) {}
  bool has(const void* pointer) const {
    return own.has(pointer) || std::ranges::any_of(shared, [&](const Region& region) { return region.has(pointer); });
  }
  char* access(const void* pointer) const {
    const Region* region = own.has(pointer) ? &own : nullptr;
    for (const Region& one : shared) {
      if (one.has(pointer)) region = &one;
    }
    TORCH_CHECK(region, "simulated device: ", pointer, " is no memory of the device");
    return region->readable + (static_cast<const char*>(pointer) - region->hidden);
  }
  static Region make_own() {
    const int file = memory_file(kArenaBytes);
    const Region made(file, kArenaBytes);
    close(file);
    return made;
  }

  Region own;
  char* hidden = nullptr;
  std::vector<Region> shared;
};

/// The end of a stream's work at some time: the first `count` tasks that were ever put into it.
struct Point {
  int stream = 0;
  std::uint64_t count = 0;
};

struct Task {
  std::function<void()> run;    // empty: only a mark in the queue
  std::optional<Point> wait;    // does nothing but wait
  std::function<bool()> ready;  // of another process: it does not run before
  bool work = false;            // an operator or a copy
  std::uint64_t number = 0;     // of work, in the order of issue
};

struct Queue {
  std::deque<Task> tasks;
  std::uint64_t issued = 0, executed = 0;
  std::uint64_t weight = 1;
};

struct Event {
  Point point;
  std::shared_ptr<double> milliseconds;  // when it was passed last, of one with times
};

struct Block {
  std::size_t capacity = 0, nbytes = 0;
  int stream = 0;
  std::set<int> other_streams;  // by record_stream
};

/// A block that was freed while other streams used it.
struct Retiring {
  char* address = nullptr;
  Block block;
  std::vector<Point> uses;
};

/// The current stream of a thread; of an earlier start() where the epoch differs.
struct CurrentStream {
  std::uint64_t epoch = 0;
  int stream = 0;
};

class Device {
 public:
  void start(Options options) {
    const std::lock_guard lock(mutex_);
    if (owner_ != getpid()) {
      arena_.emplace();
      owner_ = getpid();
      used_ = 0;
      queues_.clear();
      blocks_.clear();
      free_.clear();
      unused_.clear();
      retiring_.clear();
      counts_ = {};
      pending_work_ = 0;
    }
    TORCH_CHECK(pending_work_ == 0, "simulated device: started with ", pending_work_, " operators pending");
    run_all();
    for (auto& [stream, sizes] : free_) {
      for (auto& [capacity, addresses] : sizes) {
        auto& unused = unused_[capacity];
        unused.insert(unused.end(), addresses.begin(), addresses.end());
      }
    }
    free_.clear();
    options_ = std::move(options);
    random_ = Random(options_.seed * 0x9E3779B97F4A7C15ull + 1);
    // How eager the device is differs from seed to seed: some seeds run nothing before the host waits.
    constexpr std::array<std::uint64_t, 5> kOnceIn = {0, 3, 8, 24, 96};
    run_at_issue_once_in_ = kOnceIn[random_.below(kOnceIn.size())];
    run_other_once_in_ = kOnceIn[random_.below(kOnceIn.size())];
    const std::int64_t live = counts_.live_nbytes;
    counts_ = {};
    counts_.live_nbytes = counts_.peak_nbytes = live;
    work_issued_ = 0;
    order_ = 1469598103934665603ull;
    error_.clear();
    epoch_ += 1;
    handed_out_ = pooled_ = 0;
    pool_.clear();
    for (auto& queue : queues_) queue.weight = 1;
    queue_of(0);
  }

  std::recursive_mutex& mutex() { return mutex_; }
  const Arena& arena() const {
    TORCH_CHECK(arena_ && owner_ == getpid(), "simulated device: start() comes first");
    return *arena_;
  }
  /// Memory of a file as memory of the device; until no_longer().
  void* share(int file, std::size_t nbytes) {
    arena();
    return arena_->shared.emplace_back(file, nbytes).hidden;
  }
  /// Nothing that is pending uses it.
  void no_longer(void* address) {
    if (!started()) return;  // a fork
    std::erase_if(arena_->shared, [&](const Region& region) {
      if (region.hidden != address) return false;
      region.unmap();
      return true;
    });
  }
  bool started() const { return arena_ && owner_ == getpid(); }
  const Counts& counts() const { return counts_; }
  Counts& counts() { return counts_; }
  std::uint64_t order() const { return order_; }
  std::function<void(const char*)> on_prompt;

  // Streams.
  int current() const { return current_.epoch == epoch_ ? current_.stream : 0; }
  int exchange_current(int stream) {
    const int previous = current();
    current_ = {epoch_, stream};
    return previous;
  }
  int new_stream() {
    queue_of(++handed_out_);
    return handed_out_;
  }
  int pooled_stream() {
    const int index = pooled_++ % kPoolStreams;
    if (index == static_cast<int>(pool_.size())) pool_.push_back(new_stream());
    return pool_[index];
  }
  Point end_of(int stream) { return {stream, queue_of(stream).issued}; }
  bool done(const Point& point) { return queue_of(point.stream).executed >= point.count; }
  bool idle(int stream) { return queue_of(stream).tasks.empty(); }
  /// Every stream that was handed out.
  std::vector<int> streams() const {
    std::vector<int> numbers(handed_out_ + 1);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }
  std::vector<int> busy() {
    std::vector<int> found;
    for (int stream = 0; stream < static_cast<int>(queues_.size()); ++stream) {
      if (!idle(stream)) found.push_back(stream);
    }
    return found;
  }

  // Work.
  void add_work(std::function<void()> run) {
    maybe_run();
    ++counts_.tasks;
    ++pending_work_;
    put(current(), {.run = std::move(run), .wait = {}, .work = true, .number = ++work_issued_});
    maybe_run();  // before the host has done anything that this should have come after
  }
  Point add_mark(int stream, std::function<void()> when_passed = {}) {
    put(stream, {.run = std::move(when_passed)});
    return end_of(stream);
  }
  bool left_out(const Wait& wait) {
    ++counts_.waits;
    return options_.leave_out && options_.leave_out(wait);
  }
  /// A task that runs when `ready` says so, which looks at what other processes do.
  void add_when(int stream, std::function<bool()> ready, std::function<void()> run) {
    ++pending_work_;
    put(stream, {.run = std::move(run), .wait = {}, .ready = std::move(ready), .work = true, .number = ++work_issued_});
  }
  /// Everything that `stream` has been told to wait for is over.
  void run_what_it_waits_for(int stream) {
    std::vector<Point> points;
    for (const Task& task : queue_of(stream).tasks) {
      if (task.wait) points.push_back(*task.wait);
    }
    run_until(points);
  }
  void add_wait(int stream, const Point& point) {
    if (stream == point.stream || left_out({stream, point.stream})) return;
    put(stream, {.run = {}, .wait = point});
  }

  /// Runs what must come before these points, in a random legal order, and some of what may.
  void run_until(const std::vector<Point>& points) {
    std::vector<std::uint64_t> needed(queues_.size(), 0);
    std::vector<Point> to_visit = points;
    while (!to_visit.empty()) {
      const Point point = to_visit.back();
      to_visit.pop_back();
      const Queue& queue = queues_[point.stream];
      auto& reached = needed[point.stream];
      for (std::uint64_t i = std::max(reached, queue.executed); i < point.count; ++i) {
        const Task& task = queue.tasks[i - queue.executed];
        if (task.wait) to_visit.push_back(*task.wait);
      }
      reached = std::max(reached, point.count);
    }
    std::int64_t waited_us = 0;
    while (true) {
      std::vector<int> candidates;
      bool missing = false;
      for (int stream = 0; stream < static_cast<int>(needed.size()); ++stream) {
        if (queues_[stream].executed >= needed[stream]) continue;
        missing = true;
        if (runnable(stream)) candidates.push_back(stream);
      }
      if (!missing) break;
      if (random_.once_in(run_other_once_in_)) candidates = all_runnable();
      if (candidates.empty()) {
        wait_for_other_processes(waited_us);
        continue;
      }
      waited_us = 0;
      run_one(candidates);
    }
    if (!error_.empty()) TORCH_CHECK(false, "simulated device: an operator failed: ", std::exchange(error_, {}));
  }
  void run_all() {
    std::vector<Point> ends;
    for (const int stream : busy()) ends.push_back(end_of(stream));
    run_until(ends);
  }
  void run_some(std::uint64_t most) {
    for (std::uint64_t left = 1 + random_.below(most); left > 0; --left) {
      const auto candidates = all_runnable();
      if (candidates.empty()) return;
      run_one(candidates);
    }
  }

  // Memory.
  char* allocate(std::size_t nbytes) {
    const Arena& arena = this->arena();
    const std::size_t capacity = rounded(nbytes);
    const int stream = current();
    char* address = nullptr;
    if (auto& mine = free_[stream][capacity]; !mine.empty()) {
      address = mine.back();
      mine.pop_back();
    } else {
      if (auto& unused = unused_[capacity]; !unused.empty()) {
        address = unused.back();
        unused.pop_back();
      } else {
        TORCH_CHECK(used_ + capacity <= kArenaBytes, "simulated device: out of memory");
        address = arena.hidden + used_;
        used_ += capacity;
      }
      std::memset(arena.access(address), kPoison, capacity);
    }
    blocks_[address] = {capacity, nbytes, stream, {}};
    counts_.live_nbytes += static_cast<std::int64_t>(nbytes);
    counts_.peak_nbytes = std::max(counts_.peak_nbytes, counts_.live_nbytes);
    return address;
  }
  void record_use(const void* address, int stream) {
    const auto found = blocks_.find(static_cast<const char*>(address));
    TORCH_CHECK(found != blocks_.end(), "simulated device: record_stream of memory that was not allocated here");
    if (found->second.stream != stream) found->second.other_streams.insert(stream);
  }
  void free(char* address) {
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return;  // of the process that this one was forked from
    Block block = std::move(found->second);
    blocks_.erase(found);
    counts_.live_nbytes -= static_cast<std::int64_t>(block.nbytes);
    if (block.other_streams.empty()) {
      char* const memory = arena_->access(address);
      put(block.stream, {.run = [memory, n = block.capacity] { std::memset(memory, kPoison, n); }, .wait = {}});
      free_[block.stream][block.capacity].push_back(address);
      return;
    }
    Retiring retiring{address, std::move(block), {}};
    retiring.uses.push_back(add_mark(retiring.block.stream));
    for (const int stream : retiring.block.other_streams) retiring.uses.push_back(add_mark(stream));
    retiring_.push_back(std::move(retiring));
  }

 private:
  Queue& queue_of(int stream) {
    TORCH_CHECK(stream >= 0, "simulated device: no stream ", stream);
    if (static_cast<std::size_t>(stream) >= queues_.size()) queues_.resize(stream + 1);
    return queues_[stream];
  }
  void put(int stream, Task task) {
    Queue& queue = queue_of(stream);
    queue.tasks.push_back(std::move(task));
    ++queue.issued;
  }
  bool runnable(int stream) {
    const Queue& queue = queues_[stream];
    if (queue.tasks.empty()) return false;
    const Task& task = queue.tasks.front();
    return (!task.wait || done(*task.wait)) && (!task.ready || task.ready());
  }
  void wait_for_other_processes(std::int64_t& waited_us) {
    const bool others = std::ranges::any_of(
        queues_, [](const Queue& queue) { return !queue.tasks.empty() && queue.tasks.front().ready; });
    TORCH_CHECK(others, "simulated device: streams wait for each other");
    TORCH_CHECK(waited_us < 60'000'000, "simulated device: other processes do not come");
    usleep(100);
    waited_us += 100;
  }
  std::vector<int> all_runnable() {
    std::vector<int> found;
    for (int stream = 0; stream < static_cast<int>(queues_.size()); ++stream) {
      if (runnable(stream)) found.push_back(stream);
    }
    return found;
  }
  void maybe_run() {
    if (random_.once_in(run_at_issue_once_in_)) run_some(8);
    // As a device's queues are finite, too.
    while (pending_work_ > kMostPending) run_some(64);
  }
  void run_one(const std::vector<int>& candidates) {
    // Some streams are ahead of others for a while, or far behind them.
    if (random_.once_in(64)) {
      constexpr std::array<std::uint64_t, 4> kWeights = {1, 1, 16, 256};
      for (auto& queue : queues_) queue.weight = kWeights[random_.below(kWeights.size())];
    }
    std::uint64_t sum = 0;
    for (const int stream : candidates) sum += queues_[stream].weight;
    std::uint64_t drawn = random_.below(sum);
    std::size_t chosen = 0;
    while (drawn >= queues_[candidates[chosen]].weight) drawn -= queues_[candidates[chosen++]].weight;
    run_front(candidates[chosen]);
  }
  void run_front(int stream) {
    const Task task = std::move(queues_[stream].tasks.front());
    queues_[stream].tasks.pop_front();
    if (task.work) {
      --pending_work_;
      counts_.late_tasks += task.number < work_issued_;
    }
    if (task.run) {
      // Of threads that libtorch has not made, too: the number of threads changes the order of sums.
      static thread_local const bool has_threads_set = (at::init_num_threads(), true);
      (void)has_threads_set;
      const CleanState clean;
      try {
        task.run();
      } catch (const std::exception& error) {
        if (error_.empty()) error_ = error.what();
      }
    }
    ++queues_[stream].executed;
    for (const std::uint64_t value : {static_cast<std::uint64_t>(stream), work_issued_})
      order_ = (order_ ^ value) * 1099511628211ull;
    std::erase_if(retiring_, [this](const Retiring& retiring) {
      for (const Point& use : retiring.uses) {
        if (!done(use)) return false;
      }
      std::memset(arena_->access(retiring.address), kPoison, retiring.block.capacity);
      free_[retiring.block.stream][retiring.block.capacity].push_back(retiring.address);
      return true;
    });
  }
  /// Few different capacities, so that blocks are used again by other tensors.
  static std::size_t rounded(std::size_t nbytes) {
    std::size_t step = kAlignment;
    while (step * 8 < nbytes) step *= 2;
    return (nbytes + step - 1) / step * step;
  }

  static inline thread_local CurrentStream current_;

  std::recursive_mutex mutex_;
  pid_t owner_ = -1;
  std::optional<Arena> arena_;
  Options options_;
  Random random_{0};
  std::uint64_t run_at_issue_once_in_ = 0, run_other_once_in_ = 0;
  std::deque<Queue> queues_;
  std::uint64_t epoch_ = 0, work_issued_ = 0, order_ = 0;
  std::size_t pending_work_ = 0;
  int handed_out_ = 0, pooled_ = 0;
  std::vector<int> pool_;
  std::string error_;
  Counts counts_;
  std::size_t used_ = 0;
  std::unordered_map<const char*, Block> blocks_;
  std::map<int, std::map<std::size_t, std::vector<char*>>> free_;  // by stream and capacity
  std::map<std::size_t, std::vector<char*>> unused_;               // no stream uses them
  std::vector<Retiring> retiring_;
};

/// Never destroyed: tensors may outlive everything else.
inline Device& the_device() {
  static auto& device = *new Device;
  return device;
}

/// The device, and its lock.
class Locked {
 public:
  Locked() : lock_(the_device().mutex()) {}
  Device* operator->() const { return &the_device(); }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

// Memory as libtorch asks for it.

inline void free_memory(void* address) { Locked()->free(static_cast<char*>(address)); }

class SimAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t nbytes) override {
    if (nbytes == 0) return {nullptr, nullptr, &free_memory, kDevice};
    char* const address = Locked()->allocate(nbytes);
    return {address, address, &free_memory, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    if (nbytes == 0) return;
    const Locked device;
    device->add_work([to = device->arena().access(to), from = device->arena().access(from), nbytes] {
      std::memmove(to, from, nbytes);
    });
  }
  bool initialized() override { return the_device().started(); }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get() != nullptr) Locked()->record_use(data.get_context(), static_cast<int>(stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override {
    const Locked device;
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes, &stats.requested_bytes}) {
      bytes->front().current = device->counts().live_nbytes;
      bytes->front().peak = device->counts().peak_nbytes;
    }
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override {
    const Locked device;
    device->counts().peak_nbytes = device->counts().live_nbytes;
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex) override {
    return {kArenaBytes - static_cast<std::size_t>(Locked()->counts().live_nbytes), kArenaBytes};
  }
};

inline SimAllocator& allocator() {
  static auto& made = *new SimAllocator;
  return made;
}

// Streams and events as libtorch asks for them.

inline c10::Stream as_stream(int number) { return c10::Stream(c10::Stream::UNSAFE, kDevice, number); }
inline int number_of(const c10::Stream& stream) { return static_cast<int>(stream.id()); }

class SimGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kSim; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device) const override { return as_stream(Locked()->current()); }
  c10::Stream getDefaultStream(c10::Device) const override { return as_stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return as_stream(Locked()->pooled_stream()); }
  c10::Stream getNewStream(c10::Device, int) const override { return as_stream(Locked()->new_stream()); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return as_stream(Locked()->exchange_current(number_of(stream)));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(number_of(stream)));
  }
  bool queryStream(const c10::Stream& stream) const override {
    const Locked device;
    if (device->idle(number_of(stream))) return true;
    device->run_some(8);
    return false;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const Locked device;
    if (!device->left_out({-1, number_of(stream)})) device->run_until({device->end_of(number_of(stream))});
  }
  void synchronizeDevice(DeviceIndex) const override {
    const Locked device;
    std::vector<Point> ends;
    for (const int stream : device->streams()) {
      if (!device->left_out({-1, stream})) ends.push_back(device->end_of(stream));
    }
    device->run_until(ends);
  }

  void record(void** event, const c10::Stream& stream, DeviceIndex, c10::EventFlag flag) const override {
    if (*event == nullptr) *event = new Event;
    auto& the_event = *static_cast<Event*>(*event);
    std::function<void()> when_passed;
    if (flag == c10::EventFlag::BACKEND_DEFAULT) {
      the_event.milliseconds = std::make_shared<double>(-1);
      when_passed = [at = the_event.milliseconds] { *at = 1e3 * zero::base::seconds_now(); };
    }
    the_event.point = Locked()->add_mark(number_of(stream), std::move(when_passed));
  }
  double elapsedTime(void* from, void* to, DeviceIndex) const override {
    const Locked device;
    const auto time_of = [&](const void* event) {
      const auto* const one = static_cast<const Event*>(event);
      TORCH_CHECK(one && one->milliseconds && device->done(one->point), "simulated device: an event without its time");
      return *one->milliseconds;
    };
    return time_of(to) - time_of(from);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) Locked()->add_wait(number_of(stream), static_cast<Event*>(event)->point);
  }
  bool queryEvent(void* event) const override {
    const Locked device;
    if (event == nullptr || device->done(static_cast<Event*>(event)->point)) return true;
    device->run_some(8);
    return false;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const Locked device;
    const Point point = static_cast<Event*>(event)->point;
    if (!device->left_out({-1, point.stream})) device->run_until({point});
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator().recordStream(data, stream);
  }
};

/// Random numbers of a CPU generator, under the name of the device.
class SimGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimGenerator(at::Generator inner = at::detail::createCPUGenerator())
      : GeneratorImpl(kDevice, kKeys), inner_(std::move(inner)) {}
  void set_current_seed(std::uint64_t seed) override { inner_.set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { inner_.set_offset(offset); }
  std::uint64_t get_offset() const override { return inner_.get_offset(); }
  std::uint64_t current_seed() const override { return inner_.current_seed(); }
  std::uint64_t seed() override { return inner_.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner_.unsafeGetGeneratorImpl()->get_state();
  }
  static c10::DeviceType device_type() { return kSim; }
  at::Generator& inner() { return inner_; }

 private:
  SimGenerator* clone_impl() const override { return new SimGenerator(inner_.clone()); }
  at::Generator inner_;
};

inline const at::Generator& default_generator() {
  static const auto& made = *new at::Generator(c10::make_intrusive<SimGenerator>());
  return made;
}

inline void resize_storage(c10::StorageImpl* storage, std::size_t nbytes) {
  c10::DataPtr data = allocator().allocate(nbytes);
  if (const std::size_t kept = std::min(nbytes, storage->nbytes()); kept > 0)
    allocator().copy_data(data.get(), storage->data(), kept);
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(nbytes);
}

struct SimHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(DeviceIndex) const override {
    return at::Generator(c10::make_intrusive<SimGenerator>());
  }
  bool isPinnedPtr(const void* data) const override { return !Locked()->arena().has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t nbytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), nbytes);
  }
};

}  // namespace zero::testing::simulated
