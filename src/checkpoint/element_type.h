#pragma once
// Element types of checkpoint files: those of the safetensors layout that libtorch has.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace zero::checkpoint {

enum class ElementType : std::uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64 };

std::size_t element_nbytes(ElementType type);
/// "F32", "BF16", ...: the names of safetensors.
std::string_view element_type_name(ElementType type);
std::optional<ElementType> parse_element_type(std::string_view name);
bool is_floating_point(ElementType type);

/// Converts `numel` elements between floating-point types: widening is exact, narrowing rounds once to
/// nearest, fp32 to bf16 with ties away from zero (as parameters are made from their masters), else with ties to
/// even. The same type is a copy, also for the others. `from` and `to` do not overlap and need no
/// alignment. Throws CheckpointError for pairs that are not both floating-point.
void convert(ElementType from_type, const std::byte* from, ElementType to_type, std::byte* to, std::size_t numel);

}  // namespace zero::checkpoint
