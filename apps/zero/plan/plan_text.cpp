// `zero plan` for people.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/plan_result.h"
#include "text/colour.h"
#include "text/text_format.h"

namespace zero::app {
namespace {

// With four stages as wide as a terminal of 80 columns.
constexpr int kLabel = 36, kCell = 11;

/// One unit for a whole table, so that columns can be compared.
struct Scale {
  const char* name;
  double nbytes;
};
Scale scale_for(double largest_nbytes) {
  if (largest_nbytes >= 1e13) return {"TB (10^12 bytes)", 1e12};
  if (largest_nbytes >= 1e10) return {"GB (10^9 bytes)", 1e9};
  return {"MB (10^6 bytes)", 1e6};
}

/// "1,234.56", "-0.25".
std::string in_cell(double value) {
  if (value < 0) return "-" + in_cell(-value);
  const std::string text = fmt::format("{:.2f}", value);
  const std::size_t point = text.find('.');
  return with_commas(std::stoll(text)) + text.substr(point);
}

class Table {
 public:
  explicit Table(const PlanResult& result) : result_(result) {
    double largest = 0;
    for (const auto& plan : result.plans) {
      largest = std::max({largest, static_cast<double>(plan.peak_nbytes()), static_cast<double>(plan.host_nbytes),
                          plan.traffic.nbytes});
    }
    scale_ = scale_for(largest);
  }

  void head(const std::string& title) {
    std::string line = fmt::format("{:<{}}", title, kLabel);
    for (const auto& plan : result_.plans) line += fmt::format("{:>{}}", fmt::format("stage {}", plan.stage), kCell);
    text_ += painted(Tone::kHead, line) + '\n';
  }
  void words(std::string_view label, const std::function<std::string(const plan::Plan&)>& word,
             const std::function<Tone(const plan::Plan&)>& tone = {}) {
    text_ += fmt::format("  {:<{}}", label, kLabel - 2);
    for (const auto& plan : result_.plans) {
      const std::string cell = fmt::format("{:>{}}", word(plan), kCell);
      text_ += tone ? painted(tone(plan), cell) : cell;
    }
    text_ += '\n';
  }
  /// Of the steps that were simulated; a row of zeros is left out.
  void of_steps(std::string_view label, const std::function<double(const plan::StepSimulation&)>& value,
                const std::function<std::string(double)>& cell) {
    const auto is_zero = [&](const plan::StepSimulation& step) { return value(step) == 0; };
    if (std::ranges::all_of(result_.steps, is_zero)) return;
    text_ += fmt::format("  {:<{}}", label, kLabel - 2);
    for (const auto& step : result_.steps)
      text_ += fmt::format("{:>{}}", is_zero(step) ? std::string("-") : cell(value(step)), kCell);
    text_ += '\n';
  }
  /// Bytes in the table's unit; a row of zeros is left out.
  void nbytes(std::string_view label, const std::function<double(const plan::Plan&)>& value) {
    const auto is_zero = [&](const plan::Plan& plan) { return value(plan) == 0; };
    if (std::all_of(result_.plans.begin(), result_.plans.end(), is_zero)) return;
    words(label, [&](const plan::Plan& plan) {
      return is_zero(plan) ? std::string("-") : in_cell(value(plan) / scale_.nbytes);
    });
  }
  const char* unit() const { return scale_.name; }
  std::string take() { return std::move(text_); }

 private:
  const PlanResult& result_;
  Scale scale_{};
  std::string text_;
};

std::string with_gib(std::int64_t nbytes) {
  const double gib = static_cast<double>(nbytes) / (1 << 30);
  return gib >= 1024 ? fmt::format("{} ({:.2f} TiB)", human_nbytes(nbytes), gib / 1024)
                     : fmt::format("{} ({:.2f} GiB)", human_nbytes(nbytes), gib);
}

std::string seconds_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
}

std::string head_text(const PlanResult& result) {
  const auto& model = result.request.model;
  const plan::Plan& plan = result.plans.front();
  std::string text = fmt::format("{}: {} parameters", model.name, with_commas(plan.parameters_numel));
  if (const auto& t = model.transformer) {
    text += fmt::format(" in {} of width {}, {}, vocabulary {}", counted(t->layers, "layer"), t->dim,
                        counted(t->heads, "head"), with_commas(t->vocab));
  } else {
    text += ", laid out as 32 equal layers";
  }
  const std::string gpus = result.request.cluster.gpus ? counted(plan.ranks, "GPU") + " of " : "";
  std::string run = fmt::format("{} on {}{}, {}, micro-batch {}", counted(plan.ranks, "rank"), gpus,
                                counted(plan.nodes, "host"), dtype_name(plan.param_dtype), plan.micro_batch);
  if (model.transformer) run += fmt::format(" of {} tokens", with_commas(model.transformer->seq));
  if (result.request.seq_of_file) run += " (the file's longest; --seq N for fewer)";
  return hanging("model", text) + hanging("run", run + fmt::format(", accumulation {}", plan.accumulation_steps));
}

/// What the configuration asks for, and the model does not use.
std::string notice_text(const PlanResult& result) {
  using Device = Config::OffloadDevice;
  const auto& model = result.request.model;
  const Config& config = result.request.config;
  const bool checkpoints = model.transformer && model.transformer->checkpointing;
  const bool offloads = config.zerotorch.offload_activations.device == Device::kNvme ||
                        (result.request.cluster.gpus && config.activations_in_host_memory());
  if (!offloads || checkpoints) return "";
  return "notice     zerotorch.offload_activations takes what checkpointed layers keep:\n"
         "           without --recompute nothing\n";
}

std::string activations_text(const PlanResult& result) {
  if (!result.request.model.transformer) {
    return "activations are not in it: give --layers and --dim, or --model\n";
  }
  const plan::Plan& plan = result.plans.front();
  plan::Transformer shape = *result.request.model.transformer;
  const auto peak = [&](bool checkpointing) {
    shape.checkpointing = checkpointing;
    return human_nbytes(plan::activations(shape, plan.micro_batch, plan.param_dtype).peak_nbytes);
  };
  return fmt::format("activations (estimate): {} a micro-batch, {} with checkpointing\n", peak(false), peak(true));
}

double peak_of(const plan::Plan& plan, MemoryKind kind) { return static_cast<double>(plan.rank[kind].peak_nbytes); }

/// What the ZeRO paper calls model states, of this engine.
double states_of(const plan::Plan& plan) {
  return peak_of(plan, MemoryKind::kParameters) + peak_of(plan, MemoryKind::kMaster) +
         peak_of(plan, MemoryKind::kOptimizer) + peak_of(plan, MemoryKind::kGradients);
}

double states_on_paper(const plan::Plan& plan) {
  return plan::model_states(static_cast<double>(plan.parameters_numel), plan.stage, plan.ranks).total_nbytes();
}

void add_states_rows(Table& table) {
  table.head(fmt::format("model states of a rank in {:.2}", table.unit()));
  table.nbytes("here", states_of);
  table.nbytes("as the paper counts, 2 + 2 + 12", states_on_paper);
}

/// Of the rank's GPU, or of host memory.
double peak_in(const plan::Plan& plan, MemoryKind kind, bool of_gpu) {
  const MemoryUse& use = plan.rank[kind];
  return static_cast<double>(of_gpu ? use.peak_device_nbytes : use.peak_nbytes - use.peak_device_nbytes);
}

void add_kind_rows(Table& table, const PlanResult& result, bool of_gpu) {
  using plan::Plan;
  for (const MemoryKind kind :
       {MemoryKind::kParameters, MemoryKind::kMaster, MemoryKind::kOptimizer, MemoryKind::kGradients,
        MemoryKind::kBuckets, MemoryKind::kGather, MemoryKind::kOffload, MemoryKind::kActivations}) {
    const bool bound = std::any_of(result.plans.begin(), result.plans.end(), [kind](const Plan& p) {
      return kind == MemoryKind::kBuckets ? p.buckets_are_bound : kind == MemoryKind::kGather && p.gather_is_bound;
    });
    table.nbytes(fmt::format("{}{}", memory_kind_name(kind), bound ? " (at most)" : ""),
                 [kind, of_gpu](const Plan& p) { return peak_in(p, kind, of_gpu); });
  }
}

void add_rank_rows(Table& table, const PlanResult& result) {
  using plan::Plan;
  const bool gpus = result.request.cluster.gpus;
  table.head(fmt::format("peak of a {} in {}", gpus ? "GPU" : "rank", table.unit()));
  if (gpus) {
    table.words("sums and states are in", [](const Plan& p) { return p.shards_on_gpu ? "GPU" : "host"; });
  } else {
    table.words("parameters are kept", [](const Plan& p) { return p.node_shared ? "shared" : "copying"; });
  }
  add_kind_rows(table, result, gpus);
  table.nbytes("gradients in place of activations",
               [](const Plan& p) { return -static_cast<double>(p.reused_nbytes); });
  table.nbytes("process (estimate)", [](const Plan& p) { return static_cast<double>(p.process_nbytes); });
  table.nbytes("in training", [](const Plan& p) { return static_cast<double>(p.training_nbytes); });
  table.nbytes(result.plans.front().deferred_init ? "in initialize()" : "in initialize(), with its module",
               [](const Plan& p) { return static_cast<double>(p.start_nbytes); });
}

void add_disk_rows(Table& table, const PlanResult& result) {
  using plan::Plan;
  if (result.plans.front().rank.nvme_nbytes == 0) return;
  table.head("on NVMe");
  table.nbytes("file of a rank", [](const Plan& p) { return static_cast<double>(p.rank.nvme_nbytes); });
  table.nbytes("files of a host's ranks, about",
               [](const Plan& p) { return static_cast<double>(p.rank.nvme_nbytes) * p.ranks_per_node; });
  table.nbytes("read in a step", [](const Plan& p) { return p.traffic.nvme_nbytes; });
  table.nbytes("written in a step", [](const Plan& p) { return p.traffic.nvme_written_nbytes; });
}

void add_verdict_row(Table& table, std::int64_t memory_nbytes, const std::function<double(const plan::Plan&)>& needed) {
  if (memory_nbytes <= 0) return;
  const auto fits = [=](const plan::Plan& p) { return needed(p) <= static_cast<double>(memory_nbytes); };
  table.words(
      fmt::format("fits {}", with_gib(memory_nbytes)), [&](const plan::Plan& p) { return fits(p) ? "yes" : "no"; },
      [&](const plan::Plan& p) { return fits(p) ? Tone::kGood : Tone::kBad; });
}

std::string ranks_of_host(const PlanResult& result) {
  const int ranks = result.plans.front().ranks_per_node;
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

void add_host_rows(Table& table, const PlanResult& result) {
  using plan::Plan;
  const auto& cluster = result.request.cluster;
  const auto peak = [](const Plan& p) { return static_cast<double>(p.node_nbytes); };
  if (cluster.gpus) {
    add_verdict_row(table, cluster.gpu_memory_nbytes,
                    [](const Plan& p) { return static_cast<double>(p.peak_nbytes()); });
    table.head(fmt::format("in host memory, {:.2}", table.unit()));
    add_kind_rows(table, result, false);
    table.nbytes("a rank with its process (estimate)",
                 [](const Plan& p) { return static_cast<double>(p.host_nbytes); });
    table.nbytes(fmt::format("a host with {}", ranks_of_host(result)), peak);
  } else {
    table.head(fmt::format("peak of a host with {}", ranks_of_host(result)));
    table.nbytes(fmt::format("host memory, {:.2}", table.unit()), peak);
  }
  table.nbytes("an asynchronous checkpoint, on top",
               [](const Plan& p) { return static_cast<double>(p.checkpoint_nbytes) * p.ranks_per_node; });
  add_verdict_row(table, cluster.node_memory_nbytes, peak);
}

void add_traffic_rows(Table& table, const PlanResult& result) {
  using plan::Plan;
  table.head("received by a rank in a step");
  table.nbytes(fmt::format("{:.2}", table.unit()), [](const Plan& p) { return p.traffic.nbytes; });
  table.words("elements, in model sizes x (N-1)/N", [](const Plan& p) {
    const auto& t = p.traffic;
    const double all = static_cast<double>(p.padded_numel) * (p.ranks - 1) / p.ranks;
    return all == 0
               ? std::string("-")
               : fmt::format(
                     "{:.2f}",
                     (t.gathered_numel + t.reduced_numel + t.published_numel + t.whole_numel + t.islands_numel) / all);
  });
  if (result.plans.front().traffic.islands_numel > 0) {
    table.nbytes("of these from other islands (mean)",
                 [](const Plan& p) { return p.traffic.islands_numel * sizeof(float); });
  }
  if (result.plans.front().nodes > 1)
    table.nbytes("of these from other hosts", [](const Plan& p) { return p.traffic.between_hosts_nbytes; });
  if (result.request.cluster.bandwidth_nbytes_per_s <= 0) return;
  table.words(fmt::format("time at {:g} Gbit/s", result.request.cluster.bandwidth_nbytes_per_s * 8 / 1e9),
              [](const Plan& p) { return seconds_text(p.traffic.seconds); });
}

/// What takes time at the speeds that are known.
void add_time_rows(Table& table, const PlanResult& result) {
  using plan::Plan;
  using plan::StepTimes;
  const auto is_none = [&](double StepTimes::*part) {
    return std::all_of(result.plans.begin(), result.plans.end(), [=](const Plan& p) { return p.times.*part == 0; });
  };
  const std::pair<const char*, double StepTimes::*> rows[] = {{"forward and backward", &StepTimes::compute},
                                                              {"between ranks of a host", &StepTimes::between_ranks},
                                                              {"between hosts", &StepTimes::between_hosts},
                                                              {"from host to GPU", &StepTimes::to_device},
                                                              {"from GPU to host", &StepTimes::from_device},
                                                              {"update, at the speed of memory", &StepTimes::update},
                                                              {"disk", &StepTimes::disk}};
  if (std::ranges::all_of(rows, [&](const auto& row) { return is_none(row.second); })) return;
  table.head("seconds of a step, at these speeds");
  for (const auto& [label, part] : rows) {
    if (is_none(part)) continue;
    table.words(label, [part = part](const Plan& p) { return p.times.*part == 0 ? "-" : seconds_text(p.times.*part); });
  }
  table.words("a step, at least", [](const Plan& p) { return seconds_text(p.times.at_least()); });
  if (result.steps.empty())
    table.words("with nothing beside anything", [](const Plan& p) { return seconds_text(p.times.in_turn()); });
}

/// What a simulation of the engine's schedules has found.
void add_step_rows(Table& table, const PlanResult& result) {
  using Step = plan::StepSimulation;
  if (result.steps.empty()) return;
  const auto percent = [](double part) { return fmt::format("{:.0f} %", 100 * part); };
  table.head("a step, simulated");
  table.of_steps(
      "a step", [](const Step& s) { return s.seconds; }, seconds_text);
  table.of_steps(
      "of it forward and backward", [](const Step& s) { return s.compute / s.seconds; }, percent);
  table.of_steps(
      "update, copying gradients", [](const Step& s) { return (s.update + s.copies) / s.seconds; }, percent);
  table.of_steps(
      "waiting for parameters", [](const Step& s) { return s.waits_for_parameters / s.seconds; }, percent);
  table.of_steps(
      "waiting for gradients", [](const Step& s) { return s.waits_for_gradients / s.seconds; }, percent);
  table.of_steps(
      "waiting in collectives", [](const Step& s) { return s.waits_for_ranks / s.seconds; }, percent);
  table.of_steps(
      "links of a host in use", [](const Step& s) { return s.link_use; }, percent);
  table.of_steps(
      "messages that a rank sends", [](const Step& s) { return s.messages; },
      [](double count) { return with_commas(std::llround(count)); });
  if (!result.goodput) return;
  table.of_steps(
      "steps in a day, with failures", [&](const Step& s) { return result.goodput->of_time * 86400 / s.seconds; },
      [](double count) { return with_commas(std::llround(count)); });
}

/// What failures and checkpoints leave of the time.
std::string goodput_text(const PlanResult& result) {
  if (!result.goodput) return "";
  const plan::Goodput& goodput = *result.goodput;
  const plan::Plan& plan = result.plans.front();
  std::string text = fmt::format(
      "{} fail every {}; {:.1f} % of the time is steps that are kept, with a checkpoint every {}",
      counted(plan.nodes, "host"), duration(goodput.mtbf), 100 * goodput.of_time, duration(goodput.interval));
  if (goodput.interval != goodput.best_interval)
    text += fmt::format(" (best: every {})", duration(goodput.best_interval));
  return hanging("failures", text);
}

/// "a GPU needs 10.32 GB of 20.00 GB (18.63 GiB)", of all that is known.
std::string needs_text(const plan::Plan& plan, const plan::Cluster& cluster) {
  std::vector<std::string> needs;
  const auto add = [&](const char* place, std::int64_t nbytes, std::int64_t memory) {
    if (memory > 0) needs.push_back(fmt::format("a {} needs {} of {}", place, human_nbytes(nbytes), with_gib(memory)));
  };
  if (cluster.gpus) add("GPU", plan.peak_nbytes(), cluster.gpu_memory_nbytes);
  add("host", plan.node_nbytes, cluster.node_memory_nbytes);
  if (needs.empty()) return fmt::format("a host needs {}", human_nbytes(plan.node_nbytes));
  return fmt::format("{}", fmt::join(needs, ",\n             "));
}

std::string gpus_text(const PlanResult& result) {
  const auto& cluster = result.request.cluster;
  if (!cluster.gpus) return "";
  std::string text =
      "GPUs       `zero train --device cuda`, or programs with their module on one\n"
      "           (docs/gpu.md). Processes (CUDA, its libraries) are estimates\n";
  const plan::Plan& plan = result.plans[result.judged];
  if (plan.nodes > 1 && plan.shards_on_gpu)
    text += "           Between hosts NCCL moves what is sharded; without it all that is in\n           host memory\n";
  return text;
}

/// Where what fits may not.
std::string margin_text(const plan::Plan& plan, const plan::Cluster& cluster) {
  constexpr double kTight = 0.95;
  const auto memory = static_cast<double>(cluster.gpu_memory_nbytes);
  if (!cluster.gpus || memory <= 0 || static_cast<double>(plan.peak_nbytes()) <= kTight * memory) return "";
  return "           little of the GPU is left: its figures are right to some 4 %\n";
}

std::string suggestion_text(const std::string& head, const plan::Suggestion& suggestion) {
  const std::string then = "then " + plan::needs(suggestion.plan, suggestion.cluster);
  const std::string margin = margin_text(suggestion.plan, suggestion.cluster);
  const auto& changes = suggestion.changes;
  if (changes.size() == 1) return hanging("", fmt::format("{} {}; {}", head, changes.front(), then)) + margin;
  std::string text = hanging("", head);
  for (const std::string& change : changes) text += wrapped("", change, 13);
  return text + hanging("", then) + margin;
}

/// What a suggestion takes beside the memory that computes.
std::string what_is_taken(const plan::Plan& now, const plan::Plan& then) {
  if (then.nodes != now.nodes || then.ranks != now.ranks) return "more hosts";
  if (then.rank.nvme_nbytes > 0) return now.rank.nvme_nbytes > 0 ? "more of the disk" : "a disk";
  return now.shards_on_gpu ? "host memory" : "more host memory";
}

std::string verdict_text(const PlanResult& result) {
  const plan::Plan& judged = result.plans[result.judged];
  const auto& cluster = result.request.cluster;
  const std::int64_t memory = cluster.gpus ? cluster.gpu_memory_nbytes : cluster.node_memory_nbytes;
  std::string text = gpus_text(result);
  text += fmt::format("verdict    stage {} {}: {}\n", judged.stage,
                      result.fits ? painted(Tone::kGood, "fits") : painted(Tone::kBad, "does not fit"),
                      needs_text(judged, cluster));
  if (result.fits) return text + margin_text(judged, cluster);
  if (result.request.seq_of_file) {
    text += fmt::format(
        "           samples of {} tokens are the model's longest: plan those that you train on with --seq\n",
        with_commas(result.request.model.transformer->seq));
  }
  const bool starts_too_large = !result.suggestion && judged.start_nbytes > memory;
  if (!judged.deferred_init && (starts_too_large || judged.start_nbytes > judged.training_nbytes)) {
    text += fmt::format("           inside initialize() every rank has the whole fp32 module, {}\n",
                        human_nbytes(judged.module_nbytes));
  }
  if (!result.suggestion && !result.in_place) return text + "           no change that the plan knows makes it fit\n";
  if (result.suggestion) text += suggestion_text("smallest change that fits:", *result.suggestion);
  if (result.in_place) {
    const std::string without = result.suggestion
                                    ? fmt::format("or without {}:", what_is_taken(judged, result.suggestion->plan))
                                    : "smallest change that fits:";
    text += suggestion_text(without, *result.in_place);
  }
  return text;
}

}  // namespace

std::string plan_text(const PlanResult& result) {
  Table table(result);
  add_states_rows(table);
  add_rank_rows(table, result);
  add_disk_rows(table, result);
  add_host_rows(table, result);
  if (result.plans.front().ranks > 1) add_traffic_rows(table, result);
  add_time_rows(table, result);
  add_step_rows(table, result);
  return head_text(result) + notice_text(result) + "\n" + table.take() + activations_text(result) +
         goodput_text(result) + "\n" + verdict_text(result);
}

}  // namespace zero::app
