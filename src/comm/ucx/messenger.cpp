#include "comm/ucx/messenger.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "comm/ucx/library.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

// A tag, from its highest bit: number of the group, channel, source in the group, the group's own tag.
constexpr int kTagBits = 31, kSourceBits = 16, kChannelBits = 3, kContextBits = 14;
static_assert(kTagBits + kSourceBits + kChannelBits + kContextBits == 64);
static_assert(kChannels <= (1U << kChannelBits));
constexpr std::uint64_t kContexts = std::uint64_t{1} << kContextBits;
constexpr std::uint64_t kOwnBits = (std::uint64_t{1} << (kTagBits + kSourceBits)) - 1;  ///< of tag and source
/// How long the end of the last group waits for what it has sent to arrive.
constexpr std::int64_t kCloseNs = 3 * base::kNanosPerSecond;

/// A message under way.
struct Request {
  void* of_ucx = nullptr;
  bool done = false;
  ucs_status_t status = UCS_INPROGRESS;
  ucp_tag_recv_info_t info{};
};

Request* request_of(MessageHandle handle) { return reinterpret_cast<Request*>(handle); }

void on_sent(void*, ucs_status_t status, void* user_data) {
  auto* const request = static_cast<Request*>(user_data);
  request->status = status;
  request->done = true;
}

void on_received(void*, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user_data) {
  auto* const request = static_cast<Request*>(user_data);
  if (info) request->info = *info;
  request->status = status;
  request->done = true;
}

ucp_request_param_t of_host_memory(Request* request) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  parameters.user_data = request;
  parameters.memory_type = UCS_MEMORY_TYPE_HOST;
  return parameters;
}

}  // namespace

/// UCX in this process: its worker and a connection to each rank of the job.
class UcxWorker {
 public:
  UcxWorker(int rank, int size, std::unique_ptr<MeetingStore> store);
  ~UcxWorker();

  const UcxLibrary& ucx() const { return ucx_; }
  ucp_worker_h worker() const { return worker_; }
  const std::shared_ptr<BackendLock>& lock() const { return lock_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  void progress() const { ucx_.worker_progress(worker_); }
  void mark_failed() { failed_ = true; }
  /// Null: connected.
  const char* lost(int rank) const { return peers_[static_cast<std::size_t>(rank)].lost.load(); }

  std::uint64_t next_context = 0;

  MessageHandle send(int rank, std::uint64_t tag, const void* data, std::size_t nbytes);
  MessageHandle receive(std::uint64_t tag, std::uint64_t mask, void* data, std::size_t nbytes);
  void free_request(Request* request);

 private:
  Request* new_request();
  struct Peer {
    ucp_ep_h endpoint = nullptr;
    std::atomic<const char*> lost{nullptr};
  };
  void connect(MeetingStore& store);
  void close_endpoints() noexcept;

  const UcxLibrary& ucx_;
  const int rank_;
  const pid_t pid_ = ::getpid();
  const std::shared_ptr<BackendLock> lock_ = std::make_shared<BackendLock>();
  const std::unique_ptr<MeetingStore> store_;  ///< others may still read what it serves
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> free_requests_;
  bool failed_ = false;
};

UcxWorker::UcxWorker(int rank, int size, std::unique_ptr<MeetingStore> store)
    : ucx_(UcxLibrary::get()), rank_(rank), store_(std::move(store)), peers_(static_cast<std::size_t>(size)) {
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  parameters.features = UCP_FEATURE_TAG;
  parameters.estimated_num_eps = static_cast<std::size_t>(size);
  check_ucx(ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, nullptr, &context_), "ucp_init");
  ucp_worker_params_t of_worker{};
  of_worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  of_worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  check_ucx(ucx_.worker_create(context_, &of_worker, &worker_), "ucp_worker_create");
  connect(*store_);
}

void UcxWorker::connect(MeetingStore& store) {
  const auto key = [](int rank) { return fmt::format("the address of rank {}", rank); };
  ucp_address_t* mine = nullptr;
  std::size_t nbytes = 0;
  check_ucx(ucx_.worker_get_address(worker_, &mine, &nbytes), "ucp_worker_get_address");
  store.set(key(rank_), std::string(reinterpret_cast<const char*>(mine), nbytes));
  ucx_.worker_release_address(worker_, mine);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    Peer& to = peers_[static_cast<std::size_t>(peer)];
    const std::string address = store.get(key(peer));
    ucp_ep_params_t parameters{};
    parameters.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
    parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    parameters.err_handler.cb = [](void* lost, ucp_ep_h, ucs_status_t status) {
      static_cast<std::atomic<const char*>*>(lost)->store(UcxLibrary::get().status_string(status));
    };
    parameters.err_handler.arg = &to.lost;
    check_ucx(ucx_.ep_create(worker_, &parameters, &to.endpoint), "ucp_ep_create");
  }
}

UcxWorker::~UcxWorker() {
  if (::getpid() != pid_) return;  // a forked child has no connections
  // After a failure, peers may read and write memory of messages for ever: it stays with the worker until the process
  // ends.
  if (failed_) {
    for (auto& request : requests_) static_cast<void>(request.release());
    return;
  }
  close_endpoints();
  ucx_.worker_destroy(worker_);
  ucx_.cleanup(context_);
}

void UcxWorker::close_endpoints() noexcept {
  std::vector<void*> closing;
  for (const Peer& peer : peers_) {
    if (!peer.endpoint) continue;
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = peer.lost.load() ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    void* const request = ucx_.ep_close(peer.endpoint, &parameters);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  const std::int64_t deadline_ns = base::monotonic_ns() + kCloseNs;
  for (void* request : closing) {
    while (ucx_.request_status(request) == UCS_INPROGRESS && base::monotonic_ns() < deadline_ns) progress();
    ucx_.request_free(request);
  }
}

Request* UcxWorker::new_request() {
  if (free_requests_.empty()) {
    requests_.push_back(std::make_unique<Request>());
    return requests_.back().get();
  }
  Request* const request = free_requests_.back();
  free_requests_.pop_back();
  *request = {};
  return request;
}

void UcxWorker::free_request(Request* request) {
  if (request->of_ucx) ucx_.request_free(request->of_ucx);
  free_requests_.push_back(request);
}

MessageHandle UcxWorker::send(int rank, std::uint64_t tag, const void* data, std::size_t nbytes) {
  Request* const request = new_request();
  ucp_request_param_t parameters = of_host_memory(request);
  parameters.cb.send = on_sent;
  void* const begun = ucx_.tag_send(peers_[static_cast<std::size_t>(rank)].endpoint, data, nbytes, tag, &parameters);
  if (begun == nullptr) {
    free_request(request);
    return 0;
  }
  // To a peer that is lost: never complete, and lost() says why.
  if (UCS_PTR_IS_ERR(begun)) {
    request->status = UCS_PTR_STATUS(begun);
    request->done = true;
  } else {
    request->of_ucx = begun;
  }
  return reinterpret_cast<MessageHandle>(request);
}

MessageHandle UcxWorker::receive(std::uint64_t tag, std::uint64_t mask, void* data, std::size_t nbytes) {
  Request* const request = new_request();
  ucp_request_param_t parameters = of_host_memory(request);
  parameters.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  parameters.cb.recv = on_received;
  void* const begun = ucx_.tag_receive(worker_, data, nbytes, tag, mask, &parameters);
  if (UCS_PTR_IS_ERR(begun)) check_ucx(UCS_PTR_STATUS(begun), "ucp_tag_recv_nbx");
  request->of_ucx = begun;
  return reinterpret_cast<MessageHandle>(request);
}

std::shared_ptr<UcxMessenger> UcxMessenger::of_all(int rank, int size, std::unique_ptr<MeetingStore> store) {
  if (size > 1 << kSourceBits)
    throw CommError(fmt::format("ucx: {} ranks, at most {} are possible", size, 1 << kSourceBits));
  std::vector<int> everybody(static_cast<std::size_t>(size));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto worker = std::make_shared<UcxWorker>(rank, size, std::move(store));
  const std::uint64_t context = worker->next_context++;
  return std::shared_ptr<UcxMessenger>(new UcxMessenger(std::move(worker), context, rank, std::move(everybody)));
}

UcxMessenger::UcxMessenger(std::shared_ptr<UcxWorker> worker, std::uint64_t context, int rank, std::vector<int> members)
    : Messenger(rank, static_cast<int>(members.size()), worker->rank(), worker->size()),
      worker_(std::move(worker)),
      context_(context),
      members_(std::move(members)) {}

UcxMessenger::~UcxMessenger() = default;

const std::shared_ptr<BackendLock>& UcxMessenger::lock() const { return worker_->lock(); }

std::size_t UcxMessenger::best_piece() const { return has_rdma() ? std::size_t{1} << 30 : std::size_t{64} << 10; }

std::int64_t UcxMessenger::tags() const { return std::int64_t{1} << kTagBits; }

std::uint64_t UcxMessenger::tag_of(Channel channel, int source, int tag) const {
  std::uint64_t bits = context_;
  bits = bits << kChannelBits | static_cast<std::uint64_t>(channel);
  bits = bits << kSourceBits | static_cast<std::uint64_t>(source);
  return bits << kTagBits | static_cast<std::uint64_t>(tag);
}

MessageHandle UcxMessenger::send(Channel channel, int peer, int tag, const void* data, std::size_t nbytes) {
  return worker_->send(members_[static_cast<std::size_t>(peer)], tag_of(channel, rank(), tag), data, nbytes);
}

MessageHandle UcxMessenger::receive(Channel channel, int peer, int tag, void* data, std::size_t nbytes) {
  return worker_->receive(tag_of(channel, peer, tag), ~std::uint64_t{0}, data, nbytes);
}

MessageHandle UcxMessenger::receive_any(Channel channel, void* data, std::size_t most) {
  return worker_->receive(tag_of(channel, 0, 0), ~kOwnBits, data, most);
}

bool UcxMessenger::test(MessageHandle& handle) {
  Arrival arrival;
  return test(handle, arrival);
}

bool UcxMessenger::test(MessageHandle& handle, Arrival& arrival) {
  Request* const request = request_of(handle);
  if (!request->done) worker_->progress();
  if (!request->done) return false;
  if (request->status != UCS_OK) {
    if (request->status == UCS_ERR_MESSAGE_TRUNCATED) check_ucx(request->status, "a message");
    return false;  // its peer is lost
  }
  const std::uint64_t tag = request->info.sender_tag;
  arrival.source = static_cast<int>(tag >> kTagBits & ((1U << kSourceBits) - 1));
  arrival.tag = static_cast<int>(tag & ((std::uint64_t{1} << kTagBits) - 1));
  arrival.nbytes = request->info.length;
  worker_->free_request(request);
  handle = 0;
  return true;
}

bool UcxMessenger::cancel(MessageHandle& handle) noexcept {
  if (handle == 0) return true;
  Request* const request = request_of(handle);
  if (!request->done) {
    worker_->ucx().request_cancel(worker_->worker(), request->of_ucx);
    worker_->progress();
  }
  if (!request->done) return false;
  worker_->free_request(request);
  handle = 0;
  return true;
}

std::shared_ptr<Messenger> UcxMessenger::subgroup(std::span<const int> members) {
  // A number that none of these ranks has used: the largest of any.
  std::vector<std::uint64_t> numbers(static_cast<std::size_t>(size()));
  all_gather(&worker_->next_context, sizeof(std::uint64_t), numbers.data());
  const std::uint64_t context = *std::max_element(numbers.begin(), numbers.end());
  if (context >= kContexts) {
    throw CommError(fmt::format(
        "ucx: a process can make {} groups of ranks, and has: keep groups instead of making them anew", kContexts));
  }
  worker_->next_context = context + 1;
  if (members.empty()) return nullptr;
  std::vector<int> in_job;
  for (const int member : members) in_job.push_back(members_[static_cast<std::size_t>(member)]);
  const auto me = std::find(members.begin(), members.end(), rank()) - members.begin();
  return std::shared_ptr<UcxMessenger>(new UcxMessenger(worker_, context, static_cast<int>(me), std::move(in_job)));
}

void UcxMessenger::mark_failed(bool) noexcept { worker_->mark_failed(); }

std::string UcxMessenger::problem_of(int peer) const {
  const char* const lost = worker_->lost(members_[static_cast<std::size_t>(peer)]);
  return lost ? fmt::format("lost its connection ({})", lost) : std::string();
}

}  // namespace zero::comm
