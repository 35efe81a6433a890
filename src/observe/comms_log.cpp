#include "observe/comms_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>

#include "base/log.h"
#include "comm/backend.h"
#include "comm/gather_values.h"

namespace zero {
namespace {

comm::CollectiveKind kind_of(std::string_view name) {
  using enum comm::CollectiveKind;
  for (const auto kind : {kAllGather, kReduceScatter, kAllReduce, kBroadcast, kBarrier}) {
    if (comm::kind_name(kind) == name) return kind;
  }
  return kBarrier;
}

constexpr double kGbit = 1e9 / 8;  ///< bytes

}  // namespace

double CollectiveRecord::algorithm_bandwidth() const {
  return comm::algorithm_bandwidth(nbytes, calls > 0 ? seconds / static_cast<double>(calls) : 0);
}

double CollectiveRecord::bus_bandwidth() const {
  return comm::bus_bandwidth(kind_of(operation), ranks, algorithm_bandwidth());
}

std::string CommsSummary::to_string() const {
  const auto name_of = [](const auto& one) {
    return one.label.empty() ? one.operation : one.operation + " " + one.label;
  };
  constexpr std::string_view kFetch = " (fetch)";
  std::size_t width = 28;
  for (const auto& one : records) width = std::max(width, name_of(one).size() + kFetch.size());
  // The columns that both tables have.
  const auto begin = [&](const std::string& name, const auto& group, const auto& nbytes, const auto& calls) {
    return fmt::format("{:<{}}  {:<14}  {:>12}  {:>8}", name, width, group, nbytes, calls);
  };
  std::string text = begin("collective", "group", "bytes", "calls");
  text += fmt::format("  {:>11}  {:>10}  {:>9}  {:>12}  {:>12}\n", "total ms", "mean ms", "moving ms", "algbw Gbit/s",
                      "busbw Gbit/s");
  for (const auto& one : records) {
    const double mean = one.seconds / static_cast<double>(std::max<std::int64_t>(one.calls, 1));
    text += begin(name_of(one) + std::string(one.one_sided ? kFetch : ""), one.group, one.nbytes, one.calls);
    text += fmt::format("  {:>11.2f}  {:>10.4f}  {:>9.2f}  {:>12.3f}  {:>12.3f}\n", one.seconds * 1e3, mean * 1e3,
                        one.moving_seconds * 1e3, one.algorithm_bandwidth() / kGbit, one.bus_bandwidth() / kGbit);
  }
  if (stragglers.empty()) return text;
  text += '\n' + begin("waiting for the slowest rank", "group", "bytes", "calls");
  text += fmt::format("  {:>11}  {:>12}  {:>12}  {:>11}\n", "itself ms", "straggler ms", "slowest rank", "waited most");
  for (const auto& one : stragglers) {
    text += begin(name_of(one), one.group, one.nbytes, one.calls);
    text += fmt::format("  {:>11.2f}  {:>12.2f}  {:>12}  rank {}, {:.2f} ms\n", one.communication_seconds * 1e3,
                        one.straggler_seconds * 1e3, one.slowest_rank, one.fastest_rank, one.most_seconds * 1e3);
  }
  return text;
}

namespace observe {
namespace {

using comm::CollectiveKind;
using comm::LoggedCalls;

/// DeepSpeed's longer names begin with ours: "all_gather_into_tensor".
bool names(std::string_view text, std::string_view kind) {
  return text.starts_with(kind) && (text.size() == kind.size() || text[kind.size()] == '_');
}

std::uint32_t kinds_of(const Config::CommsLogger& options) {
  using enum CollectiveKind;
  std::uint32_t kinds = 0;
  for (const auto kind : {kAllGather, kReduceScatter, kAllReduce, kBroadcast, kBarrier}) {
    const bool named =
        std::ranges::any_of(options.prof_ops, [&](const auto& op) { return names(op, comm::kind_name(kind)); });
    if (options.prof_all || named) kinds |= 1u << static_cast<int>(kind);
  }
  return kinds;
}

/// One row of a table: with or without its label.
using RowKey = std::tuple<CollectiveKind, bool, std::int64_t, std::string>;
RowKey row_of(const LoggedCalls& calls, bool by_label) {
  return {calls.kind, calls.one_sided, calls.nbytes, by_label ? calls.label : std::string()};
}

/// What a rank tells the others of calls with one kind, label and size.
struct Sample {
  std::uint64_t kind = 0, label_hash = 0;
  std::int64_t nbytes = 0, begun = 0;
  std::array<float, LoggedCalls::kKept> seconds{};

  bool same_calls(const Sample& other) const {
    return kind == other.kind && label_hash == other.label_hash && nbytes == other.nbytes;
  }
};

std::vector<Sample> samples_of(const std::vector<LoggedCalls>& all) {
  std::vector<Sample> samples;
  for (const LoggedCalls& calls : all) {
    if (calls.one_sided) continue;
    Sample& sample = samples.emplace_back();
    sample.kind = static_cast<std::uint64_t>(calls.kind);
    sample.label_hash = calls.label_hash;
    sample.nbytes = calls.nbytes;
    sample.begun = calls.begun;
    std::ranges::copy(calls.seconds, sample.seconds.begin());
  }
  return samples;
}

/// By rank. *Collective.*
std::vector<std::vector<Sample>> gather_samples(Group& group, const std::vector<Sample>& mine) {
  const auto nbytes = static_cast<std::int64_t>(mine.size() * sizeof(Sample));
  const std::vector<std::int64_t> counts = comm::gather_values(group, nbytes, "comms summary");
  std::vector<Sample> all(static_cast<std::size_t>(std::reduce(counts.begin(), counts.end())) / sizeof(Sample));
  group.all_gather(mine.data(), all.data(), counts, DType::kByte, {.label = "comms summary"}).wait();
  std::vector<std::vector<Sample>> by_rank;
  auto next = all.begin();
  for (const std::int64_t count : counts) {
    const auto end = next + static_cast<std::ptrdiff_t>(count / static_cast<std::int64_t>(sizeof(Sample)));
    by_rank.emplace_back(next, end);
    next = end;
  }
  return by_rank;
}

/// What comparing calls of all ranks adds up to.
struct Compared {
  std::int64_t calls = 0;
  double shortest = 0;
  std::vector<double> more;  ///< by rank: than the shortest
};

void compare(const std::vector<const Sample*>& ranks, Compared& sums) {
  std::int64_t least = ranks[0]->begun, most = least;
  for (const Sample* sample : ranks) {
    least = std::min(least, sample->begun);
    most = std::max(most, sample->begun);
  }
  sums.more.resize(ranks.size());
  for (std::int64_t call = std::max<std::int64_t>(0, most - LoggedCalls::kKept); call < least; ++call) {
    const auto at = static_cast<std::size_t>(call % LoggedCalls::kKept);
    const auto seconds_of = [at](const Sample* sample) { return sample->seconds[at]; };
    const float shortest = seconds_of(*std::ranges::min_element(ranks, {}, seconds_of));
    if (shortest < 0) continue;  // one has not ended
    ++sums.calls;
    sums.shortest += shortest;
    for (std::size_t r = 0; r < ranks.size(); ++r) sums.more[r] += seconds_of(ranks[r]) - shortest;
  }
}

}  // namespace

CommsLog::CommsLog(const Config::CommsLogger& options, std::vector<Part> parts, bool speaks)
    : by_label_(options.debug), speaks_(speaks) {
  for (Part& part : parts) {
    const auto& backend = comm::GroupAccess::backend(part.group);
    const bool known = std::ranges::any_of(
        parts_, [&](const Part& other) { return comm::GroupAccess::backend(other.group) == backend; });
    if (known) continue;
    const comm::BackendGuard guard(*backend->lock());
    part.log = backend->call_log();
    if (!part.log) {
      part.log = std::make_shared<comm::CallLog>(
          comm::CallLogOptions{part.name, part.group.size(), kinds_of(options), options.verbose && speaks});
      backend->set_call_log(part.log);
    }
    parts_.push_back(std::move(part));
  }
}

CommsLog::~CommsLog() {
  constexpr int kMineAndTheBackends = 2;
  if (speaks_) {
    try {
      base::log_info("collectives of this rank:\n{}", CommsSummary{records(), {}}.to_string());
    } catch (const std::exception& error) {
      base::log_warning("the table of collectives: {}", error.what());
    }
  }
  for (Part& part : parts_) {
    const auto& backend = comm::GroupAccess::backend(part.group);
    const comm::BackendGuard guard(*backend->lock());
    // Another engine's over the same group goes on.
    if (backend->call_log() == part.log && part.log.use_count() <= kMineAndTheBackends) backend->set_call_log(nullptr);
  }
}

void CommsLog::set_trace(base::Trace* trace) {
  for (const Part& part : parts_) part.log->set_trace(trace);
}

std::vector<CollectiveRecord> CommsLog::records() const {
  std::vector<CollectiveRecord> records;
  for (const Part& part : parts_) {
    std::map<RowKey, CollectiveRecord> rows;
    for (const LoggedCalls& calls : part.log->calls()) {
      if (calls.ended == 0) continue;
      CollectiveRecord& row = rows[row_of(calls, by_label_)];
      row.group = part.name;
      row.ranks = part.group.size();
      row.operation = comm::kind_name(calls.kind);
      row.one_sided = calls.one_sided;
      row.label = by_label_ ? calls.label : std::string();
      row.nbytes = calls.nbytes;
      row.calls += calls.ended;
      row.seconds += static_cast<double>(calls.ns) * 1e-9;
      row.moving_seconds += static_cast<double>(calls.moving_ns) * 1e-9;
    }
    for (auto& [key, row] : rows) records.push_back(std::move(row));
  }
  return records;
}

std::vector<StragglerRecord> CommsLog::stragglers(Part& part) const {
  const std::vector<LoggedCalls> calls = part.log->calls();
  const auto by_rank = gather_samples(part.group, samples_of(calls));
  std::map<RowKey, Compared> rows;
  for (const Sample& first : by_rank[0]) {  // in one order on every rank, for the same sums
    std::vector<const Sample*> same;
    for (const auto& samples : by_rank) {
      const auto found = std::ranges::find_if(samples, [&](const Sample& one) { return one.same_calls(first); });
      if (found != samples.end()) same.push_back(&*found);
    }
    if (same.size() < by_rank.size()) continue;  // only what all ranks have called
    const auto mine = std::ranges::find_if(calls, [&](const LoggedCalls& one) {
      return !one.one_sided && static_cast<std::uint64_t>(one.kind) == first.kind &&
             one.label_hash == first.label_hash && one.nbytes == first.nbytes;
    });
    compare(same, rows[row_of(*mine, by_label_)]);
  }
  std::vector<StragglerRecord> records;
  for (const auto& [key, sums] : rows) {
    if (sums.calls == 0) continue;
    const auto [least, most] = std::ranges::minmax_element(sums.more);
    StragglerRecord& row = records.emplace_back();
    row.group = part.name;
    row.operation = comm::kind_name(std::get<CollectiveKind>(key));
    row.label = std::get<std::string>(key);
    row.nbytes = std::get<std::int64_t>(key);
    row.calls = sums.calls;
    row.communication_seconds = sums.shortest;
    row.straggler_seconds = std::reduce(sums.more.begin(), sums.more.end()) / static_cast<double>(sums.more.size());
    row.slowest_rank = static_cast<int>(least - sums.more.begin());
    row.fastest_rank = static_cast<int>(most - sums.more.begin());
    row.most_seconds = *most;
  }
  return records;
}

CommsSummary CommsLog::summary() {
  CommsSummary summary{records(), {}};
  for (Part& part : parts_) {
    if (part.group.size() == 1) continue;
    part.log->pause(true);
    const auto of_part = stragglers(part);
    part.log->pause(false);
    summary.stragglers.insert(summary.stragglers.end(), of_part.begin(), of_part.end());
  }
  return summary;
}

}  // namespace observe
}  // namespace zero
