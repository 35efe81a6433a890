// What the engine itself costs, where the model is too small to hide it.
//
//   overhead [--ranks 1,2] [--stages 0,3] [--dtypes fp32,bf16]      steps of a 1M-parameter model; operators
//   overhead --scaling [--ranks 1,2] [--billion]                   against size, number of units;
//   initialize()
//
// Steps: loops take turns, 25 steps at a time: forward and backward of a model with private parameters,
// gradients dropped ("bare"); the same and our kernels on this rank's share of the gradients ("kernels");
// with several ranks also a step of ZeRO written by hand, with one exchange of all gradients ("exchange");
// the engine. First the engine and the kernels train from the same weights on the same data and must have
// the same losses, bit for bit. One JSON line per case on rank 0; microseconds are medians.
#include <fmt/format.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <iostream>
#include <sstream>

#include "overhead_cases.h"
#include "zero/launch.h"

namespace {

std::vector<int> numbers(const std::string& list) {
  std::vector<int> result;
  std::stringstream words(list);
  for (std::string word; std::getline(words, word, ',');) result.push_back(std::stoi(word));
  return result;
}

int start_ranks(int ranks) {
  const char* level = std::getenv("ZERO_LOG_LEVEL");
  return zero::launch({.nproc = ranks,
                       .command = zero::own_command(),
                       .prefix_output = false,
                       .environment = {{"ZERO_LOG_LEVEL", level ? level : "warning"}}});
}

}  // namespace

int main(int argc, char** argv) {
  bench::OverheadOptions options;
  std::string ranks = "1,2", stages = "0,3";
  bool scaling = false, operators = true;
  CLI::App app("What the engine itself costs.");
  app.add_option("--ranks", ranks, "one run for each number");
  app.add_option("--stages", stages);
  app.add_option("--dtypes", options.dtypes);
  app.add_option("--steps", options.steps, "of each loop");
  app.add_option("--layers", options.layers, "512 wide: 4 are 1M parameters");
  app.add_flag("!--no-operators", operators);
  app.add_flag("!--no-steps", options.tiny_steps);
  app.add_flag("--scaling", scaling);
  app.add_option("--sizes", options.sizes, "layers 2,048 wide, for --scaling: 24 are 101M parameters");
  app.add_option("--units", options.units, "numbers of units, for --scaling");
  app.add_flag("--billion", options.billion, "also 1B parameters, alone in memory, one rank: minutes");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!zero::launched_rank()) {
      for (const int n : numbers(ranks)) {
        if (const int code = start_ranks(n)) return code;
      }
      return 0;
    }
    options.stages = numbers(stages);
    bench::Rank rank;
    if (scaling) {
      bench::measure_sizes(rank, options);
      bench::measure_units(rank, options);
    } else {
      if (options.tiny_steps) bench::measure_tiny_steps(rank, options);
      if (operators && rank.group.size() == 1) bench::measure_operators(rank);
    }
    rank.group.barrier().wait();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "overhead: " << error.what() << "\n";
    return 2;
  }
}
