#include "sharding/local_steps.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "layout/island_pieces.h"
#include "zero/errors.h"

namespace zero::sharding {
namespace {

optim::Hyper outer_sgd(const LocalStepsOptions& options) {
  optim::Hyper hyper;
  hyper.lr = options.lr;
  hyper.momentum = options.momentum;
  hyper.nesterov = options.momentum > 0;
  hyper.gradient_scale = 1.0 / options.across.size();
  hyper.weight_decay = 0;
  return hyper;
}

at::Tensor fp32_view(const float* values, std::int64_t numel) {
  return at::from_blob(const_cast<float*>(values), {numel}, at::kFloat);
}

}  // namespace

LocalSteps::LocalSteps(ShardedModel& model, ShardedOptimizer& optimizer, storage::Ledger& ledger,
                       LocalStepsOptions options)
    : model_(model),
      optimizer_(optimizer),
      ledger_(ledger),
      options_(std::move(options)),
      transport_(comm::make_host_transport(options_.across)),
      hyper_(outer_sgd(options_)),
      rule_(optim::rule_in_fp32(optim::Algorithm::kSgd, {&hyper_, 1})),
      covered_(model.units.size(), false),
      process_(::getpid()) {
  if (options_.piece_numel == 0) options_.piece_numel = layout::island_piece_numel(islands());
  cover_trainable();
}

LocalSteps::~LocalSteps() {
  for (Slot& slot : slots_) wait_or_fail(slot.work, slot.memory, process_);
}

template <class Visit>
void LocalSteps::for_each_in(const std::vector<Segment>& segments, Range flat, Visit visit) {
  auto segment = std::ranges::upper_bound(segments, flat.begin, {}, &Segment::begin);
  if (segment != segments.begin()) --segment;
  for (; segment != segments.end() && segment->begin < flat.end; ++segment) {
    const Range part = layout::intersect(flat, {segment->begin, segment->begin + segment->range.numel()});
    if (part.empty()) continue;
    const std::int64_t first = segment->range.begin + part.begin - segment->begin;
    visit(segment->unit, Range{first, first + part.numel()}, part.begin - flat.begin);
  }
}

std::vector<LocalSteps::Segment> LocalSteps::segments_of(const std::vector<int>& units, int place) const {
  std::vector<Segment> segments;
  std::int64_t numel = 0;
  for (const int u : units) {
    const Range shard = model_.units[u].shard(place);
    if (shard.empty()) continue;
    segments.push_back({u, shard, numel});
    numel += shard.numel();
  }
  return segments;
}

void LocalSteps::cover_trainable() {
  std::vector<int> units;
  for (std::size_t u = 0; u < covered_.size(); ++u) {
    if (covered_[u] || !model_.units[u].trainable) continue;
    covered_[u] = true;
    units.push_back(static_cast<int>(u));
  }
  if (!units.empty()) add_block(std::move(units));
}

void LocalSteps::add_block(std::vector<int> units) {
  Block block{.units = std::move(units)};
  block.segments = segments_of(block.units, model_.rank());
  for (const Segment& segment : block.segments) block.numel += segment.range.numel();
  const std::int64_t mine = layout::island_numel(block.numel, islands(), island());
  const auto make = [&] {
    return storage::FlatBuffer::make_private(ledger_, MemoryKind::kOptimizer, DType::kFloat32, mine);
  };
  block.outer = make();
  if (has_momentum()) block.momentum = make();
  const std::int64_t piece = std::min(options_.piece_numel, block.numel);
  const std::int64_t buffers = layout::island_buffers_numel(block.numel, islands());
  if (piece > 0 && (slots_.empty() || slots_.front().memory.numel() < piece ||
                    static_cast<std::int64_t>(slots_.size()) * slots_.front().memory.numel() < buffers)) {
    const std::int64_t count = std::max(buffers / piece, static_cast<std::int64_t>(slots_.size()));
    slots_.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      slots_.push_back(
          {storage::FlatBuffer::make_readable(ledger_, MemoryKind::kStaging, DType::kFloat32, piece, *transport_)});
    }
  }
  if (in_round_) note_values(block);
  blocks_.push_back(std::move(block));
}

float* LocalSteps::momentum_at(const Block& block, std::int64_t offset) {
  return block.momentum.empty() ? nullptr : block.momentum.data_as<float>() + offset;
}

Range LocalSteps::piece_of(const Block& block, std::int64_t begin) const {
  return {begin, std::min(begin + options_.piece_numel, block.numel)};
}

Range LocalSteps::slice_of(Range piece, int island) const { return layout::island_slice(piece, islands(), island); }

std::int64_t LocalSteps::offset_of(Range piece) const { return piece.begin / islands(); }

std::vector<std::int64_t> LocalSteps::counts_of(Range piece) const {
  std::vector<std::int64_t> counts;
  for (int i = 0; i < islands(); ++i) counts.push_back(slice_of(piece, i).numel());
  return counts;
}

void LocalSteps::copy_masters(const std::vector<Segment>& segments, Range flat, float* out) const {
  for_each_in(segments, flat, [&](int unit, Range range, std::int64_t first) {
    fp32_view(out + first, range.numel()).copy_(optimizer_.master_values(unit, range));
  });
}

void LocalSteps::load_masters(const std::vector<Segment>& segments, Range flat, const float* values) {
  for_each_in(segments, flat, [&](int unit, Range range, std::int64_t first) {
    optimizer_.load_range(unit, range, fp32_view(values + first, range.numel()));
  });
}

void LocalSteps::note_values(Block& block) {
  for (std::int64_t begin = 0; begin < block.numel; begin += options_.piece_numel) {
    const Range piece = piece_of(block, begin);
    copy_masters(block.segments, slice_of(piece, island()), block.outer.data_as<float>() + offset_of(piece));
  }
}

void LocalSteps::begin_step() {
  const at::NoGradGuard no_grad;
  cover_trainable();
  if (std::exchange(in_round_, true)) return;
  // Also where nothing has changed since the last exchange: the program may have written parameters.
  for (Block& block : blocks_) note_values(block);
}

void LocalSteps::update(Block& block, Range piece, std::span<const void* const> masters, float* result) {
  const std::int64_t numel = slice_of(piece, island()).numel();
  float* const outer = block.outer.data_as<float>() + offset_of(piece);
  // `result` may be this island's masters.
  for (std::int64_t i = 0; i < numel; ++i) {
    float sum = outer[i] - static_cast<const float*>(masters[0])[i];
    for (std::size_t other = 1; other < masters.size(); ++other)
      sum += outer[i] - static_cast<const float*>(masters[other])[i];
    result[i] = sum;
  }
  optim::UpdateArgs args;
  args.master = outer;
  args.states[0] = momentum_at(block, offset_of(piece));
  args.gradient = result;
  args.numel = numel;
  if (numel > 0) optim::passes_for(c10::kCPU).update(rule_, args, hyper_);
  std::copy_n(outer, numel, result);
}

void LocalSteps::post(Block& block, Slot& slot, Range piece, const std::string& label) {
  slot.piece = piece;
  auto* const memory = slot.memory.data_as<float>();
  copy_masters(block.segments, piece, memory);
  float* const mine = memory + slice_of(piece, island()).begin - piece.begin;
  slot.work = options_.across.exchange(
      memory, counts_of(piece), DType::kFloat32,
      [this, &block, piece, mine](std::span<const void* const> masters) { update(block, piece, masters, mine); },
      {.label = label});
}

void LocalSteps::gather(Slot& slot, const std::string& label) {
  slot.work.wait();
  auto* const memory = slot.memory.data_as<float>();
  slot.work = options_.across.all_gather(memory + slice_of(slot.piece, island()).begin - slot.piece.begin, memory,
                                         counts_of(slot.piece), DType::kFloat32, {.label = label});
}

void LocalSteps::take(Block& block, Slot& slot) {
  slot.work.wait();
  load_masters(block.segments, slot.piece, slot.memory.data_as<float>());
}

void LocalSteps::exchange_block(Block& block, const std::string& label) {
  if (block.numel == 0) return;
  const std::int64_t pieces = (block.numel + options_.piece_numel - 1) / options_.piece_numel;
  const auto slot = [&](std::int64_t piece) -> Slot& {
    return slots_[static_cast<std::size_t>(piece) % slots_.size()];
  };
  // A piece is filled while the one before it is exchanged, and the one before that gathered.
  for (std::int64_t p = 0; p < pieces + 2; ++p) {
    if (p >= 2) take(block, slot(p - 2));
    if (p < pieces) post(block, slot(p), piece_of(block, p * options_.piece_numel), label);
    if (p >= 1 && p - 1 < pieces) gather(slot(p - 1), label);
  }
}

void LocalSteps::spread(const Block& block) {
  Group island = model_.data_ranks;
  const auto ranks = static_cast<std::size_t>(island.size());
  std::vector<std::vector<Segment>> segments;
  std::vector<std::int64_t> numel(ranks, 0);
  std::int64_t most = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    segments.push_back(segments_of(block.units, static_cast<int>(r)));
    for (const Segment& segment : segments.back()) numel[r] += segment.range.numel();
    most = std::max(most, numel[r]);
  }
  const std::int64_t step = std::max<std::int64_t>(options_.piece_numel / island.size(), 1);
  std::vector<float> all(static_cast<std::size_t>(std::min(step, most)) * ranks);
  for (std::int64_t begin = 0; begin < most; begin += step) {
    std::vector<std::int64_t> counts;
    for (const std::int64_t of_rank : numel) counts.push_back(std::clamp<std::int64_t>(of_rank - begin, 0, step));
    std::int64_t first = 0;
    for (int r = 0; r < model_.rank(); ++r) first += counts[static_cast<std::size_t>(r)];
    const auto mine = static_cast<std::size_t>(model_.rank());
    copy_masters(segments[mine], {begin, begin + counts[mine]}, all.data() + first);
    island.all_gather(all.data() + first, all.data(), counts, DType::kFloat32, {.label = "outer values"}).wait();
    first = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (r != mine) load_masters(segments[r], {begin, begin + counts[r]}, all.data() + first);
      first += counts[r];
    }
  }
}

void LocalSteps::exchange(const std::string& label) {
  const at::NoGradGuard no_grad;
  for (Block& block : blocks_) {
    exchange_block(block, label);
    if (!model_.sharding.optimizer_states && model_.world_size() > 1) spread(block);
  }
  received_numel_ += exchange_numel();
  in_round_ = false;
}

std::int64_t LocalSteps::exchange_numel() const {
  std::int64_t numel = 0;
  for (const Block& block : blocks_) {
    // Of this island's slices the other islands' masters, and their outer values of the rest.
    const std::int64_t mine = layout::island_numel(block.numel, islands(), island());
    numel += mine * (islands() - 1) + block.numel - mine;
  }
  return numel;
}

std::string LocalSteps::description() const {
  return fmt::format(
      "local steps: {} island{} of {} rank{}, which exchange {} each way and rank after every {} steps; outer SGD with "
      "learning rate {:g}, Nesterov momentum {:g}",
      islands(), islands() == 1 ? "" : "s", model_.world_size(), model_.world_size() == 1 ? "" : "s",
      human_nbytes(exchange_numel() * static_cast<std::int64_t>(sizeof(float))), options_.steps, options_.lr,
      options_.momentum);
}

std::vector<LocalSteps::Part> LocalSteps::parts() {
  cover_trainable();
  std::vector<Part> parts;
  for (Block& block : blocks_) {
    for (std::int64_t begin = 0; begin < block.numel; begin += options_.piece_numel) {
      const Range piece = piece_of(block, begin);
      const std::int64_t offset = offset_of(piece);
      for_each_in(block.segments, slice_of(piece, island()), [&](int unit, Range range, std::int64_t first) {
        parts.push_back(
            {unit, range, block.outer.data_as<float>() + offset + first, momentum_at(block, offset + first)});
      });
    }
  }
  return parts;
}

}  // namespace zero::sharding
