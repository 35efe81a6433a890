#include "train/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "engine/agreement.h"
#include "zero/errors.h"
#include "zero/train.h"

namespace zero {

std::vector<double> gather_values(Group group, std::span<const double> mine, std::string_view label) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<double> all(mine.size() * ranks);
  const std::vector<std::int64_t> counts(ranks, static_cast<std::int64_t>(mine.size()));
  group.all_gather(mine.data(), all.data(), counts, DType::kFloat64, {.label = label}).wait();
  return all;
}

namespace {

/// What a rank says, and its losses after it.
enum Said : std::size_t { kStopSignal, kIsDue, kTimeIsUp, kDataRank, kModelRank, kFirstLoss };

/// Every rank's row of what was said.
struct Rows {
  std::vector<double> all;
  std::size_t width;

  std::size_t size() const { return all.size() / width; }
  double at(std::size_t rank, std::size_t what) const { return all[rank * width + what]; }
  std::size_t losses() const { return width - kFirstLoss; }
};

/// The ranks that have the first part of the model, by data-parallel rank.
std::vector<std::size_t> first_parts(const Rows& rows) {
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows.at(r, kModelRank) != 0) continue;
    const auto place = static_cast<std::size_t>(rows.at(r, kDataRank));
    if (ranks.size() <= place) ranks.resize(place + 1);
    ranks[place] = r;
  }
  return ranks;
}

bool is_same_loss(double a, double b) {
  constexpr double kMostApart = 1e-2;  // parts may round in other orders; another loss is further off
  if (!std::isfinite(a) || !std::isfinite(b)) return std::isfinite(a) == std::isfinite(b);
  return std::abs(a - b) <= kMostApart * std::max({std::abs(a), std::abs(b), 1e-6});
}

/// Empty: the ranks of each copy of the model have its losses.
std::string problem_with(const Rows& rows, const std::vector<std::size_t>& firsts) {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::size_t first = firsts[static_cast<std::size_t>(rows.at(r, kDataRank))];
    for (std::size_t j = kFirstLoss; j < rows.width; ++j) {
      if (is_same_loss(rows.at(first, j), rows.at(r, j))) continue;
      return fmt::format(
          "ranks {} and {} have parts of one copy of the model and give other losses of the same micro-batch, {:g} and "
          "{:g}; give the loss of the whole model on each of them",
          first, r, rows.at(first, j), rows.at(r, j));
    }
  }
  return {};
}

}  // namespace

train::Agreement train::agree(Group group, std::span<const double> losses, Flags flags, Place place) {
  std::vector<double> mine(kFirstLoss);
  mine[kStopSignal] = flags.stop_signal;
  mine[kIsDue] = flags.is_due;
  mine[kTimeIsUp] = flags.time_is_up;
  mine[kDataRank] = place.data_rank;
  mine[kModelRank] = place.model_rank;
  mine.insert(mine.end(), losses.begin(), losses.end());
  const Rows rows{gather_values(group, mine, "loss and stop flag"), mine.size()};
  const std::vector<std::size_t> firsts = first_parts(rows);
  if (const std::string problem = problem_with(rows, firsts); !problem.empty()) {
    engine::leave_together(group);
    throw ModelError(problem);
  }
  Agreement found{.is_due = rows.at(0, kIsDue) != 0, .time_is_up = rows.at(0, kTimeIsUp) != 0};
  for (std::size_t j = kFirstLoss; j < rows.width; ++j) {
    for (const std::size_t r : firsts) found.loss += rows.at(r, j);
  }
  if (!losses.empty()) found.loss /= static_cast<double>(firsts.size() * losses.size());
  for (std::size_t r = 0; r < rows.size() && found.stop_signal == 0; ++r) {
    found.stop_signal = static_cast<int>(rows.at(r, kStopSignal));
  }
  return found;
}

double mean_loss(Group group, std::span<const double> losses) {
  return train::agree(group, losses, {}, {.data_rank = group.rank()}).loss;
}

int agreed_stop_signal(Group group) {
  return train::agree(group, {}, {.stop_signal = received_stop_signal()}, {.data_rank = group.rank()}).stop_signal;
}

std::string from_rank_0(Group group, const std::function<std::string()>& make) {
  constexpr char kText = 't', kConfigError = 'c', kError = 'e';
  std::string message;
  std::exception_ptr thrown;
  try {
    if (group.rank() == 0) message = kText + make();
  } catch (const ConfigError& error) {
    message = kConfigError + std::string(error.what());
    thrown = std::current_exception();
  } catch (const std::exception& error) {
    message = kError + std::string(error.what());
    thrown = std::current_exception();
  }
  message = engine::broadcast_text(std::move(message), 0, group, "text of rank 0");
  const std::string text = message.substr(1);
  if (message[0] == kText) return text;
  engine::leave_together(group);
  if (thrown) std::rethrow_exception(thrown);
  if (message[0] == kConfigError) throw ConfigError(text);
  throw Error("rank 0: " + text);
}

}  // namespace zero
