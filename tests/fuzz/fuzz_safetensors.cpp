// The header of a safetensors file.
#include <map>
#include <utility>

#include "checkpoint/safetensors.h"
#include "doubles/memory_files.h"
#include "fuzz/fuzz.h"

namespace zero::fuzz {
namespace {

using namespace checkpoint;

SafetensorsHeader read(const std::vector<std::byte>& bytes) {
  io::MemoryFileSystem files;
  files.create("/f")->close();
  files.set_bytes("/f", bytes);
  return read_safetensors_header(*files.open("/f"), "/f");
}

auto contents(const SafetensorsHeader& header) {
  std::map<std::string, std::pair<ElementType, std::vector<std::int64_t>>> result;
  for (const auto& entry : header.entries) result[entry.name] = {entry.dtype, entry.shape};
  return result;
}

void check(const SafetensorsHeader& header, std::size_t file_nbytes) {
  std::uint64_t next = 0;
  for (const auto& entry : header.entries) {
    const auto nbytes = static_cast<std::uint64_t>(checked_numel(entry.shape, "shape")) * element_nbytes(entry.dtype);
    require(entry.begin == next && entry.end == next + nbytes, "entries follow each other");
    next = entry.end;
  }
  require(header.data_begin + next == file_nbytes, "entries are the file");
}

void run(const std::vector<std::byte>& bytes) {
  SafetensorsHeader header;
  if (!accepted([&] { header = read(bytes); })) return;
  check(header, bytes.size());
  const auto before = contents(header);
  const auto metadata = header.metadata;
  const std::string text = make_safetensors_header(header, 64);
  require(text.size() == header.data_begin && text.size() % 64 == 0, "padded");
  const auto again =
      parse_safetensors_header(std::string_view(text).substr(8), text.size() + header.data_nbytes(), "again");
  require(contents(again) == before && again.metadata == metadata, "what was read can be written and read");
}

}  // namespace

const char* const kTarget = "safetensors";

}  // namespace zero::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file(bytes, bytes + size);
  zero::fuzz::run(file);
  // With a length that fits, as few inputs have one: all of it header.
  std::uint64_t length = size;
  std::vector<std::byte> header;
  for (int i = 0; i < 8; ++i, length >>= 8) header.push_back(static_cast<std::byte>(length & 0xff));
  header.insert(header.end(), file.begin(), file.end());
  zero::fuzz::run(header);
  return 0;
}
