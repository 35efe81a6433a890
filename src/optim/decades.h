#pragma once
// The tables of the 8-bit formats (optim/state_format.h). Decade i has first * 2^i fractions, and both ways between
// fraction and code are a line there; `first` is 1 for signed codes, else 2.

#include <cstdint>

#include "base/device_code.h"

namespace zero::optim {

inline constexpr int kDecades = 7;

/// A value for each decade. The eighth is for the one code that no value has, 255: as if the last decade went on.
struct ByDecade {
  float values[16] = {};
};
struct DecadeLines {
  ByDecade slope, offset;
};

constexpr double power_of_ten(int exponent) {
  double power = 1;
  for (int i = 0; i < -exponent; ++i) power /= 10;
  return power;
}

/// From codes to fractions.
constexpr DecadeLines fraction_lines(int first) {
  DecadeLines lines;
  for (int decade = 0; decade < kDecades; ++decade) {
    const double power = power_of_ten(decade + 1 - kDecades), count = first << decade, slope = 0.9 * power / count;
    lines.slope.values[decade] = static_cast<float>(slope);
    lines.offset.values[decade] = static_cast<float>(0.1 * power - slope * (count - first));
  }
  // The last code is 1 to the last bit.
  const float last = static_cast<float>(first * ((1 << kDecades) - 1));
  lines.offset.values[kDecades - 1] = 1 - lines.slope.values[kDecades - 1] * last;
  lines.slope.values[kDecades] = lines.slope.values[kDecades - 1];
  lines.offset.values[kDecades] = lines.offset.values[kDecades - 1];
  return lines;
}

/// From fractions to codes: what is left without the digits behind the point.
constexpr DecadeLines code_lines(int first) {
  DecadeLines lines;
  for (int decade = 0; decade < kDecades; ++decade) {
    const double power = power_of_ten(decade + 1 - kDecades), count = first << decade;
    lines.slope.values[decade] = static_cast<float>(count / (0.9 * power));
    lines.offset.values[decade] = static_cast<float>(count - first + 0.5 - count / 9);
  }
  return lines;
}

/// Where a decade ends; the largest fraction is 1.
constexpr ByDecade ends_of_decades() {
  ByDecade ends;
  for (int decade = 0; decade < kDecades; ++decade)
    ends.values[decade] = static_cast<float>(power_of_ten(decade + 1 - kDecades));
  return ends;
}

/// Where in each octave from 2^-31 to 2 a decade ends, if one does, by the last five bits of an exponent. The last four
/// bits of an end, which matter as little as which of two lines is taken where they meet, are the number of the decade
/// that the octave begins in.
struct Octaves {
  std::int32_t end[32];
};
inline constexpr std::int32_t kBeginOfOctaves = __builtin_bit_cast(std::int32_t, 0x1p-31f);  ///< below, the code is 0
constexpr Octaves octaves() {
  constexpr ByDecade kEnds = ends_of_decades();
  Octaves octaves{};
  float begin = __builtin_bit_cast(float, kBeginOfOctaves);
  for (int octave = 0; octave < 32; ++octave, begin *= 2) {
    int decade = 0;
    while (decade + 1 < kDecades && kEnds.values[decade] < begin) ++decade;
    const bool ends = decade + 1 < kDecades && kEnds.values[decade] < 2 * begin;
    const float end = ends ? kEnds.values[decade] : 2.0f;
    octaves.end[octave] = (__builtin_bit_cast(std::int32_t, end) & ~15) | decade;
  }
  return octaves;
}

/// The fraction of a magnitude is (magnitude * scale) * inverse. A block is scaled where the inverse of its largest one
/// would not be a normal number.
ZERO_DEVICE constexpr float scale_of(float largest) {
  const float of_small = largest < 0x1p-126f && largest > 0 ? 0x1p64f : 1.0f;
  return largest > 0x1p126f ? 0x1p-64f : of_small;
}
ZERO_DEVICE constexpr float inverse_of(float largest, float scale) {
  return 1.0f / (largest == 0 ? 1.0f : largest * scale);
}

}  // namespace zero::optim
