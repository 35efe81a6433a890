#include "campaign.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "interpreter.h"
#include "support/simulated_device.h"
#include "support/simulated_nccl.h"
#include "support/spawn.h"

namespace zero::fuzz_training {
namespace {

namespace fs = std::filesystem;

/// A run of a case, or its part before or after the resume.
struct Task {
  int which = 0;  ///< case
  int run = -1;   ///< -1: plain libtorch
  bool after_resume = false;
  int ranks = 1;
};

/// The files of one campaign, removed at its end.
class Folder {
 public:
  Folder() : path_(fmt::format("/tmp/zero_training_fuzz_{}", getpid())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string records(const Task& t, int rank) const {
    return fmt::format("{}/records_{}_{}_{}_{}", path_, t.which, t.run, t.after_resume, rank);
  }
  std::string checkpoints(const Task& t) const { return fmt::format("{}/checkpoints_{}_{}", path_, t.which, t.run); }

 private:
  std::string path_;
};

void write_records(const std::string& path, const Records& records, const std::string& error) {
  std::ofstream out(path + ".part", std::ios::binary);
  const auto number = [&out](std::uint64_t n) { out.write(reinterpret_cast<const char*>(&n), sizeof(n)); };
  const auto text = [&](const std::string& s) {
    number(s.size()), out.write(s.data(), static_cast<std::streamsize>(s.size()));
  };
  text(error);
  number(records.size());
  for (const auto& [key, values] : records) {
    const auto& [event, micro_batch, what] = key;
    number(static_cast<std::uint64_t>(event)), number(static_cast<std::uint64_t>(micro_batch)), text(what);
    number(values.size());
    out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 8));
  }
  out.close();
  fs::rename(path + ".part", path);
}

/// False: the rank has not come to its end.
bool read_records(const std::string& path, Records& records, std::string& error) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return false;
  const auto number = [&in] {
    std::uint64_t n = 0;
    in.read(reinterpret_cast<char*>(&n), sizeof(n));
    return n;
  };
  const auto text = [&] {
    std::string s(number(), '\0');
    in.read(s.data(), static_cast<std::streamsize>(s.size()));
    return s;
  };
  error = text();
  for (auto left = number(); left > 0; --left) {
    const int event = static_cast<int>(number()), micro_batch = static_cast<int>(number());
    std::string what = text();
    std::vector<double> values(number());
    in.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * 8));
    records[{event, micro_batch, std::move(what)}] = std::move(values);
  }
  return true;
}

std::string text_of_key(const Program& program, const Key& key) {
  const auto& [event, micro_batch, what] = key;
  const auto index = static_cast<std::size_t>(event);
  return fmt::format("event {} ({}), micro-batch {}: {}", event,
                     index < program.events.size() ? name_of(program.events[index].kind) : "the end", micro_batch,
                     what);
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

/// Both sides do the same sums in other orders. With Program::eps() AdamW does not amplify that: values stay within
/// 2e-4 of the largest of their tensor in fp32. In bf16 a rounding that falls the other way costs 2^-8.
bool close(const Program& program, const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  double largest = 0.1;
  for (const double value : a) largest = std::max(largest, std::abs(value));
  const double bound = (program.bf16 ? 2e-2 : 2e-4) * largest;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= bound)) return false;
  return true;
}

std::string text_of_values(const std::vector<double>& values) {
  std::string text;
  for (std::size_t i = 0; i < values.size() && i < 6; ++i) text += fmt::format(" {:.9g}", values[i]);
  return text + (values.size() > 6 ? " ..." : "");
}

template <class Same>
Verdict compare(const char* kind, const Program& program, const std::string& name_a, const Records& a,
                const std::string& name_b, const Records& b, const Same& same) {
  for (const auto& [key, values] : a) {
    const auto other = b.find(key);
    if (other == b.end()) return {kind, fmt::format("{}: only {} has it", text_of_key(program, key), name_a)};
    if (same(values, other->second)) continue;
    std::size_t i = 0;
    while (i < std::min(values.size(), other->second.size()) &&
           same(std::vector{values[i]}, std::vector{other->second[i]}))
      ++i;
    const auto at = [i](const std::vector<double>& list) { return i < list.size() ? list[i] : 0.0; };
    return {kind, fmt::format("{}, element {} of {}: {:.9g} and {:.9g}\n    {}:{}\n    {}:{}",
                              text_of_key(program, key), i, values.size(), at(values), at(other->second), name_a,
                              text_of_values(values), name_b, text_of_values(other->second))};
  }
  for (const auto& [key, values] : b)
    if (!a.contains(key)) return {kind, fmt::format("{}: only {} has it", text_of_key(program, key), name_b)};
  return {};
}

/// Runs the tasks of one number of ranks; returns how many have ended well or with an exception they wrote.
void run_wave(const std::vector<Case>& cases, std::vector<Task> tasks, const Folder& folder,
              std::vector<Verdict>& verdicts) {
  while (!tasks.empty()) {
    const int ranks = tasks.front().ranks;
    const auto body = [&](Group group) {
      at::set_num_threads(1);
      if (on_simulated_device) testing::simulated::start({});  // before the first backward
      testing::simulated::use_nccl(moved_by_nccl);
      if (on_simulated_device) testing::simulated::use_kernels(true);
      for (const Task& task : tasks) {
        const Case& c = cases[static_cast<std::size_t>(task.which)];
        Records records;
        try {
          records = task.run < 0 ? run_plain(c.program)
                                 : run_zero(c.program, c.runs[static_cast<std::size_t>(task.run)], task.after_resume,
                                            group, folder.checkpoints(task));
        } catch (const std::exception& error) {
          write_records(folder.records(task, group.rank()), {}, error.what());
          throw;  // the group is lost
        }
        write_records(folder.records(task, group.rank()), records, "");
      }
    };
    const auto results = testing::spawn(
        ranks, body, {.timeout = std::chrono::seconds(30) + std::chrono::milliseconds(500) * tasks.size()});
    std::size_t done = 0;
    for (; done < tasks.size(); ++done) {
      std::string text;
      bool complete = true, thrown = false;
      for (int rank = 0; rank < ranks; ++rank) {
        Records records;
        std::string error;
        const bool there = read_records(folder.records(tasks[done], rank), records, error);
        complete = complete && there && error.empty();
        thrown = thrown || !error.empty();
        if (!error.empty()) text += fmt::format("\n    rank {}: {}", rank, error.substr(0, 700));
      }
      if (complete) continue;
      for (const auto& result : results)
        if (result.signal || result.timed_out)
          text += fmt::format("\n    rank {}: signal {}{}", result.rank, result.signal,
                              result.timed_out ? ", timed out" : "");
      auto& verdict = verdicts[static_cast<std::size_t>(tasks[done].which)];
      const std::string where = tasks[done].run < 0 ? "plain libtorch"
                                                    : fmt::format("run {}{}", tasks[done].run,
                                                                  tasks[done].after_resume ? " after the resume" : "");
      if (verdict.ok()) verdict = {tasks[done].run < 0 ? "invalid" : thrown ? "exception" : "ended", where + text};
      break;
    }
    if (done == tasks.size()) {
      for (const auto& result : results)
        if (!result.ok) {
          auto& verdict = verdicts[static_cast<std::size_t>(tasks.back().which)];
          if (verdict.ok())
            verdict = {"ended", fmt::format("behind the last program of {} ranks: signal {} {}", ranks, result.signal,
                                            result.error)};
        }
      return;
    }
    tasks.erase(tasks.begin(), tasks.begin() + static_cast<std::ptrdiff_t>(done) + 1);
  }
}

/// What all ranks of a run have shown, before and after its resume. Ranks must agree where they show the
/// same.
Verdict gather(const Case& c, Task task, const Folder& folder, Records& records) {
  for (const bool after : {false, true}) {
    if (after && Interpreter::resume_of(c.program) < 0) continue;
    task.after_resume = after;
    const auto& run = c.runs[static_cast<std::size_t>(task.run)];
    const int ranks = after ? run.after.ranks : run.before.ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      Records mine;
      std::string error;
      if (!read_records(folder.records(task, rank), mine, error)) return {"ended", "no result"};
      for (auto& [key, values] : mine) {
        const auto [there, is_new] = records.try_emplace(key, values);
        if (!is_new && !same_bits(there->second, values))
          return {"ranks",
                  fmt::format("run {}: rank {} has other bits than those before it: {}\n    before:{}\n    rank {}:{}",
                              task.run, rank, text_of_key(c.program, key), text_of_values(there->second), rank,
                              text_of_values(values))};
      }
    }
  }
  return {};
}

Verdict judge(const Case& c, int which, const Folder& folder) {
  Records plain, first;
  std::string error;
  if (!read_records(folder.records({.which = which}, 0), plain, error)) return {"invalid", "no plain result"};
  for (std::size_t r = 0; r < c.runs.size(); ++r) {
    Records records;
    const std::string name = fmt::format("run {}", r);
    if (auto verdict = gather(c, {.which = which, .run = static_cast<int>(r)}, folder, records); !verdict.ok())
      return verdict;
    auto verdict = compare("difference", c.program, "plain", plain, name, records,
                           [&](const auto& a, const auto& b) { return close(c.program, a, b); });
    if (verdict.ok() && r > 0 && c.program.one_curve())
      verdict = compare("bits", c.program, "run 0", first, name, records, same_bits);
    if (!verdict.ok()) return verdict;
    if (r == 0) first = std::move(records);
  }
  return {};
}

}  // namespace

std::vector<Verdict> run_cases(const std::vector<Case>& cases) {
  const Folder folder;
  std::vector<Verdict> verdicts(cases.size());
  std::vector<Task> plain;
  for (int i = 0; i < static_cast<int>(cases.size()); ++i) plain.push_back({.which = i});
  run_wave(cases, plain, folder, verdicts);
  for (const bool after : {false, true}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      std::vector<Task> tasks;
      for (int i = 0; i < static_cast<int>(cases.size()); ++i) {
        const Case& c = cases[static_cast<std::size_t>(i)];
        if (!verdicts[static_cast<std::size_t>(i)].ok() || (after && Interpreter::resume_of(c.program) < 0)) continue;
        for (int r = 0; r < static_cast<int>(c.runs.size()); ++r) {
          const Run& run = c.runs[static_cast<std::size_t>(r)];
          if ((after ? run.after : run.before).ranks == ranks) tasks.push_back({i, r, after, ranks});
        }
      }
      if (!tasks.empty()) run_wave(cases, tasks, folder, verdicts);
    }
  }
  for (std::size_t i = 0; i < cases.size(); ++i)
    if (verdicts[i].ok()) verdicts[i] = judge(cases[i], static_cast<int>(i), folder);
  return verdicts;
}

std::string text_of(const Case& c) {
  std::string text = text_of(c.program);
  for (std::size_t r = 0; r < c.runs.size(); ++r) {
    text += fmt::format("  run {}: {}\n", r, text_of(c.runs[r].before));
    if (c.program.has(Ingredient::kResume)) text += fmt::format("    resumed by {}\n", text_of(c.runs[r].after));
  }
  return text;
}

}  // namespace zero::fuzz_training
