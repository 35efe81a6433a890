#pragma once
// Runs cases in forked ranks, many to a group, and compares what they have shown. Shrinks those that fail.
#include <string>
#include <vector>

#include "program.h"

namespace zero::fuzz_training {

/// What is wrong with a case; empty `kind`: nothing.
struct Verdict {
  std::string kind;  ///< "difference", "bits", "ranks", "exception", "ended"
  std::string text;
  bool ok() const { return kind.empty(); }
};

/// One verdict for each case. A rank that crashes, throws or hangs ends its group; the rest goes on in a new
/// one.
std::vector<Verdict> run_cases(const std::vector<Case>& cases);

/// The smallest case found that still fails in the same way; `verdict` becomes its own.
Case shrink(Case failing, Verdict& verdict);

std::string text_of(const Case& c);

}  // namespace zero::fuzz_training
