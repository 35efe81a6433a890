#pragma once
// Checks that all ranks agree, and errors that all ranks throw together.
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "zero/group.h"

namespace zero::engine {

/// Call before throwing an error that every rank has found. Blocks until every rank has found it too, so that no rank
/// leaves the group while others still read its data. Where one has left all the same, nothing is thrown. *Collective.*
void leave_together(Group& group);

/// Returns root's text on every rank. *Collective.*
std::string broadcast_text(std::string text, int root, Group& group, std::string_view label);

/// Compares `text` line by line with rank 0's. Nullopt if all ranks agree; else, the same on every rank, the lowest
/// rank that differs, its first differing line and rank 0's. *Collective.*
std::optional<std::string> first_difference(const std::string& text, Group& group, std::string_view label);

/// True when all ranks have the same bits in `values`, a dense tensor. *Collective.*
bool have_same_values(const at::Tensor& values, Group& group, std::string_view label);

}  // namespace zero::engine
