// Tables 1 and 2 of "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv
// 1910.02054).
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "plan/plan_result.h"

namespace zero::app {
namespace {

using nlohmann::ordered_json;

constexpr double kModels[] = {7.5e9, 128e9, 1e12};
constexpr double kRanks[] = {1, 4, 16, 64, 256, 1024};
constexpr const char* kStageNames[] = {"baseline", "Pos", "Pos+g", "Pos+g+p"};
constexpr int kModelParallel[] = {1, 2, 4, 8, 16};
constexpr int kRanksOfTable2 = 64;
constexpr double kMemoryOfTable2 = 32e9;

double states_gb(double parameters, int stage, double ranks) {
  return plan::model_states(parameters, stage, ranks).total_nbytes() / 1e9;
}

/// Three digits, and one behind the point of larger numbers; halves go up, as in the paper's 41.3.
std::string gb(double value) {
  const double up = value * (1 + 1e-12);
  if (up < 1) return fmt::format("{:.2f}", up);
  if (up < 100) return fmt::format("{:.3g}", up);
  return up - std::floor(up) < 0.05 ? fmt::format("{:.0f}", up) : fmt::format("{:.1f}", up);
}

std::string billions(double parameters) { return fmt::format("{:g} B parameters", parameters / 1e9); }

std::string table1() {
  std::string text = "Table 1: model states of a rank, in GB (10^9 bytes)\n ranks";
  for (const double model : kModels) text += fmt::format("{:>24}", billions(model));
  text += "\n      ";
  for (std::size_t i = 0; i < std::size(kModels); ++i)
    text += fmt::format("{:>8}{:>8}{:>8}", "Pos", "Pos+g", "Pos+g+p");
  text += '\n';
  for (const double ranks : kRanks) {
    text += fmt::format("  {:>4}", ranks);
    for (const double model : kModels) {
      for (int stage = 1; stage <= 3; ++stage) text += fmt::format("{:>8}", gb(states_gb(model, stage, ranks)));
    }
    text += '\n';
  }
  return text;
}

double largest(int stage, int model_parallel) {
  return plan::largest_model(kMemoryOfTable2, stage, kRanksOfTable2, model_parallel);
}

std::string table2() {
  std::string text = "Table 2, theory: largest model on GPUs of 32 GB, 64 for each part of the model\n";
  text += "     MP   GPUs";
  for (const char* name : kStageNames) text += fmt::format("{:>12}", name);
  text += '\n';
  for (const int mp : kModelParallel) {
    text += fmt::format("  {:>5}{:>7}", mp, mp * kRanksOfTable2);
    for (int stage = 0; stage <= 3; ++stage)
      text += fmt::format("{:>12}", fmt::format("{:.1f} B", largest(stage, mp) / 1e9));
    text += '\n';
  }
  return text;
}

}  // namespace

std::string paper_tables_text() {
  return table1() + "\n" + table2() +
         "\n2 bytes for a parameter, 2 for its gradient, 12 for its fp32 master weight and\n"
         "Adam's two moments (arXiv 1910.02054). The paper cuts off whole GB of 128 B and\n"
         "1000 B (513 for 513.5), and multiplies its rounded first row in table 2 (15.2\n"
         "for 15.3). What this engine holds is in `zero plan`.\n";
}

ordered_json paper_tables_json() {
  ordered_json states = ordered_json::array(), models = ordered_json::array();
  for (const double parameters : kModels) {
    for (const double ranks : kRanks) {
      for (int stage = 0; stage <= 3; ++stage) {
        states.push_back({{"parameters", parameters},
                          {"ranks", ranks},
                          {"stage", stage},
                          {"nbytes", plan::model_states(parameters, stage, ranks).total_nbytes()}});
      }
    }
  }
  for (const int mp : kModelParallel) {
    for (int stage = 0; stage <= 3; ++stage) {
      models.push_back({{"model_parallel", mp},
                        {"gpus", mp * kRanksOfTable2},
                        {"stage", stage},
                        {"parameters", largest(stage, mp)}});
    }
  }
  return {{"table_1", states}, {"table_2", models}};
}

}  // namespace zero::app
