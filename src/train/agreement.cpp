#include "train/agreement.h"

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

train::Agreement train::agree(Group group, std::span<const double> losses, int stop_signal, bool due) {
  std::vector<double> mine(losses.begin(), losses.end());
  mine.push_back(stop_signal);
  mine.push_back(due ? 1 : 0);
  const std::vector<double> all = gather_values(group, mine, "loss and stop flag");
  const auto ranks = static_cast<std::size_t>(group.size());
  Agreement found;
  for (std::size_t j = 0; j < losses.size(); ++j) {
    for (std::size_t r = 0; r < ranks; ++r) found.loss += all[r * mine.size() + j];
  }
  if (!losses.empty()) found.loss /= static_cast<double>(ranks * losses.size());
  for (std::size_t r = 0; r < ranks && found.stop_signal == 0; ++r) {
    found.stop_signal = static_cast<int>(all[r * mine.size() + losses.size()]);
  }
  found.due = all[losses.size() + 1] != 0;
  return found;
}

double mean_loss(Group group, std::span<const double> losses) { return train::agree(group, losses, 0, false).loss; }

int agreed_stop_signal(Group group) { return train::agree(group, {}, received_stop_signal(), false).stop_signal; }

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
