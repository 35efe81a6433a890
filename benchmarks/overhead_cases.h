#pragma once
// The cases of benchmarks/overhead.cpp.
#include <string>
#include <vector>

#include "zero/zero.h"

namespace bench {

struct OverheadOptions {
  std::vector<int> stages;
  std::string dtypes = "fp32,bf16";
  int steps = 400;
  int layers = 4;
  bool tiny_steps = true;
  std::vector<int> sizes{3, 6, 12, 24, 48, 120};
  std::vector<int> units{10, 30, 100, 300, 1000};
  bool billion = false;
};

/// This process: its group, one thread, on its own CPU.
struct Rank {
  Rank();
  zero::Group group;
};

void measure_tiny_steps(Rank& rank, const OverheadOptions& options);
void measure_operators(Rank& rank);
void measure_sizes(Rank& rank, const OverheadOptions& options);
void measure_units(Rank& rank, const OverheadOptions& options);

}  // namespace bench
