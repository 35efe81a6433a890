// A whole checkpoint that somebody else wrote, with everything that reads one. The input is a manifest, two
// rank files and `latest`, cut by kCut.
#include <algorithm>
#include <cstring>
#include <optional>

#include "checkpoint/folder.h"
#include "checkpoint/range_reader.h"
#include "checkpoint/tools.h"
#include "doubles/memory_files.h"
#include "fuzz/fuzz.h"

namespace zero::fuzz {
namespace {

using namespace checkpoint;

constexpr const char* kFolder = "/ckpt/step2";

void put(io::MemoryFileSystem& files, const std::string& path, std::string_view content) {
  const auto bytes = std::as_bytes(std::span(content.data(), content.size()));
  if (files.kind(path) == io::FileKind::kNone) files.create(path)->close();
  files.set_bytes(path, {bytes.begin(), bytes.end()});
}

/// The manifest as somebody would write it who computes checksums: those of what lies in the files.
std::optional<std::string> fitting_the_files(const std::string& text, const io::MemoryFileSystem& files) {
  Manifest manifest;
  std::vector<std::vector<std::byte>> contents;
  const bool fits = accepted([&] {
    manifest = parse_manifest(text, "manifest.json");
    for (auto& file : manifest.files) {
      contents.push_back(files.bytes(io::join(kFolder, file.name)));
      file.nbytes = contents.back().size();
      file.header_checksum = checksum_of(
          std::span(contents.back()).first(static_cast<std::size_t>(std::min(file.header_nbytes, file.nbytes))));
    }
  });
  if (!fits) return std::nullopt;
  for (auto& tensor : manifest.tensors) {
    for (auto& piece : tensor.pieces) {
      const auto& bytes = contents[static_cast<std::size_t>(piece.file)];
      std::uint64_t left = static_cast<std::uint64_t>(piece.numel) * element_nbytes(tensor.info.dtype);
      if (piece.offset > bytes.size() || left > bytes.size() - piece.offset) return std::nullopt;
      std::uint64_t at = piece.offset;
      for (auto& sum : piece.checksums) {
        const std::uint64_t block = std::min(left, kBlockNbytes);
        sum = checksum_of(std::span(bytes).subspan(at, block));
        at += block;
        left -= block;
      }
    }
  }
  return to_text(manifest);
}

/// What a read gives is what lies at the places that the manifest names.
void read_range(io::MemoryFileSystem& files, const Found& found, std::size_t t, std::int64_t begin,
                std::int64_t numel) {
  const auto& tensor = found.manifest.tensors[t];
  const auto element = static_cast<std::int64_t>(element_nbytes(tensor.info.dtype));
  std::vector<std::byte> got(static_cast<std::size_t>(numel * element));
  const Target target{t, begin, numel, got.data()};
  RangeReader reader(files, found);
  if (!accepted([&] { reader.read({&target, 1}); })) return;
  for (const auto& piece : tensor.pieces) {
    const std::int64_t first = std::max(begin, piece.begin), last = std::min(begin + numel, piece.begin + piece.numel);
    if (first >= last) continue;
    const auto bytes =
        files.bytes(io::join(found.folder, found.manifest.files[static_cast<std::size_t>(piece.file)].name));
    require(std::memcmp(got.data() + (first - begin) * element,
                        bytes.data() + piece.offset + (first - piece.begin) * element,
                        static_cast<std::size_t>((last - first) * element)) == 0,
            "a read gives what is there");
  }
}

void read_ranges(io::MemoryFileSystem& files) {
  std::optional<Found> found;
  if (!accepted([&] { found = find_checkpoint(files, "/ckpt", "step2"); })) return;
  const std::size_t tensors = std::min<std::size_t>(found->manifest.tensors.size(), 8);
  for (std::size_t t = 0; t < tensors; ++t) {
    const std::int64_t numel = found->manifest.tensors[t].info.numel();
    read_range(files, *found, t, 0, numel);
    read_range(files, *found, t, numel / 3, numel / 2);
  }
}

void use(io::MemoryFileSystem& files) {
  accepted([&] { list(files, "/ckpt"); });
  accepted([&] { inspect(files, kFolder); });
  bool intact = false;
  accepted([&] { intact = verify(files, kFolder).problems.empty(); });
  accepted([&] { export_weights(files, kFolder, "/out", {.max_file_nbytes = 1000}, {}); });
  bool equal = false;
  const bool compared = accepted([&] { equal = diff(files, kFolder, kFolder).different.empty(); });
  require(!intact || !compared || equal, "a checkpoint equals itself");
  read_ranges(files);
  accepted([&] { prune(files, "/ckpt", 1, false); });
}

void run(std::string_view input) {
  const auto parts = split(input, 4);
  io::MemoryFileSystem files;
  files.make_folders(kFolder);
  put(files, io::join(kFolder, rank_file_name(0)), parts[1]);
  put(files, io::join(kFolder, rank_file_name(1)), parts[2]);
  put(files, "/ckpt/latest", parts[3]);
  const std::string path = io::join(kFolder, kManifestName);
  const std::string text = with_right_checksum(parts[0]);
  if (const auto fitting = fitting_the_files(text, files)) {
    put(files, path, *fitting);
    use(files);
  }
  put(files, path, text);
  use(files);
}

}  // namespace

const char* const kTarget = "load";

}  // namespace zero::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zero::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
