// Exchange boards over messages. A post sends every peer its number and the peer's slice. Both have tags of the
// parcel's own, and messages of one tag stay in order: so the n-th post meets the n-th.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "comm/messages/backend.h"
#include "comm/transfers.h"

namespace zero::comm {
namespace {

class MessagePost final : public BoardWork {
 public:
  MessagePost(HostedBoard& board, int of_parcel, int ranks)
      : BoardWork(board, of_parcel),
        numbers(static_cast<std::size_t>(ranks)),
        number_receives(static_cast<std::size_t>(ranks)),
        slice_receives(static_cast<std::size_t>(ranks)) {}

  std::vector<std::int64_t> numbers;                     ///< [N] received
  mutable std::vector<MessageRequests> number_receives;  ///< also tested when somebody asks who is late
  std::vector<MessageRequests> slice_receives;
  MessageRequests sends;
  std::vector<std::byte> scratch;  ///< slices of the others, from the one behind this rank
  std::int64_t all_posted_ns = 0;
};

class MessageBoard final : public HostedBoard {
 public:
  MessageBoard(const std::shared_ptr<MessageBackend>& group, std::shared_ptr<const ParcelTable> table, BoardSink sink)
      : HostedBoard(group, std::move(table), std::move(sink), group->size()),
        group_(*group),
        first_tag_(group->take_tags(Channel::kPosts, 2 * this->table().size())) {
    for (std::size_t p = 0; p < this->table().size(); ++p)
      scratch_nbytes_ = std::max(scratch_nbytes_, stride(static_cast<int>(p)));
    scratch_nbytes_ *= static_cast<std::size_t>(size() - 1);
  }
  ~MessageBoard() override;

 protected:
  std::shared_ptr<BoardWork> new_work(int parcel) override {
    std::erase_if(posts_, [](const std::weak_ptr<MessagePost>& made) { return made.expired(); });
    auto post = std::make_shared<MessagePost>(*this, parcel, size());
    posts_.push_back(post);
    return post;
  }
  void enter(BoardWork& work) override;
  bool arrived(BoardWork& work) override;
  void find_slices(BoardWork& work, std::span<const void*> slices) override;
  bool leave(BoardWork& work) override;
  bool released(BoardWork& work) override { return static_cast<MessagePost&>(work).sends.test(); }
  Blocker blocker_of(const BoardWork& work) const override;

 private:
  std::size_t stride(int parcel) const { return round_up(table().slice_nbytes(parcel, rank()), 64); }
  int peer_at(int step) const { return (rank() + step) % size(); }
  bool all_posted(const MessagePost& post) const { return post.all_posted_ns != 0; }

  MessageBackend& group_;
  const int first_tag_;
  std::size_t scratch_nbytes_ = 0;  ///< of any parcel
  std::vector<std::vector<std::byte>> free_scratch_;
  std::vector<std::weak_ptr<MessagePost>> posts_;  ///< all that were made
};

MessageBoard::~MessageBoard() {
  close();
  if (is_forked_child() || !backend().failed()) return;
  const BackendGuard guard(*backend().lock());
  for (const auto& made : posts_) {
    const std::shared_ptr<MessagePost> post = made.lock();
    if (!post) continue;
    bool clean = post->sends.cancel();
    for (MessageRequests& requests : post->number_receives) clean = requests.cancel() && clean;
    for (MessageRequests& requests : post->slice_receives) clean = requests.cancel() && clean;
    if (clean) continue;
    group_.messenger().mark_failed(/*clean=*/false);
    new std::shared_ptr<MessagePost>(post);  // it must outlive every message
  }
}

void MessageBoard::enter(BoardWork& work) {
  auto& post = static_cast<MessagePost&>(work);
  post.all_posted_ns = 0;
  if (size() == 1) return;
  if (!free_scratch_.empty()) {
    post.scratch = std::move(free_scratch_.back());
    free_scratch_.pop_back();
  }
  post.scratch.resize(scratch_nbytes_);
  Messenger& messenger = group_.messenger();
  const int number_tag = first_tag_ + 2 * work.parcel, slice_tag = number_tag + 1;
  for (int step = 1; step < size(); ++step) {
    const int peer = peer_at(step);
    const auto p = static_cast<std::size_t>(peer);
    post.number_receives[p].receive(messenger, Channel::kPosts, peer, number_tag, &post.numbers[p],
                                    sizeof(std::int64_t));
    post.slice_receives[p].receive(messenger, Channel::kPosts, peer, slice_tag,
                                   post.scratch.data() + static_cast<std::size_t>(step - 1) * stride(work.parcel),
                                   table().slice_nbytes(work.parcel, rank()));
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = peer_at(size() - step);
    post.sends.send(messenger, Channel::kPosts, peer, number_tag, &work.number, sizeof(std::int64_t));
    post.sends.send(messenger, Channel::kPosts, peer, slice_tag, work.in + table().slice_offset(work.parcel, peer),
                    table().slice_nbytes(work.parcel, peer));
  }
}

bool MessageBoard::arrived(BoardWork& work) {
  auto& post = static_cast<MessagePost&>(work);
  post.sends.drop_completed();  // further pieces go out
  for (; !all_posted(post) && work.peers_seen < size() - 1; ++work.peers_seen) {
    const auto peer = static_cast<std::size_t>(peer_at(work.peers_seen + 1));
    if (!post.number_receives[peer].test()) return false;
    ZERO_CHECK(post.numbers[peer] == work.number, "post {} of rank {} met post {} of this rank", post.numbers[peer],
               peer, work.number);
  }
  if (!all_posted(post)) {
    post.all_posted_ns = base::monotonic_ns();
    work.peers_seen = 0;
  }
  if (work.peers_seen == size() - 1) return true;
  for (; work.peers_seen < size() - 1; ++work.peers_seen) {
    if (!post.slice_receives[static_cast<std::size_t>(peer_at(work.peers_seen + 1))].test()) return false;
  }
  add_moving_ns(work, base::monotonic_ns() - post.all_posted_ns);
  return true;
}

void MessageBoard::find_slices(BoardWork& work, std::span<const void*> slices) {
  auto& post = static_cast<MessagePost&>(work);
  slices[static_cast<std::size_t>(rank())] = work.in + table().slice_offset(work.parcel, rank());
  for (int step = 1; step < size(); ++step) {
    slices[static_cast<std::size_t>(peer_at(step))] =
        post.scratch.data() + static_cast<std::size_t>(step - 1) * stride(work.parcel);
  }
}

bool MessageBoard::leave(BoardWork& work) {
  auto& post = static_cast<MessagePost&>(work);
  if (size() > 1) free_scratch_.push_back(std::exchange(post.scratch, {}));
  return !backend().failed();
}

Blocker MessageBoard::blocker_of(const BoardWork& work) const {
  const auto& post = static_cast<const MessagePost&>(work);
  Blocker blocker;
  blocker.lack = work.consumed      ? "has not received this rank's part of it"
                 : all_posted(post) ? "has not sent its part of it"
                                    : "has not posted it so often";
  for (int step = work.consumed ? 1 : work.peers_seen + 1; step < size(); ++step) {
    const int peer = peer_at(step);
    if (work.consumed || all_posted(post) || !post.number_receives[static_cast<std::size_t>(peer)].test())
      blocker.ranks.push_back(peer);
  }
  return blocker;
}

}  // namespace

std::shared_ptr<ExchangeBoard> MessageBackend::make_board(std::shared_ptr<const ParcelTable> parcels, BoardSink sink,
                                                          HostSums sums) {
  const auto self = std::static_pointer_cast<MessageBackend>(shared_from_this());
  std::shared_ptr<HostedBoard> board;
  if (sums.ranks > 1 && sums.ranks == ranks_per_host_ && sums.ranks < size()) {
    board = make_host_board(self, std::move(parcels), std::move(sink), std::move(sums));
  } else {
    board = std::make_shared<MessageBoard>(self, std::move(parcels), std::move(sink));
  }
  add_transfers(*board);
  return board;
}

}  // namespace zero::comm
