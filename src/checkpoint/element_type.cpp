#include "checkpoint/element_type.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/small_floats.h"
#include "zero/errors.h"

namespace zero::checkpoint {
namespace {

struct Row {
  ElementType type;
  std::string_view name;
  std::size_t nbytes;
};
constexpr std::array kRows = {
    Row{ElementType::kBool, "BOOL", 1}, Row{ElementType::kU8, "U8", 1},     Row{ElementType::kI8, "I8", 1},
    Row{ElementType::kI16, "I16", 2},   Row{ElementType::kI32, "I32", 4},   Row{ElementType::kI64, "I64", 8},
    Row{ElementType::kF16, "F16", 2},   Row{ElementType::kBF16, "BF16", 2}, Row{ElementType::kF32, "F32", 4},
    Row{ElementType::kF64, "F64", 8},
};

double load(ElementType type, const std::byte* at) {
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (type) {
    case ElementType::kF16:
      return base::widen(read(base::Float16{}));
    case ElementType::kBF16:
      return base::widen(read(base::BFloat16{}));
    case ElementType::kF32:
      return read(0.0F);
    default:
      return read(0.0);
  }
}

void store(ElementType type, double value, std::byte* at) {
  const auto write = [&](auto narrowed) { std::memcpy(at, &narrowed, sizeof narrowed); };
  // From fp64 by way of fp32: no exporter of ours goes from fp64 to 16 bits without saying so.
  const auto single = static_cast<float>(value);
  switch (type) {
    case ElementType::kF16: {
      base::Float16 out;
      base::narrow(single, out);
      return write(out);
    }
    case ElementType::kBF16: {
      base::BFloat16 out;
      base::narrow(single, out);
      return write(out);
    }
    case ElementType::kF32:
      return write(single);
    default:
      return write(value);
  }
}

/// The conversions that whole models go through, as plain loops for the vectoriser.
template <class From, class To, class Convert>
void run(const std::byte* from, std::byte* to, std::size_t numel, Convert convert_one) {
  for (std::size_t i = 0; i < numel; ++i) {
    From in;
    std::memcpy(&in, from + i * sizeof(From), sizeof in);
    const To out = convert_one(in);
    std::memcpy(to + i * sizeof(To), &out, sizeof out);
  }
}

template <class To>
To narrowed(float value) {
  To out;
  base::narrow(value, out);
  return out;
}

}  // namespace

std::size_t element_nbytes(ElementType type) { return kRows[static_cast<std::size_t>(type)].nbytes; }
std::string_view element_type_name(ElementType type) { return kRows[static_cast<std::size_t>(type)].name; }

std::optional<ElementType> parse_element_type(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

bool is_floating_point(ElementType type) { return type >= ElementType::kF16; }

void convert(ElementType from_type, const std::byte* from, ElementType to_type, std::byte* to, std::size_t numel) {
  using enum ElementType;
  if (from_type == to_type) {
    if (numel > 0) std::memcpy(to, from, numel * element_nbytes(from_type));
    return;
  }
  if (!is_floating_point(from_type) || !is_floating_point(to_type)) {
    throw CheckpointError(
        fmt::format("no conversion from {} to {}", element_type_name(from_type), element_type_name(to_type)));
  }
  if (from_type == kF32 && to_type == kBF16) {
    return run<float, base::BFloat16>(from, to, numel, [](float v) { return base::round_parameter(v); });
  }
  if (from_type == kF32 && to_type == kF16) {
    return run<float, base::Float16>(from, to, numel, narrowed<base::Float16>);
  }
  if (from_type == kBF16 && to_type == kF32) {
    return run<base::BFloat16, float>(from, to, numel, [](base::BFloat16 v) { return base::widen(v); });
  }
  if (from_type == kF16 && to_type == kF32) {
    return run<base::Float16, float>(from, to, numel, [](base::Float16 v) { return base::widen(v); });
  }
  for (std::size_t i = 0; i < numel; ++i) {
    store(to_type, load(from_type, from + i * element_nbytes(from_type)), to + i * element_nbytes(to_type));
  }
}

}  // namespace zero::checkpoint
