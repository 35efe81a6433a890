#pragma once
// What a call complains of, for tests.
#include <string>
#include <string_view>

#include "zero/errors.h"

namespace zero::testing {

/// The words of the CheckpointError that `call` throws; empty when it throws none.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

inline bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace zero::testing
