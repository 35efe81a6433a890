// Boards and windows: what their ranks agree on, whatever the backend.
#include "comm/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "comm/transfers.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

std::shared_ptr<const ParcelTable> make_table(const Backend& backend, std::string_view function, std::string label,
                                              std::vector<Parcel> parcels, DType dtype) {
  auto table = std::make_shared<ParcelTable>();
  const auto ranks = static_cast<std::size_t>(backend.size());
  for (const Parcel& parcel : parcels) {
    if (parcel.counts.size() != ranks ||
        std::any_of(parcel.counts.begin(), parcel.counts.end(), [](std::int64_t c) { return c < 0; })) {
      throw ConfigError(fmt::format("{}(\"{}\"): counts of parcel \"{}\" are [{}], wanted {} of 0 or more.", function,
                                    label, parcel.label, fmt::join(parcel.counts, ", "), ranks));
    }
    std::vector<std::size_t>& offsets = table->offsets.emplace_back(ranks + 1);
    for (std::size_t r = 0; r < ranks; ++r)
      offsets[r + 1] = offsets[r] + static_cast<std::size_t>(parcel.counts[r]) * element_nbytes(dtype);
  }
  table->label = std::move(label);
  table->dtype = dtype;
  table->parcels = std::move(parcels);
  return table;
}

/// All that must be the same on all ranks, one fact a line.
std::string describe(std::string_view kind, const ParcelTable& table) {
  std::string text =
      fmt::format("{} \"{}\"\n{}\n{} parcels\n", kind, table.label, dtype_name(table.dtype), table.size());
  for (std::size_t p = 0; p < table.size(); ++p) {
    text += fmt::format("parcel {} \"{}\" with counts [{}]\n", p, table.parcels[p].label,
                        fmt::join(table.parcels[p].counts, ", "));
  }
  return text;
}

/// The first lines that differ.
std::pair<std::string_view, std::string_view> first_difference(std::string_view a, std::string_view b) {
  const auto line = [](std::string_view text) { return text.substr(0, text.find('\n')); };
  while (!a.empty() && !b.empty() && line(a) == line(b)) {
    a.remove_prefix(line(a).size() + 1);
    b.remove_prefix(line(b).size() + 1);
  }
  return {a.empty() ? "no more" : line(a), b.empty() ? "no more" : line(b)};
}

/// *Collective.* Throws CommError on every rank when they do not all describe the same.
void agree(Backend& backend, std::string_view kind, const ParcelTable& table) {
  if (backend.size() == 1) return;
  struct Digest {
    std::uint64_t hash;
    std::int64_t nbytes;
    bool operator==(const Digest&) const = default;
  };
  const std::string mine = describe(kind, table);
  const Digest digest{hash_text(mine), static_cast<std::int64_t>(mine.size())};
  std::vector<Digest> digests(static_cast<std::size_t>(backend.size()));
  backend.tell_all(&digest, sizeof(digest), digests.data(), kind);
  if (std::equal(digests.begin() + 1, digests.end(), digests.begin())) return;
  std::int64_t longest = 0;
  for (const Digest& each : digests) longest = std::max(longest, each.nbytes);
  const auto stride = static_cast<std::size_t>(longest);
  std::string padded = mine, all(stride * digests.size(), '\0');
  padded.resize(stride);
  backend.tell_all(padded.data(), stride, all.data(), kind);
  const auto text_of = [&](std::size_t r) {
    return std::string_view(all).substr(r * stride, static_cast<std::size_t>(digests[r].nbytes));
  };
  std::size_t other = 1;
  while (digests[other] == digests[0]) ++other;
  const auto [first, second] = first_difference(text_of(0), text_of(other));
  throw CommError(
      fmt::format("the ranks make different {}s: rank 0 has {}, rank {} has {}. Parcels must be the same on "
                  "all ranks.\n  This is rank {} of {}, with {} \"{}\".",
                  kind, first, other, second, backend.rank(), backend.size(), kind, table.label));
}

/// Where a fetch has to be a call of all ranks.
class OrderedWindow final : public ShardWindow {
 public:
  OrderedWindow(std::shared_ptr<Backend> backend, std::shared_ptr<const ParcelTable> table,
                std::vector<const void*> mine)
      : backend_(std::move(backend)), table_(std::move(table)), mine_(std::move(mine)) {}

  Work fetch(int parcel, void* out, std::string_view for_what) override {
    table_->check("ShardWindow::fetch", parcel, out);
    const Parcel& what = table_->parcels[static_cast<std::size_t>(parcel)];
    label_.assign(what.label).append(" for ").append(for_what);
    Call call;
    call.kind = CollectiveKind::kAllGather;
    call.transport = Transport::kGather;
    call.dtype = table_->dtype;
    call.numel = table_->numel(parcel);
    call.counts = what.counts;
    call.in = mine_[static_cast<std::size_t>(parcel)];
    call.out = out;
    call.label = label_;
    call.input_stable = true;
    const PostingGuard guard(*backend_);
    Work work(backend_->post(call));
    count_fetch(*backend_, *table_, parcel);
    return work;
  }

  void publish() override {}  // the order of the calls says which values are meant
  bool one_sided() const override { return false; }

 private:
  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<const ParcelTable> table_;
  const std::vector<const void*> mine_;
  std::string label_;  ///< reused
};

class HostTransport final : public ShardTransport {
 public:
  explicit HostTransport(Group group) : group_(std::move(group)) {}

  std::shared_ptr<ExchangeBoard> make_exchange_board(std::string label, std::vector<Parcel> parcels, DType dtype,
                                                     ExchangeBoard::Sink sink) override {
    return comm::make_exchange_board(group_, std::move(label), std::move(parcels), dtype, std::move(sink));
  }
  std::shared_ptr<ExchangeBoard> make_summing_board(std::string label, std::vector<Parcel> parcels, DType dtype,
                                                    ExchangeBoard::Sink sink, HostSums sums) override {
    return comm::make_exchange_board(group_, std::move(label), std::move(parcels), dtype, std::move(sink),
                                     std::move(sums));
  }
  std::shared_ptr<ShardWindow> make_shard_window(std::string label, std::vector<Parcel> parcels, DType dtype,
                                                 std::vector<const void*> mine) override {
    return comm::make_shard_window(group_, std::move(label), std::move(parcels), dtype, std::move(mine));
  }
  Work all_gather(const void* in, void* out, std::span<const std::int64_t> counts, DType dtype,
                  const CollectiveOptions& options) override {
    return group_.all_gather(in, out, counts, dtype, options);
  }
  Work broadcast(void* inout, std::int64_t numel, DType dtype, int root, const CollectiveOptions& options) override {
    return group_.broadcast(inout, numel, dtype, root, options);
  }
  std::shared_ptr<void> allocate(std::size_t nbytes) override {
    const auto memory = std::make_shared<SharedMemory>(group_.allocate(nbytes));
    return {memory, memory->data()};
  }

 private:
  Group group_;
};

}  // namespace

bool sends_messages(const Group& group) { return group.backend() == "mpi" || group.backend() == "ucx"; }

std::shared_ptr<ShardTransport> make_host_transport(Group group) {
  return std::make_shared<HostTransport>(std::move(group));
}

void move_together(std::span<const Group> groups) {
  for (const Group& group : groups) {
    for (const Group& other : groups) {
      if (&group != &other) GroupAccess::backend(group)->move_with(GroupAccess::backend(other));
    }
  }
}

std::shared_ptr<ExchangeBoard> make_exchange_board(Group& group, std::string label, std::vector<Parcel> parcels,
                                                   DType dtype, ExchangeBoard::Sink sink, HostSums sums) {
  constexpr std::string_view kFunction = "make_exchange_board";
  Backend& backend = *GroupAccess::backend(group);
  const auto table = make_table(backend, kFunction, std::move(label), std::move(parcels), dtype);
  if (!sink) {
    throw ConfigError(fmt::format("{}(\"{}\"): `sink` is empty; wanted a function.", kFunction, table->label));
  }
  const BackendGuard guard(*backend.lock());
  agree(backend, "exchange board", *table);
  return backend.make_board(table, std::move(sink), std::move(sums));
}

std::shared_ptr<ShardWindow> make_shard_window(Group& group, std::string label, std::vector<Parcel> parcels,
                                               DType dtype, std::vector<const void*> mine) {
  constexpr std::string_view kFunction = "make_shard_window";
  const std::shared_ptr<Backend>& backend = GroupAccess::backend(group);
  const auto table = make_table(*backend, kFunction, std::move(label), std::move(parcels), dtype);
  if (mine.size() != table->size()) {
    throw ConfigError(
        fmt::format("{}(\"{}\"): {} slices for {} parcels.", kFunction, table->label, mine.size(), table->size()));
  }
  for (std::size_t p = 0; p < mine.size(); ++p) {
    if (mine[p] || table->slice_nbytes(static_cast<int>(p), backend->rank()) == 0) continue;
    throw ConfigError(fmt::format("{}(\"{}\"): this rank's slice of {} is null.", kFunction, table->label,
                                  table->text(static_cast<int>(p))));
  }
  const BackendGuard guard(*backend->lock());
  agree(*backend, "shard window", *table);
  if (auto window = backend->make_window(table, mine)) return window;
  return std::make_shared<OrderedWindow>(backend, table, std::move(mine));
}

}  // namespace zero::comm
