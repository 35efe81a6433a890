#include "program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

namespace zero::fuzz_training {
namespace {

using I = Ingredient;
constexpr auto kIngredients = static_cast<std::size_t>(I::kCount);

struct Description {
  std::string_view name;
  double probability;  ///< that a program may contain it
};

constexpr std::array<Description, kIngredients> kDescriptions{{
    {"linear", 1},
    {"wide", 0.3},
    {"norm", 0.3},
    {"embedding", 0.25},
    {"sparse", 0.15},
    {"tied", 0.25},
    {"reuse", 0.25},
    {"view", 0.25},
    {"transposed", 0.2},
    {"scalar", 0.2},
    {"empty", 0.15},
    {"odd", 0.2},
    {"unused", 0.2},
    {"top1", 0.35},
    {"top2", 0.2},
    {"layer_drop", 0.25},
    {"heads", 0.2},
    {"unroll", 0.2},
    {"buffer", 0.15},
    {"mask", 0.12},
    {"lazy", 0.15},
    {"train", 1},
    {"freeze", 0.25},
    {"zero_grad", 0.2},
    {"discard", 0.25},
    {"throw_forward", 0.2},
    {"throw_backward", 0.25},
    {"evaluate", 0.25},
    {"evaluate_one", 0.25},
    {"gathered_read", 0.2},
    {"gathered_write", 0.2},
    {"set_weight", 0.12},
    {"clip_value", 0.12},
    {"scale_gradient", 0.1},
    {"set_gradient", 0.08},
    {"read_gradient", 0.12},
    {"read_weights", 0.2},
    {"learning_rate", 0.2},
    {"step_groups", 0.15},
    {"save", 0.15},
    {"load", 0.12},
    {"resume", 0.2},
    {"penalty", 0.12},
    {"input_penalty", 0.1},
    {"loss_backward", 0.25},
    {"frozen_at_start", 0.15},
    {"groups", 0.25},
    {"client", 0.2},
    {"clipping", 0.3},
    {"bf16", 0.35},
    {"accumulation", 0.5},
    {"gan", 0.12},
    {"unused_zero", 0.25},
}};

bool is_layer(I kind) { return kind < I::kTrain; }
bool is_event(I kind) { return kind > I::kTrain && kind <= I::kResume; }

/// What a program cannot have together, as both sides mean something else by it or plain libtorch refuses it.
void drop_conflicts(std::array<bool, kIngredients>& has) {
  const auto is = [&has](I kind) -> bool& { return has[static_cast<std::size_t>(kind)]; };
  if (is(I::kGan)) {
    // A mask would be written between two forwards of one graph.
    for (const I kind : {I::kMask, I::kInputPenalty, I::kPenalty, I::kAccumulation, I::kStepGroups, I::kThrowBackward,
                         I::kThrowForward, I::kDiscard, I::kClient, I::kLoad}) {
      is(kind) = false;
    }
  }
  if (is(I::kMask)) is(I::kInputPenalty) = is(I::kPenalty) = false;
  if (is(I::kClient)) is(I::kGroups) = false;
  if (!is(I::kClient) && !is(I::kGroups)) is(I::kStepGroups) = false;
  if (is(I::kStepGroups)) is(I::kClipping) = false;  // which gradients count is left open
  if (is(I::kLoad)) is(I::kSave) = true;
}

struct Generator {
  Random random;
  std::array<bool, kIngredients> has{};
  Program program;

  bool is(I kind) const { return has[static_cast<std::size_t>(kind)]; }

  std::vector<Layer> layers() {
    std::vector<I> kinds{I::kLinear};
    for (std::size_t i = 1; i < kIngredients; ++i)
      if (has[i] && is_layer(static_cast<I>(i))) kinds.push_back(static_cast<I>(i));
    std::vector<Layer> made{{.kind = I::kLinear, .id = 0}};
    const int more = 1 + random.below(5);
    for (int i = 1; i <= more; ++i) {
      const I kind = kinds[static_cast<std::size_t>(random.below(static_cast<int>(kinds.size())))];
      made.push_back({kind, i, random.below(i), 2 + random.below(4)});
    }
    return made;
  }

  Event train() {
    Event event;
    if (program.is_gan()) event.which = random.below(5) == 0 ? 2 : random.below(2);
    event.mode = random.below(3);  // kGan: how the critic's gradients are dropped
    if (is(I::kLossBackward)) event.loss_backward = random.chance(0.5);
    if (is(I::kPenalty) && random.chance(0.4)) event.penalty = I::kPenalty;
    if (is(I::kInputPenalty) && random.chance(0.4)) event.penalty = I::kInputPenalty;
    return event;
  }

  void events() {
    std::vector<I> kinds;
    for (std::size_t i = 0; i < kIngredients; ++i)
      if (has[i] && is_event(static_cast<I>(i))) kinds.push_back(static_cast<I>(i));
    const int count = 5 + random.below(10);
    bool resumed = false;
    for (int i = 0; i < count; ++i) {
      if (kinds.empty() || random.chance(0.5)) {
        program.events.push_back(train());
        continue;
      }
      const I kind = kinds[static_cast<std::size_t>(random.below(static_cast<int>(kinds.size())))];
      if (kind == I::kResume && std::exchange(resumed, true)) continue;
      Event event{.kind = kind, .which = program.is_gan() ? random.below(2) : 0};
      event.target = random.below(1000);
      event.mode = random.below(4);
      event.value = 0.05 + 0.01 * random.below(30);
      program.events.push_back(event);
    }
    const int last = 1 + random.below(2) + (random.chance(0.7) ? program.blocks - 1 : 0);
    for (int i = 0; i < last; ++i) program.events.push_back(train());
  }

  /// A rank uses parameters that others do not use, or not as often.
  bool uses_parameters_alone() const {
    using enum Ingredient;
    return std::ranges::any_of(
        std::array{kTop1, kTop2, kHeads, kLayerDrop, kUnroll, kEvaluateOne, kThrowForward, kThrowBackward, kPenalty},
        [this](Ingredient one) { return program.has(one); });
  }

  Setting setting() {
    Setting made;
    do {
      made.ranks = 1 + random.below(4);
    } while (program.block % made.ranks != 0 || (made.ranks == 1 && program.block > 1 && random.chance(0.6)));
    made.stage = random.below(5) == 0 ? 3 : random.below(4);
    made.node_shared = random.chance(0.5);
    made.tiny_buckets = random.chance(0.5);
    made.overlap = random.chance(0.5);
    made.progress_thread = random.chance(0.25);
    made.persistence = random.chance(0.3) ? 20 + random.below(60) : 0;
    made.little_live = random.chance(0.3);
    made.observer = random.chance(0.04);
    made.jitter = random.chance(0.1);
    made.step_in_backward = random.chance(0.5);
    if (!allowed(program, made)) made.step_in_backward = false;
    if (on_simulated_device) made.node_shared = false;  // that store is for modules on the CPU
    // Not drawn: a seed stays the program that it was.
    made.nvme = (made.ranks + made.stage + made.node_shared + made.overlap + made.little_live) % 3 == 0;
    if (states_on_device) made.nvme = false;
    made.speculative = made.nvme && made.stage > 0 && !made.step_in_backward;
    const bool may_divide = on_simulated_device && !states_on_device && !made.nvme && !made.step_in_backward;
    if (may_divide && made.stage > 0)
      made.host_percent = std::array{0, 40, 70, 100}[static_cast<std::size_t>(made.ranks + 2 * made.overlap) % 4];
    made.parameters_on_host =
        on_simulated_device && !states_on_device && made.stage == 3 && (made.ranks + made.tiny_buckets) % 2 == 1;
    if (moved_by_nccl && uses_parameters_alone()) made.stage = std::min(made.stage, 2);
    return made;
  }
};

}  // namespace

std::string_view name_of(I ingredient) { return kDescriptions[static_cast<std::size_t>(ingredient)].name; }

std::optional<I> ingredient_of(std::string_view name) {
  for (std::size_t i = 0; i < kIngredients; ++i)
    if (kDescriptions[i].name == name) return static_cast<I>(i);
  return {};
}

std::uint64_t Random::next() {
  std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) { return Random(a * 0xD1342543DE82EF95ull + b).next(); }

bool Program::has(I kind) const {
  const auto layer = [kind](const Layer& l) { return l.kind == kind; };
  return std::any_of(layers.begin(), layers.end(), layer) || std::any_of(generator.begin(), generator.end(), layer) ||
         std::any_of(events.begin(), events.end(),
                     [kind](const Event& e) { return e.kind == kind || e.penalty == kind; });
}

bool allowed(const Program& program, const Setting& setting) {
  if (setting.ranks < 1 || program.block % setting.ranks != 0) return false;
  if (!setting.step_in_backward) return true;
  if (setting.stage == 0 || program.clipping > 0 || program.window() != setting.ranks || program.is_gan()) return false;
  // Nothing may want a gradient that has been applied, or a parameter that is being updated.
  for (const I kind : {I::kMask, I::kDiscard, I::kThrowForward, I::kThrowBackward, I::kClipValue, I::kScaleGradient,
                       I::kSetGradient, I::kReadGradient, I::kStepGroups, I::kPenalty, I::kZeroGrad}) {
    if (program.has(kind)) return false;
  }
  return true;
}

Case generate(std::uint64_t seed, std::optional<I> only, const std::vector<I>& without) {
  Generator generator{.random = Random(mixed(seed, 77))};
  Random& random = generator.random;
  for (std::size_t i = 0; i < kIngredients; ++i) {
    const bool drawn = random.chance(kDescriptions[i].probability);
    const bool basic = static_cast<I>(i) == I::kAccumulation || static_cast<I>(i) == I::kBf16;
    generator.has[i] = !only ? drawn : static_cast<I>(i) == *only || (basic && drawn);
  }
  if (only == I::kStepGroups) generator.has[static_cast<std::size_t>(I::kGroups)] = true;
  for (const I kind : without) generator.has[static_cast<std::size_t>(kind)] = false;
  drop_conflicts(generator.has);
  Program& program = generator.program;
  program.seed = seed;
  program.dim = 3 + random.below(6);
  program.batch = 1 + random.below(3);
  constexpr std::array kBlocks{4, 4, 4, 2, 2, 2, 6, 6, 3, 3, 12, 1};
  program.block = kBlocks[static_cast<std::size_t>(random.below(kBlocks.size()))];
  if (generator.is(I::kAccumulation) && program.block < 12) program.blocks = 1 + random.below(3);
  program.bf16 = generator.is(I::kBf16);
  if (random.chance(0.5)) program.unit_numel = 20 + random.below(200);
  if (generator.is(I::kClipping)) program.clipping = 0.05 + 0.05 * random.below(10);
  if (generator.is(I::kGroups)) program.groups = Groups::kGroups;
  if (generator.is(I::kClient)) program.groups = Groups::kClient;
  if (generator.is(I::kFrozenAtStart)) program.frozen_at_start = random.below(1000);
  program.unused_zero = generator.is(I::kUnusedZero);
  program.layers = generator.layers();
  if (generator.is(I::kGan)) program.generator = generator.layers();
  generator.events();
  Case made{.program = program};
  const int runs = program.one_curve() ? 1 + random.below(3) : 1 + random.below(2);
  for (int i = 0; i < runs; ++i) {
    const Setting before = generator.setting();
    made.runs.push_back({before, generator.setting()});
  }
  return made;
}

namespace {

std::string text_of(const std::vector<Layer>& layers) {
  std::string text;
  for (const Layer& layer : layers) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", name_of(layer.kind), layer.id);
    if (layer.kind == I::kTied || layer.kind == I::kReuse) text += fmt::format("(of {})", layer.other);
    if (layer.kind == I::kTop1 || layer.kind == I::kTop2 || layer.kind == I::kHeads || layer.kind == I::kTransposed ||
        layer.kind == I::kLazy)
      text += fmt::format("({})", layer.size);
  }
  return text;
}

}  // namespace

std::string text_of(const Program& p) {
  constexpr std::array kGroupNames{"", ", parameter groups", ", client optimizer with StepLR"};
  std::string text = fmt::format(
      "seed {}: {}, dim {}, batch {}, {} micro-batches a window in {} blocks of {}{}{}{}{}{}\n", p.seed,
      p.bf16 ? "bf16" : "fp32", p.dim, p.batch, p.window(), p.blocks, p.block,
      p.clipping > 0 ? fmt::format(", clipping {:.2f}", p.clipping) : "",
      p.unit_numel ? fmt::format(", unit_numel {}", p.unit_numel) : "", kGroupNames[static_cast<std::size_t>(p.groups)],
      p.unused_zero ? ", unused parameters have gradients of zero" : "",
      p.frozen_at_start >= 0 ? fmt::format(", parameter {} frozen at start", p.frozen_at_start) : "");
  text += fmt::format("  layers: {}\n", text_of(p.layers));
  if (p.is_gan()) text += fmt::format("  generator: {}\n", text_of(p.generator));
  for (std::size_t i = 0; i < p.events.size(); ++i) {
    const Event& e = p.events[i];
    text += fmt::format("  {:2} {}", i, name_of(e.kind));
    if (p.is_gan()) text += fmt::format(" of {}", e.which);
    if (e.kind == I::kTrain) {
      if (p.is_gan()) text += fmt::format(" mode {}", e.mode);
      if (e.loss_backward) text += " by loss.backward()";
      if (e.penalty != I::kCount) text += fmt::format(" with {}", name_of(e.penalty));
    } else {
      text += fmt::format(" target {} mode {} value {:.2f}", e.target, e.mode, e.value);
    }
    text += '\n';
  }
  return text;
}

std::string text_of(const Setting& s) {
  std::string text = fmt::format("{} ranks, stage {}, {}", s.ranks, s.stage, s.node_shared ? "node_shared" : "copying");
  if (s.tiny_buckets) text += ", tiny buckets";
  if (s.overlap) text += ", overlap";
  if (s.progress_thread) text += ", progress thread";
  if (s.step_in_backward) text += ", step_in_backward";
  if (s.persistence) text += fmt::format(", persistence {}", s.persistence);
  if (s.little_live) text += ", little live";
  if (s.observer) text += ", observer";
  if (s.jitter) text += ", jitter";
  if (s.nvme) text += ", nvme";
  if (s.speculative) text += ", speculative";
  if (s.parameters_on_host) text += ", parameters on the host";
  if (s.host_percent < 100) text += fmt::format(", {} % of states on the host", s.host_percent);
  return text;
}

std::string json_of(const Program& p, const Setting& s) {
  const std::string optimizer = p.groups == Groups::kClient ? ""
                                                            : fmt::format(R"("optimizer": {{"type": "AdamW", "params":
            {{"lr": 0.01, "betas": [0.9, 0.95], "eps": {}, "weight_decay": 0.1}}}},)",
                                                                          p.eps());
  return fmt::format(
      R"({{
    "train_micro_batch_size_per_gpu": {}, "gradient_accumulation_steps": {}, "gradient_clipping": {}, {}
    "bf16": {{"enabled": {}, "check_grad_overflow": false}},
    "zero_optimization": {{"stage": {}, "overlap_comm": {}, "reduce_bucket_size": {}, "allgather_bucket_size": {},
      "stage3_param_persistence_threshold": {}, "stage3_max_live_parameters": {}, "stage3_max_reuse_distance": {},
      "stage3_prefetch_bucket_size": {}, "sub_group_size": {},
      "offload_optimizer": {{"device": "{}", "nvme_path": "{}", "ratio": {}}}, "offload_param": {{"device": "{}"}}}},
    "zerotorch": {{"store": "{}", "progress_thread": "{}", "unit_numel": {}, "update": "{}", "seed": 5,
      "unused_parameters": "{}", "device_transport": "{}",
      "debug_observer": {}, "timeout_s": {}}}
  }})",
      p.batch, p.window() / s.ranks, p.clipping, optimizer, p.bf16, s.stage, s.overlap,
      s.tiny_buckets ? 11 : 500'000'000, s.tiny_buckets ? 17 : 500'000'000, s.persistence,
      s.little_live ? 60 : 1'000'000, s.little_live ? 0 : 1'000'000, s.little_live ? 0 : 4000,
      s.tiny_buckets ? 70 : 1'000'000,
      s.nvme                                     ? "nvme"
      : on_simulated_device && !states_on_device ? "cpu"
                                                 : "none",
      std::filesystem::temp_directory_path().string(), s.host_percent / 100.0, s.parameters_on_host ? "cpu" : "none",
      s.node_shared ? "node_shared" : "copying", s.progress_thread ? "always" : "never", p.unit_numel,
      s.step_in_backward ? "in_backward"
      : s.speculative    ? "speculative"
                         : "after_backward",
      p.unused_zero ? "zero" : "skip", moved_by_nccl ? "nccl" : "auto", s.observer, collective_timeout_s);
}

}  // namespace zero::fuzz_training
