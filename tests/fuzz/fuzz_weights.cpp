// Weights that somebody else wrote. The input is an index and the files one and two, cut by kCut; without an
// index it is model.safetensors alone.
#include <cstring>
#include <optional>

#include "checkpoint/weight_files.h"
#include "doubles/memory_files.h"
#include "fuzz/fuzz.h"

namespace zero::fuzz {
namespace {

using namespace checkpoint;

void put(io::MemoryFileSystem& files, const std::string& path, std::string_view content) {
  const auto bytes = std::as_bytes(std::span(content.data(), content.size()));
  files.create(path)->close();
  files.set_bytes(path, {bytes.begin(), bytes.end()});
}

void run(std::string_view input) {
  const auto parts = split(input, 3);
  io::MemoryFileSystem files;
  files.make_folders("/m");
  if (!parts[0].empty()) put(files, "/m/model.safetensors.index.json", parts[0]);
  put(files, parts[0].empty() ? "/m/model.safetensors" : "/m/one.safetensors", parts[1]);
  put(files, "/m/two.safetensors", parts[2]);
  accepted([&] {
    WeightFiles weights(files, "/m");
    for (std::size_t i = 0; i < weights.entries().size(); ++i) {
      require(weights.nbytes(i) <= input.size(), "an entry lies in its file");
      std::vector<std::byte> data(weights.nbytes(i));
      weights.read(i, data);
    }
  });
}

}  // namespace

const char* const kTarget = "weights";

}  // namespace zero::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zero::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
