#include "observe/step_trace.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/log.h"
#include "base/process_memory.h"
#include "comm/gather_values.h"

namespace zero::observe {
namespace {

using base::Trace;

constexpr int kFirstThread = 1;  ///< tid of the training thread

std::int64_t unix_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

void take_kinds(const storage::Ledger& ledger, std::span<std::int64_t> values) {
  const MemoryReport report = ledger.report();
  for (std::size_t kind = 0; kind < values.size(); ++kind) values[kind] = report.kinds[kind].in_use_nbytes;
}

std::string in_quotes(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// "kind of call", and what it moves.
std::string name_of_call(const Trace& trace, const Trace::Event& event) {
  const std::string &name = trace.names()[event.name], &what = trace.names()[event.what];
  return in_quotes(what.empty() ? name : name + " " + what);
}

bool is_phase(std::string_view name) { return name == "forward" || name == "backward" || name == "step"; }

}  // namespace

StepTrace::StepTrace(const Config::Zerotorch::Trace& options, std::string name, const storage::Ledger& ledger)
    : options_(options),
      name_(std::move(name)),
      ledger_(ledger),
      recorder_(static_cast<std::size_t>(options.max_events), kMemoryKinds,
                [this](std::span<std::int64_t> values) { take_kinds(ledger_, values); }),
      process_(::getpid()) {}

StepTrace::~StepTrace() {
  if (::getpid() != process_) return;  // a forked child's
  if (recorder_.records()) finish();
  if (!finished_ && rank_ == 0) {
    base::log_warning("no trace: training ended after {} steps, and zerotorch.trace.first_step is {}", steps_,
                      options_.first_step);
  }
}

io::FileSystem& StepTrace::watch(io::FileSystem& files) {
  return *traced_files_.emplace_back(io::make_traced_files(files, recorder_));
}

void StepTrace::begin(Group all, std::vector<CommsLog::Part> parts) {
  calls_ = std::make_unique<CommsLog>(Config::CommsLogger{.prof_all = true}, std::move(parts), /*speaks=*/false);
  calls_->set_trace(&recorder_);
  rank_ = all.rank();
  ranks_ = all.size();
  const std::int64_t now_ns = unix_ns(), monotonic_ns = base::monotonic_ns();
  to_common_ns_ = now_ns - monotonic_ns - comm::gather_values(all, now_ns, "clock of traces")[0];
  begin_of_step();
}

void StepTrace::end_training() {
  if (calls_) calls_->set_trace(nullptr);
  calls_.reset();
}

void StepTrace::add_span(std::string_view name, std::string_view what, std::int64_t begin_ns) {
  if (!recorder_.records()) return;
  recorder_.add_span(name, what, begin_ns, base::monotonic_ns());
  resident_.emplace_back(base::monotonic_ns(), base::resident_nbytes());
}

void StepTrace::use_parameter() {
  if (forward_began_ns_ == 0 && backward_began_ns_ == 0 && recorder_.records() && at::GradMode::is_enabled()) {
    forward_began_ns_ = base::monotonic_ns();
  }
}

void StepTrace::begin_backward(bool announced) {
  if (!announced) return;
  if (forward_began_ns_ != 0) add_span("forward", {}, std::exchange(forward_began_ns_, 0));
  backward_began_ns_ = base::monotonic_ns();
}

void StepTrace::end_backward() { add_span("backward", {}, std::exchange(backward_began_ns_, 0)); }

void StepTrace::begin_step() {
  // The program has called the loss's own backward().
  if (forward_began_ns_ != 0) add_span("forward and backward", {}, std::exchange(forward_began_ns_, 0));
  step_began_ns_ = base::monotonic_ns();
}

void StepTrace::end_step(std::int64_t global_steps, bool ends_accumulation) {
  add_span("step", ends_accumulation ? fmt::format("step {}", global_steps) : "micro-batch",
           std::exchange(step_began_ns_, 0));
  if (!ends_accumulation) return;
  ++steps_;
  begin_of_step();
  if (recorder_.records() && steps_ + 1 >= options_.first_step + options_.steps) finish();
}

void StepTrace::begin_of_step() {
  if (!finished_ && !recorder_.records() && steps_ + 1 == options_.first_step) recorder_.start();
}

/// A file that cannot be written is no reason to lose a training run.
void StepTrace::finish() noexcept {
  recorder_.stop();
  finished_ = true;
  try {
    auto& files = io::system_files();
    files.make_folders(options_.path);
    const std::string path = io::join(options_.path, name_), json = text();
    io::replace_text(files, path, json);
    if (rank_ == 0) {
      base::log_info("trace of this rank: {} ({}); open it in https://ui.perfetto.dev", path,
                     human_nbytes(static_cast<std::int64_t>(json.size())));
    }
    if (recorder_.left_out() > 0) {
      base::log_warning(
          "{} leaves out {} events: more than zerotorch.trace.max_events, {}; trace fewer steps, or raise it", path,
          recorder_.left_out(), options_.max_events);
    }
  } catch (const std::exception& error) {
    base::log_warning("no trace: {}", error.what());
  }
}

/// The format is that of "Trace Event Format", as chrome://tracing and Perfetto read it. Times in microseconds.
std::string StepTrace::text() const {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  const auto out = std::back_inserter(text);
  const auto us = [this](std::int64_t ns) { return static_cast<double>(ns + to_common_ns_) * 1e-3; };
  fmt::format_to(out, R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"rank {0}"}}}})", rank_);
  int threads = 1;
  std::int64_t call = 0;
  for (const Trace::Event& event : recorder_.events()) {
    threads = std::max(threads, event.thread + 1);
    const int tid = kFirstThread + event.thread;
    const std::string& name = recorder_.names()[event.name];
    if (event.row == Trace::Row::kThread) {
      fmt::format_to(out,
                     ",\n"
                     R"({{"ph":"X","name":"{}","cat":"{}","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{})",
                     name, is_phase(name) ? "engine" : "part", us(event.begin_ns),
                     static_cast<double>(event.end_ns - event.begin_ns) * 1e-3, rank_, tid);
      const std::string& what = recorder_.names()[event.what];
      if (!what.empty()) fmt::format_to(out, R"(,"args":{{"what":{}}})", in_quotes(what));
      text += '}';
      continue;
    }
    const std::string_view row = event.row == Trace::Row::kDisk ? "disk" : "communication";
    const std::string who = fmt::format(R"("cat":"{}","name":{},"id":"0x{:x}","pid":{},"tid":{})", row,
                                        name_of_call(recorder_, event), ++call, rank_, tid);
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"b",{},"ts":{:.3f},"args":{{"nbytes":{}}}}})",
                   who, us(event.begin_ns), event.nbytes);
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"e",{},"ts":{:.3f}}})",
                   who, us(event.end_ns));
  }
  for (std::size_t i = 0; i < recorder_.samples(); ++i) {
    const Trace::Sample sample = recorder_.sample_at(i);
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"C","name":"memory by kind","ts":{:.3f},"pid":{},"args":{{)",
                   us(sample.at_ns), rank_);
    for (std::size_t kind = 0; kind < sample.values.size(); ++kind) {
      fmt::format_to(out, R"({}"{}":{})", kind > 0 ? "," : "", memory_kind_name(static_cast<MemoryKind>(kind)),
                     sample.values[kind]);
    }
    text += "}}";
  }
  for (const auto& [at_ns, nbytes] : resident_) {
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"C","name":"process memory","ts":{:.3f},"pid":{},"args":{{"resident":{}}}}})",
                   us(at_ns), rank_, nbytes);
  }
  for (int thread = 0; thread < threads; ++thread) {
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                   rank_, kFirstThread + thread, thread == 0 ? "training thread" : fmt::format("thread {}", thread));
  }
  const nlohmann::json facts = {{"zerotorch", ZERO_VERSION}, {"rank", rank_},
                                {"ranks", ranks_},           {"first_step", options_.first_step},
                                {"steps", options_.steps},   {"events_left_out", recorder_.left_out()}};
  return text + "\n],\"metadata\":" + facts.dump() + "}\n";
}

}  // namespace zero::observe
