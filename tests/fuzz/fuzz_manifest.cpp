// The manifest's parser, and that of the notes which ranks leave for each other.
#include "checkpoint/manifest.h"
#include "fuzz/fuzz.h"

namespace zero::fuzz {
namespace {

using namespace checkpoint;

/// What a reader relies on.
void check(const Manifest& manifest) {
  for (const auto& tensor : manifest.tensors) {
    const std::uint64_t element = element_nbytes(tensor.info.dtype);
    std::int64_t next = 0;
    for (const auto& piece : tensor.pieces) {
      require(piece.begin == next && piece.numel > 0, "pieces follow each other");
      next += piece.numel;
      const auto& file = manifest.files.at(static_cast<std::size_t>(piece.file));
      const std::uint64_t nbytes = static_cast<std::uint64_t>(piece.numel) * element;
      require(piece.offset >= file.header_nbytes && piece.offset + nbytes <= file.nbytes, "a piece lies in its file");
      require(piece.checksums.size() == (nbytes + kBlockNbytes - 1) / kBlockNbytes, "a checksum per block");
    }
    require(next == tensor.info.numel(), "pieces cover the tensor");
    require(checkpoint::problem_with(tensor.info.order, tensor.info.shape).empty(), "an order of all dimensions");
  }
}

void run(std::string_view text) {
  Manifest manifest;
  if (!accepted([&] { manifest = parse_manifest(text, "manifest.json"); })) return;
  check(manifest);
  const std::string written = to_text(manifest);
  require(to_text(parse_manifest(written, "written")) == written, "what was read can be written and read");
}

}  // namespace

const char* const kTarget = "manifest";

}  // namespace zero::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  zero::fuzz::run(text);
  zero::fuzz::run(zero::fuzz::with_right_checksum(text));
  zero::fuzz::accepted([&] {
    const auto part = zero::checkpoint::parse_rank_part(text, "rank_00001.part");
    zero::checkpoint::to_text(part);
  });
  return 0;
}
