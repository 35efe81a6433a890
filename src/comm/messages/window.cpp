// Shard windows over messages: a fetch asks the owners, who answer inside any call of the group, or in their
// progress thread, once they have published what is wanted.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "comm/messages/backend.h"
#include "comm/transfers.h"

namespace zero::comm {
namespace {

class MessageFetch final : public FetchWork {
 public:
  MessageFetch(HostedWindow& window, int ranks) : FetchWork(window), receives(static_cast<std::size_t>(ranks)) {}

  WindowMessage request;
  MessageRequests request_sends;
  mutable std::vector<MessageRequests> receives;  ///< [N]; also tested when somebody asks who is late
  std::int64_t asked_ns = 0;
};

class MessageWindow final : public HostedWindow, public WindowEnd {
 public:
  MessageWindow(std::shared_ptr<MessageBackend> group, std::shared_ptr<const ParcelTable> table,
                std::span<const void* const> mine)
      : HostedWindow(group, std::move(table), mine),
        group_(*group),
        id_(group->add_window(*this)),
        first_tag_(group->take_tags(Channel::kAnswers, this->table().size())),
        states_(static_cast<std::size_t>(size()), State::kOpen) {}
  ~MessageWindow() override;

  bool under_way() const override { return size() > 1; }  // somebody may ask at any time
  void take(int source, const WindowMessage& message) override;
  bool let_go() noexcept override;

 protected:
  std::shared_ptr<FetchWork> new_work() override {
    auto fetch = std::make_shared<MessageFetch>(*this, size());
    fetches_.push_back(fetch);
    return fetch;
  }
  void ask(FetchWork& work) override;
  bool move(FetchWork& work) override;
  void serve() override;
  void announce(std::uint64_t) override { serve(); }
  void announce(State state) override;
  State state_of(int peer) const override { return states_[static_cast<std::size_t>(peer)]; }
  bool served() override {
    serve();
    return asked_.empty() && answers_.test() && farewell_sends_.test();
  }
  Blocker blocker_of(const FetchWork& work) const override;

 private:
  struct Asked {
    int source;
    WindowMessage message;
  };
  int peer_at(int step) const { return (rank() + step) % size(); }

  MessageBackend& group_;
  const int id_;
  const int first_tag_;
  std::vector<State> states_;  ///< [N]
  std::vector<Asked> asked_;   ///< not answered yet
  MessageRequests answers_;
  WindowMessage farewell_;
  MessageRequests farewell_sends_;
  std::vector<std::weak_ptr<MessageFetch>> fetches_;  ///< all that were made
};

MessageWindow::~MessageWindow() {
  close();
  if (is_forked_child()) return;
  const BackendGuard guard(*backend().lock());
  group_.remove_window(id_);
  if (!backend().failed()) {
    // While an exception unwinds the stack: what peers still receive must not be freed under them.
    if (!answers_.test() || !farewell_sends_.test()) backend().abort("an exception ended its shard window");
  }
  if (!backend().failed()) return;
  bool clean = answers_.cancel();
  clean = farewell_sends_.cancel() && clean;
  std::vector<std::shared_ptr<MessageFetch>> fetches;
  for (const auto& made : fetches_) {
    const std::shared_ptr<MessageFetch>& fetch = fetches.emplace_back(made.lock());
    clean = fetch->request_sends.cancel() && clean;
    for (MessageRequests& requests : fetch->receives) clean = requests.cancel() && clean;
  }
  if (clean) return;
  group_.messenger().mark_failed(/*clean=*/false);
  new std::vector<std::shared_ptr<MessageFetch>>(std::move(fetches));  // they must outlive every message
}

bool MessageWindow::let_go() noexcept {
  bool clean = true;
  for (const auto& made : fetches_) {
    const std::shared_ptr<MessageFetch> fetch = made.lock();
    if (!fetch) continue;
    for (MessageRequests& requests : fetch->receives) clean = requests.cancel() && clean;
  }
  return clean;
}

void MessageWindow::ask(FetchWork& work) {
  auto& fetch = static_cast<MessageFetch&>(work);
  fetch.asked_ns = base::monotonic_ns();
  // Answers about one parcel come in the order of the questions.
  fetch.request = {WindowMessage::Kind::kFetch, id_, work.parcel, first_tag_ + work.parcel, work.version};
  for (int step = 1; step < size(); ++step) {
    const int peer = peer_at(step);
    const std::size_t nbytes = table().slice_nbytes(work.parcel, peer);
    if (nbytes == 0) continue;
    fetch.receives[static_cast<std::size_t>(peer)].receive(group_.messenger(), Channel::kAnswers, peer,
                                                           fetch.request.tag,
                                                           work.out + table().slice_offset(work.parcel, peer), nbytes);
    fetch.request_sends.send(group_.messenger(), Channel::kRequests, peer, 0, &fetch.request, sizeof(WindowMessage));
  }
}

bool MessageWindow::move(FetchWork& work) {
  auto& fetch = static_cast<MessageFetch&>(work);
  for (; work.peers_seen < size() - 1; ++work.peers_seen) {
    const int peer = peer_at(work.peers_seen + 1);
    if (fetch.receives[static_cast<std::size_t>(peer)].test()) continue;
    if (state_of(peer) == State::kGone) fail_fetch(work, peer);
    return false;
  }
  if (!fetch.request_sends.test()) return false;
  copy_my_slice(work);
  add_moving_ns(work, base::monotonic_ns() - fetch.asked_ns);
  return true;
}

void MessageWindow::take(int source, const WindowMessage& message) {
  if (message.kind == WindowMessage::Kind::kFetch) {
    asked_.push_back({source, message});
  } else {
    states_[static_cast<std::size_t>(source)] =
        message.kind == WindowMessage::Kind::kGone ? State::kGone : State::kClosing;
  }
}

void MessageWindow::serve() {
  const bool closing = state_of(rank()) != State::kOpen;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < asked_.size(); ++i) {
    const Asked asked = asked_[i];
    // A later question about the same parcel wants no older version: none overtakes.
    if (asked.message.version > version()) {
      if (closing) {
        backend().abort(fmt::format(
            "it destroyed shard window \"{}\" before it published version {}, which a fetch of {} by rank {} "
            "waits for",
            table().label, asked.message.version, table().text(asked.message.parcel), asked.source));
      }
      asked_[kept++] = asked;
      continue;
    }
    answers_.send(group_.messenger(), Channel::kAnswers, asked.source, asked.message.tag,
                  my_slice(asked.message.parcel), table().slice_nbytes(asked.message.parcel, rank()));
  }
  asked_.resize(kept);
  answers_.drop_completed();
}

void MessageWindow::announce(State state) {
  states_[static_cast<std::size_t>(rank())] = state;
  farewell_.kind = state == State::kGone ? WindowMessage::Kind::kGone : WindowMessage::Kind::kClosing;
  farewell_.window = id_;
  for (int step = 1; step < size(); ++step)
    farewell_sends_.send(group_.messenger(), Channel::kRequests, peer_at(step), 0, &farewell_, sizeof(farewell_));
  serve();
}

Blocker MessageWindow::blocker_of(const FetchWork& work) const {
  const auto& fetch = static_cast<const MessageFetch&>(work);
  Blocker blocker;
  blocker.lack = "has not sent its slice: it has not published that version, or not called its group";
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && !fetch.receives[static_cast<std::size_t>(peer)].test()) blocker.ranks.push_back(peer);
  }
  return blocker;
}

}  // namespace

std::shared_ptr<ShardWindow> MessageBackend::make_window(std::shared_ptr<const ParcelTable> parcels,
                                                         std::span<const void* const> mine) {
  auto window = std::make_shared<MessageWindow>(std::static_pointer_cast<MessageBackend>(shared_from_this()),
                                                std::move(parcels), mine);
  add_transfers(*window);
  // Nobody is asked before his window is there.
  Call barrier;
  barrier.label = "shard window";
  Work(post(barrier)).wait();
  return window;
}

}  // namespace zero::comm
