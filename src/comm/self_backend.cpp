// The group of one: collectives are local copies, done when post() returns.
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "comm/backend.h"
#include "comm/copy.h"
#include "comm/process.h"
#include "comm/transfers.h"

namespace zero::comm {
namespace {

constexpr std::size_t kRecordedCalls = 16;

/// A call that ends where it begins.
class LoggedScope {
 public:
  LoggedScope(const Backend& backend, CollectiveKind kind, const ParcelTable& table, int parcel)
      : log_(backend.call_log()) {
    if (!log_) return;
    ticket_ = log_->begin(kind, static_cast<std::int64_t>(table.nbytes(parcel)),
                          table.parcels[static_cast<std::size_t>(parcel)].label, kind == CollectiveKind::kAllGather,
                          base::monotonic_ns());
  }
  ~LoggedScope() {
    if (log_) log_->end(ticket_, 0);
  }
  LoggedScope(const LoggedScope&) = delete;
  LoggedScope& operator=(const LoggedScope&) = delete;

 private:
  const std::shared_ptr<CallLog> log_;
  CallLog::Ticket ticket_;
};

/// A call of a group of one is complete once it has been started.
class SelfWork final : public WorkState {
 public:
  SelfWork(const Call& call, std::shared_ptr<BackendLock> lock) : WorkState(std::move(lock)), call_(call) {}
  bool test() override {
    ZERO_CHECK(complete(), "deferred call never started");
    return true;
  }
  void wait() override { test(); }
  bool wait_for(std::chrono::milliseconds) override { return test(); }
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
        if (void* const out = static_cast<std::byte*>(call.out) + offset_nbytes(call); nbytes > 0 && call.in != out) {
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

class SelfBoard final : public ExchangeBoard {
 public:
  SelfBoard(std::shared_ptr<Backend> backend, std::shared_ptr<const ParcelTable> table, BoardSink sink)
      : backend_(std::move(backend)), table_(std::move(table)), sink_(std::move(sink)), posts_(table_->size()) {}

  Work post(int parcel, const void* in) override {
    table_->check("ExchangeBoard::post", parcel, in);
    backend_->throw_if_failed();
    ++posts_[static_cast<std::size_t>(parcel)];
    count_exchange(*backend_, *table_, parcel);
    const LoggedScope logged(*backend_, CollectiveKind::kReduceScatter, *table_, parcel);
    sink_(parcel, {&in, 1});
    return Work();
  }

  std::int64_t posts(int parcel) const override {
    table_->check("ExchangeBoard::posts", parcel, this);
    return posts_[static_cast<std::size_t>(parcel)];
  }

 private:
  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<const ParcelTable> table_;
  const BoardSink sink_;
  std::vector<std::int64_t> posts_;
};

class SelfWindow final : public ShardWindow {
 public:
  SelfWindow(std::shared_ptr<Backend> backend, std::shared_ptr<const ParcelTable> table,
             std::span<const void* const> mine)
      : backend_(std::move(backend)), table_(std::move(table)), mine_(mine.begin(), mine.end()) {}

  Work fetch(int parcel, void* out, std::string_view) override {
    table_->check("ShardWindow::fetch", parcel, out);
    backend_->throw_if_failed();
    count_fetch(*backend_, *table_, parcel);
    const LoggedScope logged(*backend_, CollectiveKind::kAllGather, *table_, parcel);
    const void* const in = mine_[static_cast<std::size_t>(parcel)];
    if (out != in) copy_bytes(out, in, table_->nbytes(parcel));
    return Work();
  }

  void publish() override {}
  bool one_sided() const override { return true; }

 private:
  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<const ParcelTable> table_;
  const std::vector<const void*> mine_;
};

class SelfBackend final : public Backend {
 public:
  SelfBackend() : Backend(0, 1), registry_(std::make_shared<RegionRegistry>(0, nullptr)) { set_host_ranks({0}); }

  std::string_view name() const override { return "self"; }

  std::shared_ptr<WorkState> post(const Call& call) override {
    throw_if_failed();
    CallRecord& record = recent_[next_sequence_ % kRecordedCalls];
    record = make_record(call, next_sequence_++);
    record.entered_ns = base::monotonic_ns();
    if (call.deferred) return std::make_shared<SelfWork>(call, lock());
    SelfWork::run(call);
    record.left_ns = base::monotonic_ns();
    return nullptr;
  }

  std::shared_ptr<Backend> subgroup(std::span<const int>) override { return make_self_backend(); }
  bool progress(int) override { return false; }
  pid_t pid_of(int) const override { return this_process().pid; }
  bool under_way() const override { return false; }
  bool failed() const override { return !failure_.empty(); }
  bool block_until(const std::function<bool()>& done, const std::function<Blocker()>&, const Patience&) override {
    ZERO_CHECK(done(), "nobody else is here to wait for");
    return true;
  }
  void check_peers(const std::function<Blocker()>&, std::int64_t, std::chrono::milliseconds) override {}
  void throw_if_failed() const override {
    if (!failure_.empty()) throw CommError(failure_);
  }
  std::shared_ptr<ExchangeBoard> make_board(std::shared_ptr<const ParcelTable> parcels, BoardSink sink,
                                            HostSums) override {
    return std::make_shared<SelfBoard>(shared_from_this(), std::move(parcels), std::move(sink));
  }
  std::shared_ptr<ShardWindow> make_window(std::shared_ptr<const ParcelTable> parcels,
                                           std::span<const void* const> mine) override {
    return std::make_shared<SelfWindow>(shared_from_this(), std::move(parcels), mine);
  }

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
      text += fmt::format("rank 0: {}\n", describe_with_times(recent_[s % kRecordedCalls], base::monotonic_ns()));
    }
    return text;
  }

 protected:
  const std::shared_ptr<RegionRegistry>& registry() const override { return registry_; }

 private:
  std::shared_ptr<RegionRegistry> registry_;
  std::string failure_;
  std::uint64_t next_sequence_ = 0;
  CallRecord recent_[kRecordedCalls];
};

}  // namespace

std::shared_ptr<Backend> make_self_backend() { return std::make_shared<SelfBackend>(); }

}  // namespace zero::comm
