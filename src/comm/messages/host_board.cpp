// Exchange boards over messages between hosts, whose ranks add their slices first (HostSums). The ranks at one place of
// their hosts exchange sums with each other alone:
//
//   1  to each rank of this host    its slice, and those of the ranks at its place on the other hosts
//   2  of each host's slice         the sum over this host's ranks, in rank order
//   3  to the rank at this place    the sum of its slice
//      on each other host
//
// So a rank sends messages to the ranks of its host and to one rank of each other host.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "comm/messages/backend.h"
#include "comm/transfers.h"

namespace zero::comm {
namespace {

class HostPost final : public BoardWork {
 public:
  HostPost(HostedBoard& board, int of_parcel, std::size_t beside, std::size_t hosts)
      : BoardWork(board, of_parcel),
        numbers(beside),
        number_receives(beside),
        slice_receives(beside),
        sum_receives(hosts) {}

  using MovedWork::run_own_part;

  enum class Phase : std::uint8_t { kNumbers, kSlices, kSums };
  Phase phase = Phase::kNumbers;
  std::vector<std::int64_t> numbers;                     ///< received, by local rank
  mutable std::vector<MessageRequests> number_receives;  ///< also tested when somebody asks who is late
  mutable std::vector<MessageRequests> slice_receives;   ///< by local rank
  mutable std::vector<MessageRequests> sum_receives;     ///< by host
  MessageRequests sends;
  std::vector<std::byte> scratch;  ///< slices of this host's ranks, sums, sums of the other hosts
  std::int64_t began_moving_ns = 0;
};

class HostBoard final : public HostedBoard {
 public:
  HostBoard(const std::shared_ptr<MessageBackend>& group, std::shared_ptr<const ParcelTable> table, BoardSink sink,
            HostSums sums)
      : HostedBoard(group, std::move(table), std::move(sink), group->size() / sums.ranks),
        group_(*group),
        sums_(std::move(sums)),
        per_host_(sums_.ranks),
        hosts_(group->size() / sums_.ranks),
        host_(group->rank() / sums_.ranks),
        place_(group->rank() % sums_.ranks),
        first_tag_(group->take_tags(Channel::kPosts, kTags * this->table().size())),
        slices_(static_cast<std::size_t>(per_host_)) {
    for (std::size_t p = 0; p < this->table().size(); ++p) {
      for (int host = 0; host < hosts_; ++host) {
        const std::size_t nbytes = this->table().slice_nbytes(static_cast<int>(p), peer_at(host));
        slice_stride_ = std::max(slice_stride_, round_up(nbytes, 64));
        sum_stride_ = std::max(sum_stride_, round_up(sum_nbytes(nbytes), 64));
      }
    }
  }
  ~HostBoard() override;

  bool sums_on_hosts() const override { return true; }

 protected:
  std::shared_ptr<BoardWork> new_work(int parcel) override {
    std::erase_if(posts_, [](const std::weak_ptr<HostPost>& made) { return made.expired(); });
    auto post = std::make_shared<HostPost>(*this, parcel, slices_.size(), static_cast<std::size_t>(hosts_));
    posts_.push_back(post);
    return post;
  }
  void enter(BoardWork& work) override;
  bool arrived(BoardWork& work) override;
  void find_slices(BoardWork& work, std::span<const void*> slices) override;
  bool leave(BoardWork&) override { return !backend().failed(); }
  bool released(BoardWork& work) override;
  Blocker blocker_of(const BoardWork& work) const override;
  void count(int parcel) override;

 private:
  static constexpr int kTags = 3;  ///< of a parcel: numbers, slices, sums

  /// The rank at this rank's place on a host, and one beside this rank.
  int peer_at(int host) const { return host * per_host_ + place_; }
  int rank_beside(int place) const { return host_ * per_host_ + place; }
  std::size_t sum_nbytes(std::size_t slice_nbytes) const {
    return slice_nbytes / element_nbytes(table().dtype) * element_nbytes(sums_.dtype);
  }
  /// In the scratch: what a rank beside this one sends for a host, a sum of this host's, and one of another host.
  std::byte* slice_at(HostPost& post, int place, int host) const {
    return post.scratch.data() + static_cast<std::size_t>(place * hosts_ + host) * slice_stride_;
  }
  std::byte* sum_at(HostPost& post, int host) const {
    return post.scratch.data() + static_cast<std::size_t>(per_host_ * hosts_) * slice_stride_ +
           static_cast<std::size_t>(host) * sum_stride_;
  }
  std::byte* received_at(HostPost& post, int host) const { return sum_at(post, hosts_ + host); }
  std::size_t scratch_nbytes() const {
    return static_cast<std::size_t>(per_host_ * hosts_) * slice_stride_ +
           static_cast<std::size_t>(2 * hosts_) * sum_stride_;
  }
  void add_up(HostPost& post);
  void send_sums(HostPost& post);

  MessageBackend& group_;
  const HostSums sums_;
  const int per_host_, hosts_;  ///< ranks of a host; hosts
  const int host_, place_;      ///< of this rank
  const int first_tag_;
  std::size_t slice_stride_ = 0, sum_stride_ = 0;
  std::vector<const void*> slices_;  ///< scratch
  std::vector<std::vector<std::byte>> free_scratch_;
  std::vector<std::weak_ptr<HostPost>> posts_;  ///< all that were made
};

HostBoard::~HostBoard() {
  close();
  if (is_forked_child() || !backend().failed()) return;
  const BackendGuard guard(*backend().lock());
  for (const auto& made : posts_) {
    const std::shared_ptr<HostPost> post = made.lock();
    if (!post) continue;
    bool clean = post->sends.cancel();
    for (auto* const all : {&post->number_receives, &post->slice_receives, &post->sum_receives}) {
      for (MessageRequests& requests : *all) clean = requests.cancel() && clean;
    }
    if (clean) continue;
    group_.messenger().mark_failed(/*clean=*/false);
    new std::shared_ptr<HostPost>(post);  // it must outlive every message
  }
}

void HostBoard::enter(BoardWork& work) {
  auto& post = static_cast<HostPost&>(work);
  post.phase = HostPost::Phase::kNumbers;
  if (!free_scratch_.empty()) {
    post.scratch = std::move(free_scratch_.back());
    free_scratch_.pop_back();
  }
  post.scratch.resize(scratch_nbytes());
  Messenger& messenger = group_.messenger();
  const int number_tag = first_tag_ + kTags * work.parcel, slice_tag = number_tag + 1, sum_tag = number_tag + 2;
  for (int step = 1; step < per_host_; ++step) {
    const int place = (place_ + step) % per_host_, peer = rank_beside(place);
    const auto p = static_cast<std::size_t>(place);
    post.number_receives[p].receive(messenger, Channel::kPosts, peer, number_tag, &post.numbers[p],
                                    sizeof(std::int64_t));
    for (int host = 0; host < hosts_; ++host) {
      post.slice_receives[p].receive(messenger, Channel::kPosts, peer, slice_tag, slice_at(post, place, host),
                                     table().slice_nbytes(work.parcel, peer_at(host)));
    }
  }
  for (int host = 0; host < hosts_; ++host) {
    if (host == host_) continue;
    post.sum_receives[static_cast<std::size_t>(host)].receive(messenger, Channel::kPosts, peer_at(host), sum_tag,
                                                              received_at(post, host),
                                                              sum_nbytes(table().slice_nbytes(work.parcel, rank())));
  }
  for (int step = 1; step < per_host_; ++step) {
    const int place = (place_ + per_host_ - step) % per_host_, peer = rank_beside(place);
    post.sends.send(messenger, Channel::kPosts, peer, number_tag, &work.number, sizeof(std::int64_t));
    for (int host = 0; host < hosts_; ++host) {
      const int owner = host * per_host_ + place;
      post.sends.send(messenger, Channel::kPosts, peer, slice_tag, work.in + table().slice_offset(work.parcel, owner),
                      table().slice_nbytes(work.parcel, owner));
    }
  }
}

bool HostBoard::arrived(BoardWork& work) {
  auto& post = static_cast<HostPost&>(work);
  const auto all_of_host = [&](std::vector<MessageRequests>& receives) {
    while (work.peers_seen < per_host_ - 1) {
      const auto place = static_cast<std::size_t>((place_ + work.peers_seen + 1) % per_host_);
      if (!receives[place].test()) return false;
      ++work.peers_seen;
    }
    work.peers_seen = 0;
    return true;
  };
  post.sends.drop_completed();  // further pieces go out
  if (post.phase == HostPost::Phase::kNumbers) {
    if (!all_of_host(post.number_receives)) return false;
    for (int place = 0; place < per_host_; ++place) {
      ZERO_CHECK(place == place_ || post.numbers[static_cast<std::size_t>(place)] == work.number,
                 "post {} of rank {} met post {} of this rank", post.numbers[static_cast<std::size_t>(place)],
                 rank_beside(place), work.number);
    }
    post.phase = HostPost::Phase::kSlices;
    post.began_moving_ns = base::monotonic_ns();
  }
  if (post.phase == HostPost::Phase::kSlices) {
    if (!all_of_host(post.slice_receives)) return false;
    if (!post.run_own_part([&] { add_up(post); })) return false;
    send_sums(post);
    post.phase = HostPost::Phase::kSums;
  }
  for (; work.peers_seen < hosts_ - 1; ++work.peers_seen) {
    if (!post.sum_receives[static_cast<std::size_t>((host_ + work.peers_seen + 1) % hosts_)].test()) return false;
  }
  add_moving_ns(work, base::monotonic_ns() - post.began_moving_ns);
  return true;
}

void HostBoard::add_up(HostPost& post) {
  for (int host = 0; host < hosts_; ++host) {
    const int owner = peer_at(host);
    for (int place = 0; place < per_host_; ++place) {
      slices_[static_cast<std::size_t>(place)] =
          place == place_ ? post.in + table().slice_offset(post.parcel, owner) : slice_at(post, place, host);
    }
    const auto numel =
        static_cast<std::int64_t>(table().slice_nbytes(post.parcel, owner) / element_nbytes(table().dtype));
    if (numel > 0) sums_.add(slices_, numel, sum_at(post, host));
  }
}

void HostBoard::send_sums(HostPost& post) {
  for (int step = 1; step < hosts_; ++step) {
    const int host = (host_ + hosts_ - step) % hosts_;
    post.sends.send(group_.messenger(), Channel::kPosts, peer_at(host), first_tag_ + kTags * post.parcel + 2,
                    sum_at(post, host), sum_nbytes(table().slice_nbytes(post.parcel, peer_at(host))));
  }
}

void HostBoard::find_slices(BoardWork& work, std::span<const void*> slices) {
  auto& post = static_cast<HostPost&>(work);
  for (int host = 0; host < hosts_; ++host)
    slices[static_cast<std::size_t>(host)] = host == host_ ? sum_at(post, host) : received_at(post, host);
}

bool HostBoard::released(BoardWork& work) {
  auto& post = static_cast<HostPost&>(work);
  if (!post.sends.test()) return false;  // some of it is in the scratch
  free_scratch_.push_back(std::exchange(post.scratch, {}));
  return true;
}

Blocker HostBoard::blocker_of(const BoardWork& work) const {
  const auto& post = static_cast<const HostPost&>(work);
  Blocker blocker;
  const auto wait_for = [&](std::string_view lack, std::vector<MessageRequests>& receives, auto rank_at) {
    blocker.lack = lack;
    for (std::size_t i = 0; i < receives.size(); ++i) {
      if (!receives[i].test() && rank_at(static_cast<int>(i)) != rank())
        blocker.ranks.push_back(rank_at(static_cast<int>(i)));
    }
  };
  const auto beside = [this](int place) { return rank_beside(place); };
  const auto at_host = [this](int host) { return peer_at(host); };
  if (work.consumed) {
    blocker.lack = "has not received this rank's part of it";
    for (int other = 0; other < size(); ++other) {
      if (other != rank() && (other / per_host_ == host_ || other % per_host_ == place_))
        blocker.ranks.push_back(other);
    }
  } else if (post.phase == HostPost::Phase::kNumbers) {
    wait_for("has not posted it so often", post.number_receives, beside);
  } else if (post.phase == HostPost::Phase::kSlices) {
    wait_for("has not sent its part of it", post.slice_receives, beside);
  } else {
    wait_for("has not sent the sum of its host", post.sum_receives, at_host);
  }
  return blocker;
}

void HostBoard::count(int parcel) {
  std::int64_t to_host = 0, from_host = 0, sums = 0;
  for (int other = 0; other < size(); ++other) {
    const auto numel = static_cast<std::int64_t>(table().slice_nbytes(parcel, other) / element_nbytes(table().dtype));
    if (other % per_host_ != place_) to_host += numel;
    if (other % per_host_ == place_) from_host += numel * (per_host_ - 1);
    if (other % per_host_ == place_ && other != rank()) sums += numel;
  }
  const auto mine = static_cast<std::int64_t>(table().slice_nbytes(parcel, rank()) / element_nbytes(table().dtype));
  CollectiveCounter& counter = backend().counters().reduce_scatter;
  count_moved(counter, to_host, from_host, table().dtype);
  count_moved(counter, sums, mine * (hosts_ - 1), sums_.dtype);
  --counter.calls;  // both are one
}

}  // namespace

std::shared_ptr<HostedBoard> make_host_board(const std::shared_ptr<MessageBackend>& group,
                                             std::shared_ptr<const ParcelTable> parcels, BoardSink sink,
                                             HostSums sums) {
  return std::make_shared<HostBoard>(group, std::move(parcels), std::move(sink), std::move(sums));
}

}  // namespace zero::comm
