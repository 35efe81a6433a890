#include "support/pipe_transport.h"

#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "comm/backend.h"

namespace zero::testing {
namespace {

using Bytes = std::vector<std::byte>;

/// What a message is about: a slice is told apart by channel, parcel and how often that was sent.
struct Header {
  enum Kind : std::int64_t { kSlice, kRequest, kEnd } kind = kSlice;
  std::int64_t channel = 0, parcel = 0, number = 0, nbytes = 0;
  std::int64_t version = 0;  ///< of a request
};

void write_all(int fd, const void* data, std::size_t nbytes) {
  const auto* from = static_cast<const char*>(data);
  while (nbytes > 0) {
    const ssize_t done = ::write(fd, from, nbytes);
    if (done <= 0) throw std::runtime_error("a pipe is broken");
    from += done;
    nbytes -= static_cast<std::size_t>(done);
  }
}

bool read_all(int fd, void* data, std::size_t nbytes) {
  auto* to = static_cast<char*>(data);
  while (nbytes > 0) {
    const ssize_t done = ::read(fd, to, nbytes);
    if (done <= 0) return false;
    to += done;
    nbytes -= static_cast<std::size_t>(done);
  }
  return true;
}

/// All messages of a rank. A thread for each direction of each pipe, so that no pipe ever waits for another one.
class Mail {
 public:
  using Key = std::tuple<int, std::int64_t, std::int64_t, std::int64_t>;  ///< peer, channel, parcel, number
  /// A peer wants a slice: called by a thread of the mail.
  using OnRequest = std::function<void(int peer, const Header& request)>;

  Mail(const Pipes& pipes, int rank) : pipes_(pipes), rank_(rank), outgoing_(static_cast<std::size_t>(pipes.size())) {
    for (int peer = 0; peer < pipes.size(); ++peer) {
      if (peer == rank) continue;
      threads_.emplace_back([this, peer] { write_to(peer); });
      threads_.emplace_back([this, peer] { read_from(peer); });
    }
  }
  ~Mail() {
    for (int peer = 0; peer < size(); ++peer) send(peer, {.kind = Header::kEnd}, nullptr);
    for (auto& thread : threads_) thread.join();
  }

  int rank() const { return rank_; }
  int size() const { return pipes_.size(); }

  void send(int peer, Header header, const void* data) {
    if (peer == rank_) return;
    Bytes message(sizeof header + static_cast<std::size_t>(header.nbytes));
    std::memcpy(message.data(), &header, sizeof header);
    if (header.nbytes > 0) std::memcpy(message.data() + sizeof header, data, static_cast<std::size_t>(header.nbytes));
    const std::lock_guard lock(mutex_);
    outgoing_[static_cast<std::size_t>(peer)].push_back(std::move(message));
    changed_.notify_all();
  }
  bool has(const Key& key) {
    const std::lock_guard lock(mutex_);
    return arrived_.contains(key);
  }
  Bytes take(const Key& key) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_.contains(key); });
    Bytes bytes = std::move(arrived_[key]);
    arrived_.erase(key);
    return bytes;
  }
  void on_request(std::int64_t channel, OnRequest call) {
    std::vector<std::pair<int, Header>> waiting;
    {
      const std::lock_guard lock(mutex_);
      handlers_[channel] = call;
      std::swap(waiting, early_[channel]);
    }
    for (const auto& [peer, request] : waiting) call(peer, request);
  }

 private:
  void write_to(int peer) {
    while (true) {
      std::unique_lock lock(mutex_);
      auto& queue = outgoing_[static_cast<std::size_t>(peer)];
      changed_.wait(lock, [&] { return !queue.empty(); });
      const Bytes message = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      write_all(pipes_.write_end(rank_, peer), message.data(), message.size());
      Header header;
      std::memcpy(&header, message.data(), sizeof header);
      if (header.kind == Header::kEnd) return;
    }
  }
  void read_from(int peer) {
    Header header;
    while (read_all(pipes_.read_end(peer, rank_), &header, sizeof header) && header.kind != Header::kEnd) {
      Bytes bytes(static_cast<std::size_t>(header.nbytes));
      if (!read_all(pipes_.read_end(peer, rank_), bytes.data(), bytes.size())) return;
      OnRequest handler;
      {
        const std::lock_guard lock(mutex_);
        if (header.kind == Header::kSlice) {
          arrived_[{peer, header.channel, header.parcel, header.number}] = std::move(bytes);
          changed_.notify_all();
        } else if (const auto found = handlers_.find(header.channel); found != handlers_.end()) {
          handler = found->second;
        } else {
          early_[header.channel].emplace_back(peer, header);
        }
      }
      if (handler) handler(peer, header);
    }
  }

  const Pipes& pipes_;
  const int rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Bytes>> outgoing_;  ///< by peer
  std::map<Key, Bytes> arrived_;
  std::map<std::int64_t, OnRequest> handlers_;
  std::map<std::int64_t, std::vector<std::pair<int, Header>>> early_;
  std::vector<std::thread> threads_;
};

/// Complete when slices of all peers that have one are there; `use` then takes them.
class PipeWork final : public comm::WorkState {
 public:
  using Use = std::function<void(const std::map<int, Bytes>& by_rank)>;
  PipeWork(std::shared_ptr<Mail> mail, std::vector<Mail::Key> wanted, Use use)
      : WorkState(std::make_shared<comm::BackendLock>()),
        mail_(std::move(mail)),
        wanted_(std::move(wanted)),
        use_(std::move(use)) {}

  bool test() override {
    if (complete()) return true;
    for (const auto& key : wanted_) {
      if (!mail_->has(key)) return false;
    }
    wait();
    return true;
  }
  void wait() override {
    if (complete()) return;
    std::map<int, Bytes> by_rank;
    for (const auto& key : wanted_) by_rank[std::get<0>(key)] = mail_->take(key);
    set_complete();
    use_(by_rank);
  }
  bool wait_for(std::chrono::milliseconds limit) override {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!test()) {
      if (std::chrono::steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }
  void start() override {}
  void chain(std::shared_ptr<WorkState>) override {}

 private:
  std::shared_ptr<Mail> mail_;
  std::vector<Mail::Key> wanted_;
  Use use_;
};

struct Table {
  std::vector<comm::Parcel> parcels;
  std::size_t element = 1;

  std::size_t nbytes(int parcel, int rank) const {
    return static_cast<std::size_t>(parcels[static_cast<std::size_t>(parcel)].counts[static_cast<std::size_t>(rank)]) *
           element;
  }
  std::size_t offset(int parcel, int rank) const {
    std::size_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += nbytes(parcel, r);
    return sum;
  }
};

class PipeBoard final : public comm::ExchangeBoard {
 public:
  PipeBoard(std::shared_ptr<Mail> mail, std::int64_t channel, Table table, Sink sink)
      : mail_(std::move(mail)),
        channel_(channel),
        table_(std::move(table)),
        sink_(std::move(sink)),
        posts_(table_.parcels.size()) {}

  Work post(int parcel, const void* in) override {
    const std::int64_t number = ++posts_[static_cast<std::size_t>(parcel)];
    const auto* bytes = static_cast<const std::byte*>(in);
    const int rank = mail_->rank();
    std::vector<Mail::Key> wanted;
    for (int peer = 0; peer < mail_->size(); ++peer) {
      const std::size_t theirs = table_.nbytes(parcel, peer);
      if (peer == rank) continue;
      mail_->send(peer, {Header::kSlice, channel_, parcel, number, static_cast<std::int64_t>(theirs)},
                  bytes + table_.offset(parcel, peer));
      wanted.emplace_back(peer, channel_, parcel, number);
    }
    const auto use = [this, parcel, mine = bytes + table_.offset(parcel, rank)](const std::map<int, Bytes>& by_rank) {
      std::vector<const void*> slices;
      for (int peer = 0; peer < mail_->size(); ++peer)
        slices.push_back(peer == mail_->rank() ? mine : by_rank.at(peer).data());
      sink_(parcel, slices);
    };
    return Work(std::make_shared<PipeWork>(mail_, std::move(wanted), use));
  }
  std::int64_t posts(int parcel) const override { return posts_[static_cast<std::size_t>(parcel)]; }

 private:
  std::shared_ptr<Mail> mail_;
  std::int64_t channel_;
  Table table_;
  Sink sink_;
  std::vector<std::int64_t> posts_;
};

class PipeWindow final : public comm::ShardWindow {
 public:
  PipeWindow(std::shared_ptr<Mail> mail, std::int64_t channel, Table table, std::vector<const void*> mine)
      : mail_(std::move(mail)), channel_(channel), table_(std::move(table)), mine_(std::move(mine)) {
    mail_->on_request(channel_, [this](int peer, const Header& request) { serve(peer, request); });
  }
  /// Peers may still ask: goes when all have said that they go.
  ~PipeWindow() override {
    for (int peer = 0; peer < mail_->size(); ++peer) mail_->send(peer, {Header::kSlice, channel_, -1, 0, 0}, nullptr);
    for (int peer = 0; peer < mail_->size(); ++peer) {
      if (peer != mail_->rank()) mail_->take({peer, channel_, -1, 0});
    }
  }

  Work fetch(int parcel, void* out, std::string_view) override {
    const std::int64_t number = ++fetches_;
    auto* to = static_cast<std::byte*>(out);
    std::vector<Mail::Key> wanted;
    for (int peer = 0; peer < mail_->size(); ++peer) {
      const std::size_t nbytes = table_.nbytes(parcel, peer);
      if (nbytes == 0) continue;
      if (peer == mail_->rank()) {
        std::memcpy(to + table_.offset(parcel, peer), mine_[static_cast<std::size_t>(parcel)], nbytes);
        continue;
      }
      mail_->send(peer, {Header::kRequest, channel_, parcel, number, 0, version_}, nullptr);
      wanted.emplace_back(peer, channel_, parcel, number);
    }
    const auto use = [this, parcel, to](const std::map<int, Bytes>& by_rank) {
      for (const auto& [peer, bytes] : by_rank)
        std::memcpy(to + table_.offset(parcel, peer), bytes.data(), bytes.size());
    };
    return Work(std::make_shared<PipeWork>(mail_, std::move(wanted), use));
  }
  void publish() override {
    std::vector<std::pair<int, Header>> waiting;
    {
      const std::lock_guard lock(mutex_);
      ++version_;
      std::swap(waiting, waiting_);
    }
    for (const auto& [peer, request] : waiting) serve(peer, request);
  }
  bool one_sided() const override { return true; }

 private:
  void serve(int peer, const Header& request) {
    const auto parcel = static_cast<int>(request.parcel);
    {
      const std::lock_guard lock(mutex_);
      if (request.version > version_) {
        waiting_.emplace_back(peer, request);
        return;
      }
    }
    mail_->send(peer,
                {Header::kSlice, channel_, parcel, request.number,
                 static_cast<std::int64_t>(table_.nbytes(parcel, mail_->rank()))},
                mine_[static_cast<std::size_t>(parcel)]);
  }

  std::shared_ptr<Mail> mail_;
  std::int64_t channel_;
  Table table_;
  std::vector<const void*> mine_;
  std::mutex mutex_;
  std::int64_t version_ = 0, fetches_ = 0;
  std::vector<std::pair<int, Header>> waiting_;
};

class PipeTransport final : public comm::ShardTransport {
 public:
  PipeTransport(const Pipes& pipes, int rank) : mail_(std::make_shared<Mail>(pipes, rank)) {}

  std::shared_ptr<comm::ExchangeBoard> make_exchange_board(std::string, std::vector<comm::Parcel> parcels, DType dtype,
                                                           comm::ExchangeBoard::Sink sink) override {
    return std::make_shared<PipeBoard>(mail_, ++channels_, Table{std::move(parcels), element_nbytes(dtype)},
                                       std::move(sink));
  }
  std::shared_ptr<comm::ShardWindow> make_shard_window(std::string, std::vector<comm::Parcel> parcels, DType dtype,
                                                       std::vector<const void*> mine) override {
    return std::make_shared<PipeWindow>(mail_, ++channels_, Table{std::move(parcels), element_nbytes(dtype)},
                                        std::move(mine));
  }
  Work all_gather(const void* in, void* out, std::span<const std::int64_t> counts, DType dtype,
                  const CollectiveOptions&) override {
    const Table table{{{"", {counts.begin(), counts.end()}}}, element_nbytes(dtype)};
    const std::int64_t number = ++collectives_;
    auto* to = static_cast<std::byte*>(out);
    const int rank = mail_->rank();
    const std::size_t mine = table.nbytes(0, rank);
    for (int peer = 0; peer < mail_->size(); ++peer)
      mail_->send(peer, {Header::kSlice, 0, 0, number, static_cast<std::int64_t>(mine)}, in);
    if (mine > 0) std::memmove(to + table.offset(0, rank), in, mine);
    for (int peer = 0; peer < mail_->size(); ++peer) {
      if (peer == rank) continue;
      const Bytes bytes = mail_->take({peer, 0, 0, number});
      if (!bytes.empty()) std::memcpy(to + table.offset(0, peer), bytes.data(), bytes.size());
    }
    return {};
  }
  Work broadcast(void* inout, std::int64_t numel, DType dtype, int root, const CollectiveOptions& options) override {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(mail_->size()), 0);
    counts[static_cast<std::size_t>(root)] = numel;
    return all_gather(inout, inout, counts, dtype, options);
  }
  std::shared_ptr<void> allocate(std::size_t nbytes) override {
    const auto memory = std::make_shared<SharedMemory>(Group().allocate(nbytes));
    return {memory, memory->data()};
  }

 private:
  std::shared_ptr<Mail> mail_;
  std::int64_t channels_ = 0, collectives_ = 0;
};

}  // namespace

Pipes::Pipes(int ranks) : ranks_(ranks), ends_(static_cast<std::size_t>(ranks * ranks)) {
  for (auto& ends : ends_) {
    if (::pipe(ends.data()) != 0) throw std::runtime_error("no pipes are left");
  }
}

Pipes::~Pipes() {
  for (const auto& ends : ends_) {
    ::close(ends[0]);
    ::close(ends[1]);
  }
}

std::shared_ptr<comm::ShardTransport> make_pipe_transport(const Pipes& pipes, int rank) {
  return std::make_shared<PipeTransport>(pipes, rank);
}

}  // namespace zero::testing
