#include "device/nccl_transport.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "comm/backend.h"
#include "device/device_stream.h"
#include "device/mutual_wait.h"
#include "device/nccl.h"
#include "zero/errors.h"

namespace zero::device {
namespace {

/// A communicator. NCCL's calls end by themselves on the device, or when it is aborted.
class Communicator {
 public:
  /// *Collective.* Throws CommError on every rank.
  Communicator(Group group, const Nccl& nccl, std::string label)
      : group_(std::move(group)), nccl_(nccl), label_(std::move(label)) {
    // With the problem of rank 0, if it has one.
    struct Start {
      NcclId id;
      int code = 0;
    } start;
    if (group_.rank() == 0) start.code = nccl_.get_unique_id(&start.id);
    group_.broadcast(&start, sizeof(start), DType::kByte, 0, {.label = label_}).wait();
    std::int64_t code = start.code != 0 ? start.code : nccl_.init_rank(&made_, group_.size(), start.id, group_.rank());
    const std::int64_t mine = code;
    group_.all_reduce(&code, 1, DType::kInt64, ReduceOp::kMax, {.label = label_}).wait();
    if (code == 0) return;
    break_off();
    throw CommError(fmt::format(
        "NCCL made no communicator for the {} of {} ranks: {} on {}. It needs a GPU of its own for each rank; its own "
        "words come with NCCL_DEBUG=WARN. With zero_optimization.offload_optimizer.device 'cpu' ranks do without it",
        label_, group_.size(), nccl_.get_error_string(static_cast<int>(code)),
        mine == code ? fmt::format("this rank, {}", group_.rank()) : "another rank"));
  }
  ~Communicator() {
    if (::getpid() != process_) return;  // it is the parent's
    const std::lock_guard lock(mutex_);
    if (made_) nccl_.destroy(std::exchange(made_, nullptr));
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Gives NCCL the calls that `issue` makes, at once. Throws CommError.
  template <class Issue>
  void issue(std::string_view what, const Issue& issue) {
    const std::lock_guard lock(mutex_);
    if (!made_) throw CommError(fmt::format("{}: NCCL was ended by an error before", what));
    int code = nccl_.group_start();
    if (code == 0) code = issue(nccl_, made_);
    const int end = nccl_.group_end();
    if (code == 0) code = end;
    if (code == 0 || code == Nccl::kInProgress) return;
    throw CommError(
        fmt::format("{}: NCCL: {} (its own words come with NCCL_DEBUG=WARN)", what, nccl_.get_error_string(code)));
  }

  /// What has gone wrong in the meantime, if anything has. Any thread.
  std::optional<std::string> failure() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    int code = 0;
    if (!lock || !made_ || nccl_.get_async_error(made_, &code) != 0 || code == 0 || code == Nccl::kInProgress)
      return {};
    return fmt::format("NCCL, which moves the {}: {}", label_, nccl_.get_error_string(code));
  }
  /// What the device waits for in it ends. Any thread; again does nothing.
  void break_off() noexcept {
    const std::lock_guard lock(mutex_);
    if (made_) nccl_.abort(std::exchange(made_, nullptr));
  }

 private:
  Group group_;
  const Nccl& nccl_;
  const std::string label_;
  const int process_ = ::getpid();
  std::mutex mutex_;
  NcclCommunicator made_ = nullptr;
};

/// Who has calls in an order.
class Issuer {
 public:
  /// All ranks have told of it: begins to move it.
  virtual void issue(int parcel) = 0;

 protected:
  ~Issuer() = default;
};

/// Calls that all ranks give to NCCL in the same order: that of rank 0's posts.
class Order {
 public:
  Order(const Group& group, c10::Device device, const Nccl& nccl, std::string label)
      : group_(group), stream_(device), communicator_(group, nccl, std::move(label)) {
    connect();
  }

  ~Order() {
    // Of a forked child: nothing of the parent's device is touched.
    if (::getpid() != process_ && scratch_.defined()) (void)scratch_.unsafeReleaseTensorImpl();
  }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

  /// The number of this rank's next post. Only rank 0's counts.
  std::int64_t next_post() { return posted_++; }

  void told(std::int64_t number, Issuer& issuer, int parcel) {
    told_.push_back({number, &issuer, parcel});
    while (true) {
      const auto next = std::ranges::find(told_, issued_, &Told::number);
      if (next == told_.end()) return;
      const Told call = *next;
      told_.erase(next);
      ++issued_;
      call.issuer->issue(call.parcel);
    }
  }

  void forget(const Issuer& issuer) {
    std::erase_if(told_, [&](const Told& call) { return call.issuer == &issuer; });
  }

  /// Memory for slices of other ranks, of at least so many bytes: of one call at a time.
  void reserve(std::int64_t nbytes) {
    if (scratch_.defined() && scratch_.numel() >= nbytes) return;
    const at::NoGradGuard no_grad;
    const c10::Stream& stream = stream_.stream();
    scratch_ = at::empty({nbytes}, at::TensorOptions().dtype(at::kByte).device(stream.device())).zero_();
    stream_.wait_for_caller();  // whose memory it was before
    const c10::StreamGuard here(stream);
    note_use(scratch_);
  }
  std::byte* scratch() const { return static_cast<std::byte*>(scratch_.mutable_data_ptr()); }

  const Group& group() const { return group_; }
  DeviceStream& stream() { return stream_; }
  void* native_stream() const {
    return c10::impl::VirtualGuardImpl(stream_.stream().device_type()).getStreamNativeHandle(stream_.stream());
  }
  Communicator& communicator() { return communicator_; }

 private:
  struct Told {
    std::int64_t number;
    Issuer* issuer;
    int parcel;
  };

  /// Each with each, and all: NCCL connects ranks when they first talk, and the host waits for both. *Collective.*
  void connect() {
    const auto ranks = static_cast<std::int64_t>(group_.size());
    reserve(2 * ranks);
    communicator_.issue("connecting the ranks", [&](const Nccl& nccl, NcclCommunicator made) {
      int code = 0;
      for (int rank = 0; rank < group_.size() && code == 0; ++rank) {
        if (rank == group_.rank()) continue;
        code = nccl.send(scratch() + rank, 1, Nccl::kBytes, rank, made, native_stream());
        if (code == 0) code = nccl.recv(scratch() + ranks + rank, 1, Nccl::kBytes, rank, made, native_stream());
      }
      return code;
    });
    communicator_.issue("connecting the ranks", [&](const Nccl& nccl, NcclCommunicator made) {
      const int code = nccl.all_gather(scratch() + group_.rank(), scratch(), 1, Nccl::kBytes, made, native_stream());
      return code != 0 ? code : nccl.broadcast(scratch(), scratch(), 1, Nccl::kBytes, 0, made, native_stream());
    });
  }

  Group group_;
  DeviceStream stream_;
  Communicator communicator_;
  at::Tensor scratch_;
  const int process_ = ::getpid();
  std::vector<Told> told_;   ///< before their turn
  std::int64_t posted_ = 0;  ///< by this rank
  std::int64_t issued_ = 0;  ///< the next number
};

/// The communicators and what watches over them.
class Connections {
 public:
  Connections(Group group_of_ranks, c10::Device of, const Nccl& nccl)
      : group(std::move(group_of_ranks)),
        device(of),
        gradients(group, of, nccl, "gradients"),
        parameters(group, of, nccl, "parameters"),
        waits_(std::in_place, group),
        watch_(std::make_unique<std::jthread>([this](const std::stop_token& stop) { watch(stop); })) {}
  ~Connections() {
    waits_.reset();  // while the watch goes on: it may have to wait
    if (is_forked_child())
      (void)watch_.release();  // which does not run here
    else if (has_failed())
      break_off();
  }
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  bool is_forked_child() const { return ::getpid() != process_; }

  /// Whatever the device has of NCCL ends, and has moved nothing that counts. Any thread; again does nothing.
  void break_off() noexcept {
    ended_ = true;
    // At once: each of them may wait for all that its device does.
    std::optional<std::jthread> beside;
    try {
      beside.emplace([this] { gradients.communicator().break_off(); });
    } catch (const std::system_error&) {
      gradients.communicator().break_off();
    }
    parameters.communicator().break_off();
  }
  MutualWait& waits() { return *waits_; }
  bool has_failed() const { return comm::GroupAccess::backend(group)->failed(); }
  /// Throws CommError once it was broken off.
  void throw_if_ended() const {
    if (const auto reported = failure()) throw CommError(*reported);
    if (!ended_) return;
    comm::Backend& backend = *comm::GroupAccess::backend(group);
    const comm::BackendGuard guard(*backend.lock());
    backend.throw_if_failed();
    throw CommError("NCCL was ended while it moved gradients or parameters");
  }
  /// What NCCL has reported, if anything: nothing moves any more.
  std::optional<std::string> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  Group group;
  const c10::Device device;
  Order gradients, parameters;

 private:
  /// A host that waits for its device looks at nothing else: ends what the device waits for when the group has failed.
  void watch(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, std::chrono::milliseconds(200), [] { return false; })) {
      if (stop.stop_requested()) return;
      for (Order* order : {&gradients, &parameters}) {
        auto failure = order->communicator().failure();
        if (!failure) continue;
        const std::lock_guard ours(mutex_);
        failure_ = std::move(failure);  // the ranks learn of it from the thread that uses their group
      }
      if (!failure() && !has_failed()) continue;  // not of the group itself, whose lock others may hold
      break_off();
      return;
    }
  }

  std::optional<MutualWait> waits_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  std::optional<std::string> failure_;
  const int process_ = ::getpid();
  std::unique_ptr<std::jthread> watch_;  ///< last: ends first
};

/// Posts that are told to all ranks, then given to NCCL.
class Posts : public Issuer {
 public:
  Work enter(int parcel) {
    Post& post = post_of(parcel);
    post.work.begin();
    post.issued = false;
    post.ready.record(order_.stream().caller());
    ++post.count;
    const std::int64_t number = order_.next_post();
    std::int64_t* const messages = messages_of(parcel);
    std::fill_n(messages, group().size(), number);
    post.told = host_->post(parcel, messages);
    return Work(std::shared_ptr<comm::WorkState>(shared(), &post.work));
  }

  Posts(const Posts&) = delete;
  Posts& operator=(const Posts&) = delete;

 protected:
  Posts(std::shared_ptr<Connections> connections, Order& order) : connections_(std::move(connections)), order_(order) {}
  ~Posts() = default;
  /// Before anything of it goes: from here on nothing is told.
  void close() {
    host_.reset();
    if (connections_->is_forked_child()) return;
    {
      const comm::BackendGuard guard(*comm::GroupAccess::backend(group())->lock());
      order_.forget(*this);
    }
    const auto is_over = [](const Post& post) {
      return post.count == 0 || (post.work.complete() && (!post.issued || post.done.query()));
    };
    // Of what is given up other ranks may never do their part.
    if (connections_->has_failed() || !std::ranges::all_of(posts_, is_over)) break_off();
  }
  /// Memory that NCCL and what follows it use may go afterwards.
  void break_off() noexcept {
    connections_->break_off();
    try {
      order_.stream().finish();
    } catch (const std::exception&) {  // a device that has failed
    }
  }

  /// *Collective.* Before anything else.
  void open(std::string label, std::vector<comm::Parcel> parcels) {
    parcels_ = std::move(parcels);
    const auto ranks = static_cast<std::size_t>(group().size());
    messages_ = connections_->group.allocate(std::max<std::size_t>(parcels_.size(), 1) * ranks * sizeof(std::int64_t));
    std::vector<comm::Parcel> told;
    for (const comm::Parcel& parcel : parcels_) {
      posts_.emplace_back(*this, static_cast<int>(posts_.size()), order_.stream().make_event(),
                          order_.stream().make_event());
      told.push_back({parcel.label, std::vector<std::int64_t>(ranks, 1)});
    }
    host_ = comm::make_exchange_board(connections_->group, std::move(label), std::move(told), DType::kInt64,
                                      [this](int parcel, std::span<const void* const> numbers) {
                                        std::int64_t number = 0;
                                        std::memcpy(&number, numbers[0], sizeof(number));
                                        order_.told(number, *this, parcel);
                                      });
  }

  /// Moves a parcel, in the stream of the order, which is the current one.
  virtual void move(int parcel) = 0;
  virtual std::shared_ptr<Posts> shared() = 0;

  const Group& group() const { return order_.group(); }
  Order& order() { return order_; }
  comm::ExchangeBoard& host() const { return *host_; }
  const comm::Parcel& parcel_of(int parcel) const { return parcels_[static_cast<std::size_t>(parcel)]; }
  std::int64_t count(int parcel) const { return posts_[static_cast<std::size_t>(parcel)].count; }
  Work& told(int parcel) { return post_of(parcel).told; }
  /// Once told: at most for `limit`, and not for what is not given to NCCL yet, whose turn others may have to make.
  bool wait_if_issued(int parcel, std::chrono::milliseconds limit) {
    Post& post = post_of(parcel);
    return post.issued ? post.work.wait_for(limit) : post.work.test();
  }
  void abandon() { abandoned_ = true; }

 private:
  class Posted final : public comm::WorkState {
   public:
    Posted(Posts& posts, int parcel)
        : WorkState(std::make_shared<comm::BackendLock>()), posts_(posts), parcel_(parcel) {}

    void begin() { start_over(); }
    bool test() override {
      if (complete()) return true;
      if (!told().test() || !is_over()) return false;
      set_complete();
      return true;
    }
    void wait() override {
      if (complete()) return;
      posts_.wait_until_told(parcel_);
      await(std::numeric_limits<std::int64_t>::max());
    }
    bool wait_for(std::chrono::milliseconds limit) override {
      if (complete()) return true;
      const std::int64_t begin = base::monotonic_ns(), limit_ns = std::chrono::nanoseconds(limit).count();
      return told().wait_for(limit) && await(std::max<std::int64_t>(limit_ns - (base::monotonic_ns() - begin), 0));
    }
    void start() override {}
    void chain(std::shared_ptr<WorkState>) override { ZERO_CHECK(false, "works of a device are not chained"); }

   private:
    Work& told() { return posts_.told(parcel_); }
    bool is_over() const {
      const Post& post = posts_.post_of(parcel_);
      const bool over = post.issued ? post.done.query() : posts_.abandoned_;
      posts_.connections_->throw_if_ended();  // after it: what was broken off is over, too
      return over;
    }
    /// Others may need this rank to go on: it does what the group has for it, and does not sleep in the device.
    bool await(std::int64_t limit_ns) {
      comm::Backend& backend = *comm::GroupAccess::backend(posts_.group());
      const auto blocker = [this] {
        comm::Blocker who{"NCCL's part of " + posts_.parcel_of(parcel_).label, "is needed for it", {}};
        for (int rank = 0; rank < posts_.group().size(); ++rank) {
          if (rank != posts_.group().rank()) who.ranks.push_back(rank);
        }
        return who;
      };
      // Of the device no rank tells this one.
      constexpr std::int64_t kGlanceNs = 100'000;
      const comm::BackendGuard guard(*backend.lock());
      const std::int64_t begin = base::monotonic_ns();
      comm::Patience patience{.timeout = posts_.group().timeout(), .for_device = true};
      try {
        do {
          patience.waited_ns = base::monotonic_ns() - begin;
          if (patience.waited_ns > limit_ns) return false;
          patience.limit_ns = kGlanceNs;
        } while (!backend.block_until([this] { return is_over(); }, blocker, patience));
      } catch (const CommError& error) {
        backend.abort(error.what());  // the others, if it is NCCL's
        throw;
      }
      set_complete();
      return true;
    }

    Posts& posts_;
    const int parcel_;
  };

  struct Post {
    Post(Posts& posts, int parcel, c10::Event first, c10::Event last)
        : work(posts, parcel), ready(std::move(first)), done(std::move(last)) {}
    Posted work;       ///< of its last post
    c10::Event ready;  ///< over when the device has written what is sent, and read what will be written
    c10::Event done;   ///< over when it has moved
    Work told;         ///< complete when all ranks know of it
    std::atomic<bool> issued{false};
    std::int64_t count = 0;
  };

  void issue(int parcel) final {
    Post& post = post_of(parcel);
    const c10::StreamGuard here(order_.stream().stream());  // and its device is this thread's
    order_.stream().wait_for(post.ready);
    move(parcel);
    order_.stream().mark(post.done);
    post.issued = true;
  }

  /// Until all ranks know of the last post of a parcel. A fetch that others never make would last until the time-out.
  /// Throws CommError.
  void wait_until_told(int parcel) {
    if (connections_->waits().wait(host(), parcel, told(parcel))) return;
    const std::string reason = fmt::format(
        "rank {} waits for {}, which NCCL moves when all ranks ask for it, and the others wait for something else: "
        "ranks use different parameters, or the same in different orders. Make a unit of what is used by some ranks "
        "only (zero_optimization.leaf_module), use stage 2, or keep what is sharded in host memory "
        "(zero_optimization.offload_optimizer.device 'cpu')",
        group().rank(), parcel_of(parcel).label);
    comm::GroupAccess::backend(group())->abort(reason);
    throw CommError(reason);
  }

  Post& post_of(int parcel) { return posts_[static_cast<std::size_t>(parcel)]; }
  std::int64_t* messages_of(int parcel) const {
    return static_cast<std::int64_t*>(messages_.data()) + static_cast<std::ptrdiff_t>(parcel) * group().size();
  }

  const std::shared_ptr<Connections> connections_;
  Order& order_;
  SharedMemory messages_;   ///< a number for each rank, by parcel
  std::deque<Post> posts_;  ///< by parcel
  std::vector<comm::Parcel> parcels_;
  bool abandoned_ = false;
  std::shared_ptr<comm::ExchangeBoard> host_;
};

/// The calls that give each rank all ranks' slices.
int gather_slices(const Nccl& nccl, NcclCommunicator made, const void* mine, std::byte* out,
                  std::span<const std::int64_t> counts, std::int64_t nbytes, void* stream) {
  if (*std::ranges::max_element(counts) == 0) return 0;
  const auto size_of = [&](std::size_t rank) { return static_cast<std::size_t>(counts[rank] * nbytes); };
  if (std::ranges::all_of(counts, [&](std::int64_t count) { return count == counts.front(); }))
    return nccl.all_gather(mine, out, size_of(0), Nccl::kBytes, made, stream);
  int code = 0;
  for (std::size_t rank = 0; rank < counts.size() && code == 0; ++rank) {
    if (counts[rank] > 0)
      code = nccl.broadcast(mine, out, size_of(rank), Nccl::kBytes, static_cast<int>(rank), made, stream);
    out += size_of(rank);
  }
  return code;
}

class NcclBoard final : public comm::ExchangeBoard, public Posts, public std::enable_shared_from_this<NcclBoard> {
 public:
  NcclBoard(std::shared_ptr<Connections> connections, Order& order, std::string label,
            std::vector<comm::Parcel> parcels, DType dtype, Sink sink)
      : Posts(std::move(connections), order),
        sink_(std::move(sink)),
        nbytes_(static_cast<std::int64_t>(element_nbytes(dtype))),
        in_(parcels.size()),
        slices_(static_cast<std::size_t>(group().size())) {
    std::int64_t most = 1;
    for (const comm::Parcel& parcel : parcels) most = std::max(most, (group().size() - 1) * mine_of(parcel.counts));
    this->order().reserve(most);
    open(std::move(label), std::move(parcels));
  }
  ~NcclBoard() override { close(); }

  Work post(int parcel, const void* in) override {
    in_[static_cast<std::size_t>(parcel)] = static_cast<const std::byte*>(in);
    return enter(parcel);
  }
  bool wait_while_others_run(int parcel, Work&, std::chrono::milliseconds limit) override {
    const std::int64_t begin = base::monotonic_ns();
    if (!host().wait_while_others_run(parcel, told(parcel), limit)) return false;
    const std::chrono::milliseconds waited((base::monotonic_ns() - begin) / base::kNanosPerMilli);
    return wait_if_issued(parcel, std::max(limit - waited, std::chrono::milliseconds(0)));
  }
  bool sees_waits() const override { return host().sees_waits(); }
  std::int64_t posts(int parcel) const override { return count(parcel); }
  bool abandon() override {
    const bool knows = host().abandon();
    if (knows) Posts::abandon();
    return knows;
  }

 private:
  std::int64_t mine_of(const std::vector<std::int64_t>& counts) const {
    return counts[static_cast<std::size_t>(group().rank())] * nbytes_;
  }
  std::shared_ptr<Posts> shared() override { return shared_from_this(); }

  void move(int parcel) override {
    const auto& counts = parcel_of(parcel).counts;
    const std::byte* theirs = in_[static_cast<std::size_t>(parcel)];
    const std::int64_t mine = mine_of(counts);
    std::byte* free = order().scratch();
    order().communicator().issue("exchanging gradients", [&](const Nccl& nccl, NcclCommunicator made) {
      void* const stream = order().native_stream();
      int code = 0;
      for (std::size_t rank = 0; rank < counts.size() && code == 0; ++rank) {
        const std::byte* const slice = theirs;
        theirs += counts[rank] * nbytes_;
        slices_[rank] = slice;
        if (static_cast<int>(rank) == group().rank()) continue;
        slices_[rank] = free;
        if (counts[rank] > 0) {
          code = nccl.send(slice, static_cast<std::size_t>(counts[rank] * nbytes_), Nccl::kBytes,
                           static_cast<int>(rank), made, stream);
        }
        if (mine > 0 && code == 0) {
          code = nccl.recv(free, static_cast<std::size_t>(mine), Nccl::kBytes, static_cast<int>(rank), made, stream);
        }
        free += mine;
      }
      return code;
    });
    sink_(parcel, slices_);
  }

  const Sink sink_;
  const std::int64_t nbytes_;         ///< of an element
  std::vector<const std::byte*> in_;  ///< by parcel
  std::vector<const void*> slices_;   ///< by rank; reused
};

class NcclWindow final : public comm::ShardWindow, public Posts, public std::enable_shared_from_this<NcclWindow> {
 public:
  NcclWindow(std::shared_ptr<Connections> connections, Order& order, const std::string& label,
             std::vector<comm::Parcel> parcels, DType dtype, std::vector<const void*> mine)
      : Posts(std::move(connections), order),
        nbytes_(static_cast<std::int64_t>(element_nbytes(dtype))),
        mine_(std::move(mine)),
        out_(parcels.size()),
        published_(order.stream().make_event()) {
    open("fetches of " + label, std::move(parcels));
  }
  ~NcclWindow() override { close(); }

  Work fetch(int parcel, void* out, std::string_view) override {
    out_[static_cast<std::size_t>(parcel)] = static_cast<std::byte*>(out);
    return enter(parcel);
  }
  void publish() override { published_.record(order().stream().caller()); }
  bool one_sided() const override { return false; }

 private:
  std::shared_ptr<Posts> shared() override { return shared_from_this(); }

  void move(int parcel) override {
    const auto p = static_cast<std::size_t>(parcel);
    order().stream().wait_for(published_);
    order().communicator().issue("fetching parameters", [&](const Nccl& nccl, NcclCommunicator made) {
      return gather_slices(nccl, made, mine_[p], out_[p], parcel_of(parcel).counts, nbytes_, order().native_stream());
    });
  }

  const std::int64_t nbytes_;            ///< of an element
  const std::vector<const void*> mine_;  ///< by parcel
  std::vector<std::byte*> out_;          ///< by parcel
  c10::Event published_;                 ///< over when the shards have their latest values
};

/// The calls that all ranks make at the same place of the program, and wait for.
class NcclCalls final : public Posts, public std::enable_shared_from_this<NcclCalls> {
 public:
  NcclCalls(std::shared_ptr<Connections> connections, Order& order) : Posts(std::move(connections), order) {
    open("calls", {{"shards of all ranks", {}}});
  }
  ~NcclCalls() { close(); }
  using Call = std::function<int(const Nccl&, NcclCommunicator, void* stream)>;
  void run(Call call) {
    call_ = std::move(call);
    try {
      enter(0).wait();
    } catch (...) {
      break_off();  // before the caller's memory goes
      throw;
    }
  }

 private:
  std::shared_ptr<Posts> shared() override { return shared_from_this(); }
  void move(int) override {
    order().communicator().issue("shards of all ranks", [&](const Nccl& nccl, NcclCommunicator made) {
      return call_(nccl, made, order().native_stream());
    });
  }

  Call call_;
};

class NcclTransport final : public comm::ShardTransport {
 public:
  NcclTransport(Group group, c10::Device device, const Nccl& nccl)
      : connections_(std::make_shared<Connections>(std::move(group), device, nccl)),
        calls_(std::make_shared<NcclCalls>(connections_, connections_->parameters)),
        exceptions_at_start_(std::uncaught_exceptions()) {}

  ~NcclTransport() override {
    if (connections_->is_forked_child()) return;
    if (std::uncaught_exceptions() > exceptions_at_start_ || connections_->has_failed()) connections_->break_off();
  }

  std::shared_ptr<comm::ExchangeBoard> make_exchange_board(std::string label, std::vector<comm::Parcel> parcels,
                                                           DType dtype, comm::ExchangeBoard::Sink sink) override {
    return std::make_shared<NcclBoard>(connections_, connections_->gradients, std::move(label), std::move(parcels),
                                       dtype, std::move(sink));
  }
  std::shared_ptr<comm::ShardWindow> make_shard_window(std::string label, std::vector<comm::Parcel> parcels,
                                                       DType dtype, std::vector<const void*> mine) override {
    return std::make_shared<NcclWindow>(connections_, connections_->parameters, label, std::move(parcels), dtype,
                                        std::move(mine));
  }

  Work all_gather(const void* in, void* out, std::span<const std::int64_t> counts, DType dtype,
                  const CollectiveOptions&) override {
    const auto nbytes = static_cast<std::int64_t>(element_nbytes(dtype));
    calls_->run([&](const Nccl& nccl, NcclCommunicator made, void* stream) {
      return gather_slices(nccl, made, in, static_cast<std::byte*>(out), counts, nbytes, stream);
    });
    return {};
  }
  Work broadcast(void* inout, std::int64_t numel, DType dtype, int root, const CollectiveOptions&) override {
    const auto nbytes = static_cast<std::size_t>(numel) * element_nbytes(dtype);
    if (nbytes == 0) return {};
    calls_->run([&](const Nccl& nccl, NcclCommunicator made, void* stream) {
      return nccl.broadcast(inout, inout, nbytes, Nccl::kBytes, root, made, stream);
    });
    return {};
  }

  std::shared_ptr<void> allocate(std::size_t nbytes) override {
    const at::NoGradGuard no_grad;
    const auto options = at::TensorOptions().dtype(at::kByte).device(connections_->device);
    auto memory = std::make_shared<at::Tensor>(at::empty({static_cast<std::int64_t>(nbytes)}, options).zero_());
    void* const data = memory->mutable_data_ptr();
    return {std::move(memory), data};
  }

 private:
  const std::shared_ptr<Connections> connections_;
  const std::shared_ptr<NcclCalls> calls_;
  const int exceptions_at_start_;
};

}  // namespace

std::shared_ptr<comm::ShardTransport> make_nccl_transport(Group group, c10::Device device) {
  // Else it connects ranks at the first call of a kind, where the host waits for the others without a time-out.
  constexpr int kUnlessGiven = 0;
  ::setenv("NCCL_RUNTIME_CONNECT", "0", kUnlessGiven);
  const Nccl* const nccl = nccl_of(device.type());
  ZERO_CHECK(nccl, "no NCCL for {}", device.str());
  return std::make_shared<NcclTransport>(std::move(group), device, *nccl);
}

}  // namespace zero::device
