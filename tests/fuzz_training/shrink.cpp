#include "campaign.h"

#include <functional>

namespace zero::fuzz_training {
namespace {

template <class T>
void without_each(const Case& c, std::vector<T>& (*list)(Case&), std::size_t keep, std::vector<Case>& out) {
  Case copy = c;
  const std::size_t count = list(copy).size();
  for (std::size_t i = keep; i < count; ++i) {
    Case smaller = c;
    auto& from = list(smaller);
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
    out.push_back(std::move(smaller));
  }
}

/// The case with one thing changed, if that is allowed and changes anything.
void with(const Case& c, const std::function<void(Case&)>& change, std::vector<Case>& out) {
  Case changed = c;
  change(changed);
  for (auto& run : changed.runs) {
    if (!allowed(changed.program, run.before) || !allowed(changed.program, run.after)) return;
  }
  if (text_of(changed) != text_of(c)) out.push_back(std::move(changed));
}

void simpler_setting(const Case& c, std::size_t r, Setting Run::*part, std::vector<Case>& out) {
  const auto set = [&](const std::function<void(Setting&)>& change) {
    with(
        c, [&](Case& changed) { change(changed.runs[r].*part); }, out);
  };
  set([](Setting& s) { s.step_in_backward = false; });
  set([](Setting& s) { s = {.ranks = s.ranks, .stage = s.stage, .node_shared = s.node_shared}; });
  for (const int ranks : {1, 2}) set([ranks](Setting& s) { s.ranks = std::min(s.ranks, ranks); });
  set([](Setting& s) { s.jitter = s.observer = false; });
  set([](Setting& s) { s.nvme = s.speculative = false; });
  set([](Setting& s) { s.speculative = false; });
  set([](Setting& s) { s.parameters_on_host = false; });
  set([](Setting& s) { s.host_percent = 100; });
  set([](Setting& s) { s.progress_thread = false; });
  set([](Setting& s) { s.overlap = false; });
  set([](Setting& s) { s.tiny_buckets = false; });
  set([](Setting& s) { s.persistence = 0; });
  set([](Setting& s) { s.little_live = false; });
  set([](Setting& s) { s.stage = 0; });
  set([](Setting& s) { s.node_shared = false; });
}

/// Everything one step smaller, the largest steps first.
std::vector<Case> candidates(const Case& c) {
  std::vector<Case> out;
  if (c.runs.size() > 1)
    without_each<Run>(
        c, [](Case& x) -> std::vector<Run>& { return x.runs; }, 0, out);
  const auto count = c.program.events.size();
  for (std::size_t part = count / 2; part >= 2; part /= 2) {
    for (std::size_t i = 0; i + part <= count; i += part) {
      with(
          c,
          [&](Case& x) {
            auto& events = x.program.events;
            events.erase(events.begin() + static_cast<std::ptrdiff_t>(i),
                         events.begin() + static_cast<std::ptrdiff_t>(i + part));
          },
          out);
    }
  }
  without_each<Event>(
      c, [](Case& x) -> std::vector<Event>& { return x.program.events; }, 0, out);
  without_each<Layer>(
      c, [](Case& x) -> std::vector<Layer>& { return x.program.layers; }, 1, out);
  if (c.program.is_gan())
    without_each<Layer>(
        c, [](Case& x) -> std::vector<Layer>& { return x.program.generator; }, 1, out);
  with(
      c, [](Case& x) { x.program.clipping = 0; }, out);
  with(
      c, [](Case& x) { x.program.unit_numel = 0; }, out);
  with(
      c, [](Case& x) { x.program.groups = Groups::kNone; }, out);
  with(
      c, [](Case& x) { x.program.bf16 = false; }, out);
  with(
      c, [](Case& x) { x.program.frozen_at_start = -1; }, out);
  with(
      c, [](Case& x) { x.program.unused_zero = false; }, out);
  for (const int blocks : {1, 2})
    with(
        c, [&](Case& x) { x.program.blocks = std::min(x.program.blocks, blocks); }, out);
  for (const int block : {1, 2, 3, 4})
    with(
        c, [&](Case& x) { x.program.block = std::min(x.program.block, block); }, out);
  with(
      c, [](Case& x) { x.program.batch = 1; }, out);
  with(
      c, [](Case& x) { x.program.dim = 3; }, out);
  for (std::size_t i = 0; i < count; ++i) {
    with(
        c, [&](Case& x) { x.program.events[i].loss_backward = false; }, out);
    with(
        c, [&](Case& x) { x.program.events[i].penalty = Ingredient::kCount; }, out);
    if (c.program.events[i].kind == Ingredient::kTrain) continue;
    with(
        c, [&](Case& x) { x.program.events[i].mode = 0; }, out);
    with(
        c, [&](Case& x) { x.program.events[i].target = 0; }, out);
  }
  for (std::size_t i = 1; i < c.program.layers.size(); ++i)
    with(
        c, [&](Case& x) { x.program.layers[i].kind = Ingredient::kLinear; }, out);
  for (std::size_t r = 0; r < c.runs.size(); ++r) {
    simpler_setting(c, r, &Run::before, out);
    if (c.program.has(Ingredient::kResume)) simpler_setting(c, r, &Run::after, out);
  }
  return out;
}

}  // namespace

Case shrink(Case failing, Verdict& verdict) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    const auto all = candidates(failing);
    // A group each, as an exception would end the others': but stop at the first that fails alike.
    for (const Case& candidate : all) {
      const Verdict now = run_cases({candidate}).front();
      if (now.kind != verdict.kind) continue;
      failing = candidate;
      verdict = now;
      smaller = true;
      break;
    }
  }
  return failing;
}

}  // namespace zero::fuzz_training
