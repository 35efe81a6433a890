#include "comm/call_log.h"

#include "base/clock.h"
#include "base/log.h"

namespace zero::comm {
namespace {

constexpr std::size_t kMostEntries = 16'384;  ///< then labels are no longer told apart: a program may invent them
constexpr double kBitsOfByte = 8;

double seconds_of(std::int64_t ns) { return static_cast<double>(ns) / base::kNanosPerSecond; }

}  // namespace

double algorithm_bandwidth(std::int64_t nbytes, double seconds) {
  return seconds > 0 ? static_cast<double>(nbytes) / seconds : 0;
}

double bus_bandwidth(CollectiveKind kind, int ranks, double algorithm_bandwidth) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return algorithm_bandwidth * others;
    case CollectiveKind::kAllReduce:
      return algorithm_bandwidth * 2 * others;
    default:
      return ranks > 1 ? algorithm_bandwidth : 0;
  }
}

CallLog::Ticket CallLog::begin(CollectiveKind kind, std::int64_t nbytes, std::string_view label, bool one_sided,
                               std::int64_t begin_ns) {
  if (!(options_.kinds >> static_cast<int>(kind) & 1)) return {};
  const std::lock_guard lock(mutex_);
  if (paused_) return {};
  if (entries_.size() >= kMostEntries) label = "...";
  const std::uint64_t hash = hash_text(label);
  const auto [found, is_new] =
      index_.try_emplace({kind, one_sided, hash, nbytes}, static_cast<std::int32_t>(entries_.size()));
  if (is_new) {
    LoggedCalls& entry = entries_.emplace_back();
    entry.kind = kind;
    entry.one_sided = one_sided;
    entry.label = label;
    entry.label_hash = hash;
    entry.nbytes = nbytes;
    entry.seconds.assign(LoggedCalls::kKept, -1.0f);
  }
  LoggedCalls& entry = entries_[static_cast<std::size_t>(found->second)];
  entry.seconds[static_cast<std::size_t>(entry.begun % LoggedCalls::kKept)] = -1.0f;
  return {found->second, entry.begun++, begin_ns};
}

void CallLog::end(const Ticket& ticket, std::int64_t moving_ns) noexcept {
  if (ticket.entry < 0) return;
  const std::int64_t ns = base::monotonic_ns() - ticket.begin_ns;
  const std::lock_guard lock(mutex_);
  LoggedCalls& entry = entries_[static_cast<std::size_t>(ticket.entry)];
  ++entry.ended;
  entry.ns += ns;
  entry.moving_ns += moving_ns;
  if (ticket.number >= entry.begun - LoggedCalls::kKept) {
    entry.seconds[static_cast<std::size_t>(ticket.number % LoggedCalls::kKept)] = static_cast<float>(seconds_of(ns));
  }
  if (trace_) {
    trace_->add_call(base::Trace::Row::kCommunication, kind_name(entry.kind), entry.label, ticket.begin_ns,
                     ticket.begin_ns + ns, entry.nbytes);
  }
  if (!options_.verbose) return;
  try {
    const double bandwidth = algorithm_bandwidth(entry.nbytes, seconds_of(ns));
    base::log_info("{} {} \"{}\": {} bytes in {:.3f} ms, {:.2f} Gbit/s, bus {:.2f} Gbit/s", options_.group,
                   kind_name(entry.kind), entry.label, entry.nbytes, seconds_of(ns) * 1e3,
                   bandwidth * kBitsOfByte * 1e-9,
                   bus_bandwidth(entry.kind, options_.ranks, bandwidth) * kBitsOfByte * 1e-9);
  } catch (...) {
    // Out of memory: a line less.
  }
}

std::vector<LoggedCalls> CallLog::calls() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

void CallLog::set_trace(base::Trace* trace) {
  const std::lock_guard lock(mutex_);
  trace_ = trace;
}

void CallLog::pause(bool on) {
  const std::lock_guard lock(mutex_);
  paused_ = on;
}

}  // namespace zero::comm
