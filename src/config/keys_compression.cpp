// Compression, quantisation and sparse attention: what changes the model.
#include "config/schema.h"

namespace zero::config {
namespace {

using enum KeyStatus;

constexpr std::string_view kCompression = "compression is not built; remove the section";
constexpr std::string_view kQuantize = "quantised training is not built; remove the section";
constexpr std::string_view kSparse = "sparse attention belongs to the model; remove the section";

constexpr Key section(std::string_view path, std::string_view note, std::string_view gate) {
  return {.path = path,
          .kind = Kind::kSection,
          .fallback = "null",
          .status = kRefused,
          .note = note,
          .gate = gate};
}
constexpr Key inside(std::string_view path, std::string_view note) {
  return {.path = path, .kind = Kind::kAny, .status = kRefused, .note = note};
}

constexpr Key kKeys[] = {
    section("compression_training", kCompression, "**"),
    inside("compression_training.layer_reduction", kCompression),
    inside("compression_training.weight_quantization", kCompression),
    inside("compression_training.activation_quantization", kCompression),
    inside("compression_training.sparse_pruning", kCompression),
    inside("compression_training.row_pruning", kCompression),
    inside("compression_training.head_pruning", kCompression),
    inside("compression_training.channel_pruning", kCompression),
    section("quantize_training", kQuantize, "**"),
    inside("quantize_training.*", kQuantize),
    section("weight_quantization", kQuantize, "*"),
    inside("weight_quantization.*", kQuantize),
    section("sparse_attention", kSparse, "*"),
    inside("sparse_attention.*", kSparse),
};

}  // namespace

std::span<const Key> compression_keys() { return kKeys; }

}  // namespace zero::config
