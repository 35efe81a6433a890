#pragma once
// Whether all ranks say the same.
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "zero/group.h"

namespace zero::engine {

/// An error that every rank has found alike and is about to throw: returns when all ranks know as much, so
/// that the first to leave does not take from the others what they still have to read. *Collective.*
void leave_together(Group& group);

/// Every rank gets root's text. *Collective.*
std::string broadcast_text(std::string text, int root, Group& group, std::string_view label);

/// Compares line by line with rank 0's text. Empty when all agree; else, the same on every rank: the
/// lowest rank that differs, its first differing line and rank 0's. *Collective.*
std::optional<std::string> first_difference(const std::string& text, Group& group, std::string_view label);

/// True when all ranks have the same bits in `values`, a dense tensor. *Collective.*
bool have_same_values(const at::Tensor& values, Group& group, std::string_view label);

}  // namespace zero::engine
