#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/model_files.h"
#include "checkpoint/range_reader.h"
#include "checkpoint/tools.h"
#include "zero/errors.h"

namespace zero::checkpoint {
namespace {

constexpr std::int64_t kPartNumel = 8 << 20;  ///< elements that are read and converted at once

struct Item {
  std::size_t tensor;
  std::string name, file_name;  ///< in the checkpoint, and in the export
  ElementType dtype;
};

ElementType type_of(const TensorInfo& info, const std::string& wanted) {
  return info.kind == kinds::kBuffer ? info.dtype : exported_type(info.dtype, info.module_dtype, wanted);
}

std::vector<Item> items_of(const Manifest& manifest, const ExportOptions& options) {
  std::vector<Item> items;
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const TensorInfo& info = manifest.tensors[t].info;
    const bool wanted = info.kind == kinds::kWeight || (info.kind == kinds::kBuffer && options.include_buffers);
    if (!wanted) continue;
    const ElementType dtype = type_of(info, options.dtype);
    items.push_back({t, info.name, info.name, dtype});
    for (const auto& alias : info.aliases) items.push_back({t, alias, alias, dtype});
  }
  keep_named(options, items, &Item::file_name);
  return items;
}

}  // namespace

ExportReport export_weights(io::FileSystem& files, const std::string& path, const std::string& to,
                            const ExportOptions& options, const Progress& progress) {
  const Found found = find_checkpoint(files, path);
  // What the manifest only claims takes no memory.
  check_complete(files, found.folder, found.manifest);
  const auto items = items_of(found.manifest, options);
  std::vector<SafetensorsEntry> entries;
  std::uint64_t total = 0, done = 0;
  for (const Item& item : items) {
    const TensorInfo& info = found.manifest.tensors[item.tensor].info;
    entries.push_back({item.file_name, item.dtype, info.shape, 0, 0});
    total += static_cast<std::uint64_t>(info.numel()) * element_nbytes(item.dtype);
  }
  ModelFiles out(files, to, std::move(entries), options);
  RangeReader reader(files, found);
  std::vector<std::byte> raw, ordered, converted;
  for (const Item& item : items) {
    const TensorInfo& info = found.manifest.tensors[item.tensor].info;
    const std::size_t element = element_nbytes(info.dtype);
    const std::int64_t numel = info.numel();
    const std::int64_t part = info.order.is_row_major() ? kPartNumel : numel;
    for (std::int64_t begin = 0; begin < numel; begin += part) {
      const std::int64_t count = std::min(part, numel - begin);
      raw.resize(static_cast<std::size_t>(count) * element);
      const Target target{item.tensor, begin, count, raw.data()};
      reader.read({&target, 1});
      if (!info.order.is_row_major()) {
        ordered.resize(raw.size());
        to_row_major(raw.data(), ordered.data(), info.shape, info.order, element);
        raw.swap(ordered);
      }
      converted.resize(static_cast<std::size_t>(count) * element_nbytes(item.dtype));
      convert(info.dtype, raw.data(), item.dtype, converted.data(), static_cast<std::size_t>(count));
      out.append(converted);
      done += converted.size();
      if (progress) progress(done, total);
    }
  }
  ExportReport report = out.finish();
  if (std::ranges::any_of(found.manifest.tensors,
                          [](const auto& tensor) { return tensor.info.kind == kinds::kOuterWeight; }))
    report.notice = kBetweenExchanges;
  return report;
}

}  // namespace zero::checkpoint
