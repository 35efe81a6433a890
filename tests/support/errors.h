#pragma once
// What a call complains of, for tests.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "zero/errors.h"

namespace zero::testing {

/// The words of the error that `call` throws; empty when it throws none.
template <class Error = CheckpointError, class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// That `call` throws an error of this library with these words.
template <class Call>
void expect_said(Call call, std::string_view words) {
  try {
    call();
    ADD_FAILURE() << "no error that says: " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find(words), std::string_view::npos) << error.what();
  }
}

inline bool mentions(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace zero::testing
