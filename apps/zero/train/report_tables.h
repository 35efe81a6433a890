#pragma once
// What a run says about memory, and about itself when it is over. Text for people, and summary.json.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "host/rank_totals.h"
#include "train/train_plan.h"
#include "zero/memory.h"

namespace zero::app {

/// What each rank of DDP holds for a model: bf16 (fp32) parameters 2 (4) bytes each; of those that are trained
/// gradients 2 (4), fp32 master weights 4 (0), Adam's two moments 8: 16 in all. DDP's gradient buckets are not counted.
MemoryReport ddp_memory(std::int64_t parameters_numel, std::int64_t trained_numel, DType param_dtype);

/// By kind's name: {"current_nbytes", "peak_nbytes"}, of what is on a device also {"device_nbytes",
/// "peak_device_nbytes"}.
nlohmann::ordered_json kinds_json(const MemoryReport& report);
/// A kind's name in JSON, without blanks: "master".
std::string memory_key(MemoryKind kind);

/// Bytes that stay for the whole run: parameters, master weights, optimizer, gradients.
std::int64_t states_nbytes(const MemoryReport& report);
/// Bytes of gather buffers, buckets and staging while training.
std::int64_t buffers_peak_nbytes(const MemoryReport& report);

/// Kinds by ranks: as built, after initialize() for each rank, and what DDP would hold.
std::string memory_table(const std::vector<MemoryReport>& before, const std::vector<MemoryReport>& after,
                         const MemoryReport& ddp, int stage);
/// Peaks of the first step, of the rank that needs most.
std::string first_step_memory(const std::vector<MemoryReport>& reports, const MemoryReport& ddp);

struct RunResult {
  std::int64_t steps_done = 0;
  std::int64_t steps_here = 0;      ///< of these by this process: since the run went on, if it did
  int stop_signal = 0;              ///< 0: ran to its end
  bool diverged = false;            ///< the loss of the last step is not a number
  bool time_is_up = false;          ///< --max-minutes ended it before its last step
  std::string save_problem;         ///< why the last checkpoint could not be written; empty: it was
  double last_loss = 0;             ///< training loss, a running average over steps, nats per byte
  std::optional<double> step_loss;  ///< that of the last step alone
  std::optional<double> first_validation, last_validation;  ///< nats per byte
  std::int64_t last_validation_step = 0;
  std::optional<double> best_validation;
  std::int64_t best_validation_step = 0;
  std::string best_checkpoint;  ///< folder of the one that --keep-best keeps; empty: none
  std::int64_t best_checkpoint_step()
      const;  ///< 0: there is none. Another than the best's where it could not be written
  std::int64_t tokens = 0;
  std::int64_t skipped_steps = 0;
  double training_seconds = 0;  ///< steps only
  double total_seconds = 0;     ///< of this process, with start, validation and sample
  std::string checkpoint;       ///< folder of the last one; empty: none
  StepTotals totals;            ///< of the steps done here, mean over ranks
  std::int64_t padded_numel = 0;
  int ranks = 1;
  int stage = 0;
  std::vector<MemoryReport> memory;  ///< by rank, at the end
  MemoryReport ddp;
  std::int64_t host_nbytes = 0;       ///< PSS of all ranks
  std::vector<DeviceMemory> devices;  ///< by rank: of training
};

/// Whether libtorch counts what ranks have on devices; and that as JSON, by rank, and as half a line for people.
bool has_devices(const std::vector<DeviceMemory>& by_rank);
const DeviceMemory& fullest(const std::vector<DeviceMemory>& by_rank);
nlohmann::ordered_json devices_json(const std::vector<DeviceMemory>& by_rank);
std::string describe_devices(const std::vector<DeviceMemory>& by_rank);

/// Elements each rank received per step, in units of P (N-1)/N; 0 for one rank.
double traffic_in_model_sizes(const RunResult& result);

/// "byte" or "token": what losses are per.
const char* token_name(const TrainPlan& plan);
/// Not given where nobody knows how much text a token is.
std::optional<double> bits_per_byte(const TrainPlan& plan, double nats);
/// "1.234 nats = 1.780 bits per byte".
std::string nats_text(const TrainPlan& plan, double nats, int digits);
/// The same, and how it compares: with the unigram entropy of bytes, or as a perplexity.
std::string loss_text(const TrainPlan& plan, double nats, int digits);

/// The last lines of a run.
std::string describe_result(const TrainPlan& plan, const RunResult& result);
/// The same in one line and a half, for --quiet.
std::string describe_result_briefly(const TrainPlan& plan, const RunResult& result);
nlohmann::ordered_json summary_json(const TrainPlan& plan, const RunResult& result);

}  // namespace zero::app
