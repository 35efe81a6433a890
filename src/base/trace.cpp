#include "base/trace.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.h"

namespace zero::base {

Trace::Trace(std::size_t most_events, std::size_t values, Sampler sampler)
    : most_events_(most_events), sampler_(std::move(sampler)), now_(values) {}

void Trace::start() {
  const std::lock_guard lock(mutex_);
  begin_ns_ = monotonic_ns();
  this_thread();  // the first
  records_.store(true);
}

void Trace::stop() {
  const std::lock_guard lock(mutex_);
  records_.store(false);
}

void Trace::add_span(std::string_view name, std::string_view what, std::int64_t begin_ns,
                     std::int64_t end_ns) noexcept {
  add(Row::kThread, name, what, begin_ns, end_ns, -1);
  sample();
}

void Trace::add_call(Row row, std::string_view name, std::string_view what, std::int64_t begin_ns, std::int64_t end_ns,
                     std::int64_t nbytes) noexcept {
  add(row, name, what, begin_ns, end_ns, nbytes);
}

void Trace::add(Row row, std::string_view name, std::string_view what, std::int64_t begin_ns, std::int64_t end_ns,
                std::int64_t nbytes) noexcept {
  if (!records()) return;
  try {
    const std::lock_guard lock(mutex_);
    if (!records() || begin_ns < begin_ns_) return;
    if (events_.size() >= most_events_) {
      ++left_out_;
      return;
    }
    events_.push_back({begin_ns, end_ns, nbytes, number_of(name), number_of(what), this_thread(), row});
  } catch (const std::bad_alloc&) {
    ++left_out_;
  }
}

void Trace::sample() noexcept {
  if (!records()) return;
  try {
    const std::lock_guard lock(mutex_);
    if (!records() || samples() >= most_events_) return;
    sampler_(now_);
    if (samples() > 0 && std::ranges::equal(sample_at(samples() - 1).values, now_)) return;
    sampled_.insert(sampled_.end(), now_.begin(), now_.end());
    sampled_at_ns_.push_back(monotonic_ns());
  } catch (const std::bad_alloc&) {  // of what was added, sampled_at_ns_ does not know
    sampled_.resize(samples() * now_.size());
  }
}

Trace::Sample Trace::sample_at(std::size_t index) const {
  return {sampled_at_ns_[index], std::span(sampled_).subspan(index * now_.size(), now_.size())};
}

std::int32_t Trace::number_of(std::string_view name) {
  const auto found = number_of_name_.find(name);
  if (found != number_of_name_.end()) return found->second;
  const auto number = static_cast<std::int32_t>(names_.size());
  names_.emplace_back(name);
  number_of_name_.emplace(name, number);
  return number;
}

std::int32_t Trace::this_thread() {
  return number_of_thread_.try_emplace(::gettid(), static_cast<std::int32_t>(number_of_thread_.size())).first->second;
}

}  // namespace zero::base
