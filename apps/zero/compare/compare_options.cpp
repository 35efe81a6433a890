#include "compare/compare_options.h"

#include <CLI/CLI.hpp>

#include "text/options.h"

namespace zero::app {

void add_compare_options(CLI::App& command, CompareOptions& options) {
  add_options(command, pick(train_rows(options.train),
                            {{"--data"},
                             {"--suffix"},
                             {"--cache-dir"},
                             {"--preset"},
                             {"--layers"},
                             {"--dim"},
                             {"--heads"},
                             {"--seq"},
                             {"--ranks"},
                             {"--config", "DeepSpeed JSON; its stage and store are replaced by each mode's"},
                             {"--steps", "optimizer steps of each mode, warm-up included (default 12)"},
                             {"--seed", "of the data order and the initial weights (default 1234)"},
                             {"--dtype"},
                             {"--device"},
                             {"--force", "start also a mode that does not fit the memory"},
                             {"--quiet", "print only the tables and errors"},
                             {"--as-rank"}}));
  const char* const group = "Comparison";
  add_options(
      command,
      {{"--modes", &options.modes, choices("compute|stage0|stage1|stage2|stage3|stage3-copying"),
        "of compute (forward and backward alone), stage0, stage1, stage2, stage3, stage3-copying", group},
       {"--warmup", &options.warmup, whole(0, 1 << 20), "first steps of each mode whose time does not count", group},
       {"--rounds", &options.rounds, whole(1, 1 << 10),
        "how often every mode runs, in turns, forwards and backwards: a machine that slows down slows all", group},
       {"--out", &options.out, Values{"DIR"},
        "folder of compare.json and the pictures; default: comparisons/<date-time>-<preset>", group},
       {"--no-plot", &options.no_plot, Values{}, "draw no picture", group},
       {"--python", &options.python, Values{"FILE"}, "interpreter with matplotlib, for the picture", group},
       {"--json", &options.json, Values{}, "print compare.json in place of tables", group}});
  command.footer(
      "Examples:\n"
      "  zero compare            stages 0 to 3 on two ranks, about four minutes\n"
      "  zero compare --preset gpt-152m --steps 6 --modes compute,stage0,stage3");
}

}  // namespace zero::app
