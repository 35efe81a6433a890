// The group of one: collectives are local copies, done when post() returns.
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "comm/backend.h"
#include "comm/process.h"

namespace zero::comm {
namespace {

constexpr std::size_t kRecordedCalls = 16;

/// A call of a group of one is complete once it has been started.
class SelfWork final : public WorkState {
 public:
  SelfWork(const Call& call, std::shared_ptr<Turns> turns) : WorkState(std::move(turns)), call_(call) {}
  bool test() override {
    ZERO_CHECK(complete(), "deferred call never started");
    return true;
  }
  void wait() override { test(); }
  void chain(std::shared_ptr<WorkState> next) override { next_ = std::move(next); }
  void start() override {
    run(call_);
    set_complete();
    if (next_) next_->start();
  }

  static void run(const Call& call) {
    const std::size_t nbytes = static_cast<std::size_t>(call.numel) * element_nbytes(call.dtype);
    switch (call.transport) {
      case Transport::kGather:
        if (void* const out = static_cast<std::byte*>(call.out) + offset_nbytes(call);
            nbytes > 0 && call.in != out) {
          std::memcpy(out, call.in, nbytes);
        }
        break;
      case Transport::kScatter:
      case Transport::kView:
        run_finish_step(call.reduction, call.consume, call.dtype, {&call.in, 1}, call.numel);
        break;
      case Transport::kBroadcast:
      case Transport::kBarrier:
        break;
    }
  }

 private:
  static std::size_t offset_nbytes(const Call& call) {
    return call.offsets.empty() ? 0 : static_cast<std::size_t>(call.offsets[0]) * element_nbytes(call.dtype);
  }

  Call call_;
  std::shared_ptr<WorkState> next_;
};

class SelfBackend final : public Backend {
 public:
  SelfBackend() : Backend(0, 1), registry_(std::make_shared<RegionRegistry>(0, nullptr)) {
    set_host_ranks({0});
  }

  std::string_view name() const override { return "self"; }

  std::shared_ptr<WorkState> post(const Call& call) override {
    if (!failure_.empty()) throw CommError(failure_);
    CallRecord& record = recent_[next_sequence_ % kRecordedCalls];
    record = make_record(call, next_sequence_++);
    record.entered_ns = base::monotonic_ns();
    if (call.deferred) return std::make_shared<SelfWork>(call, turns());
    SelfWork::run(call);
    record.left_ns = base::monotonic_ns();
    return nullptr;
  }

  std::shared_ptr<Backend> subgroup(std::span<const int>) override { return make_self_backend(); }
  bool progress(int) override { return false; }
  bool under_way() const override { return false; }
  bool failed() const override { return !failure_.empty(); }

  SharedMemory allocate(std::size_t nbytes) override {
    return SharedMemory(Region::create(registry_, nbytes, Region::Sharing::kPrivate, "allocate"));
  }

  void abort(std::string_view reason) noexcept override {
    try {
      if (failure_.empty()) failure_ = fmt::format("rank 0 aborted the group: {}", reason);
    } catch (...) {
      // Out of memory: there is nobody else to tell.
    }
  }

  std::string flight_recorder() const override {
    std::string text;
    const std::uint64_t first = next_sequence_ > kRecordedCalls ? next_sequence_ - kRecordedCalls : 0;
    for (std::uint64_t s = first; s < next_sequence_; ++s) {
      text +=
          fmt::format("rank 0: {}\n", describe_with_times(recent_[s % kRecordedCalls], base::monotonic_ns()));
    }
    return text;
  }

 protected:
  const std::shared_ptr<RegionRegistry>& registry() const override { return registry_; }
  pid_t pid_of(int) const override { return this_process().pid; }

 private:
  std::shared_ptr<RegionRegistry> registry_;
  std::string failure_;
  std::uint64_t next_sequence_ = 0;
  CallRecord recent_[kRecordedCalls];
};

}  // namespace

std::shared_ptr<Backend> make_self_backend() { return std::make_shared<SelfBackend>(); }

}  // namespace zero::comm
