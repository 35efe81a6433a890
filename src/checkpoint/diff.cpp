#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/range_reader.h"
#include "checkpoint/tools.h"

namespace zero::checkpoint {
namespace {

constexpr std::int64_t kPartNumel = 4 << 20;

double value_at(ElementType type, const std::byte* at) {
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<double>(value);
  };
  switch (type) {
    case ElementType::kBool:
    case ElementType::kU8:
      return read(std::uint8_t{});
    case ElementType::kI8:
      return read(std::int8_t{});
    case ElementType::kI16:
      return read(std::int16_t{});
    case ElementType::kI32:
      return read(std::int32_t{});
    case ElementType::kI64:
      return read(std::int64_t{});
    case ElementType::kF64:
      return read(double{});
    default: {
      float value = 0;
      convert(type, at, ElementType::kF32, reinterpret_cast<std::byte*>(&value), 1);
      return value;
    }
  }
}

void compare(ElementType type, const std::vector<std::byte>& a, const std::vector<std::byte>& b,
             TensorDifference& difference) {
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  const std::size_t element = element_nbytes(type);
  for (std::size_t at = 0; at < a.size(); at += element) {
    if (std::memcmp(a.data() + at, b.data() + at, element) == 0) continue;
    ++difference.differing;
    const double distance = std::abs(value_at(type, a.data() + at) - value_at(type, b.data() + at));
    // A NaN stays: it compares false with everything.
    if (!(distance <= difference.largest)) difference.largest = distance;
  }
}

/// Why two tensors of one name cannot be compared element by element; empty when they can.
std::string obstacle(const TensorInfo& a, const TensorInfo& b) {
  if (a.shape != b.shape)
    return fmt::format("shape [{}] and [{}]", fmt::join(a.shape, ", "), fmt::join(b.shape, ", "));
  if (a.dtype != b.dtype)
    return fmt::format("dtype {} and {}", element_type_name(a.dtype), element_type_name(b.dtype));
  return {};
}

/// All elements of a tensor.
void make_row_major(std::vector<std::byte>& bytes, const TensorInfo& info) {
  if (info.order.is_row_major()) return;
  std::vector<std::byte> ordered(bytes.size());
  to_row_major(bytes.data(), ordered.data(), info.shape, info.order, element_nbytes(info.dtype));
  bytes.swap(ordered);
}

void compare_json(const std::string& what, const std::string& a, const std::string& b,
                  std::vector<std::string>& out) {
  const auto json_a = nlohmann::json::parse(a), json_b = nlohmann::json::parse(b);
  for (const auto& change : nlohmann::json::diff(json_a, json_b)) {
    const auto path = change.at("path").get<std::string>();
    const auto show = [&](const nlohmann::json& json) {
      const nlohmann::json::json_pointer pointer(path);
      return json.contains(pointer) ? json.at(pointer).dump() : std::string("nothing");
    };
    out.push_back(fmt::format("{}{}: {} and {}", what, path, show(json_a), show(json_b)));
  }
}

}  // namespace

DiffReport diff(io::FileSystem& files, const std::string& path_a, const std::string& path_b,
                const Progress& progress) {
  const Found a = find_checkpoint(files, path_a), b = find_checkpoint(files, path_b);
  RangeReader reader_a(files, a), reader_b(files, b);
  DiffReport report;
  std::map<std::string, std::size_t> in_b;
  for (std::size_t t = 0; t < b.manifest.tensors.size(); ++t) in_b[b.manifest.tensors[t].info.key()] = t;
  std::uint64_t total = 0, done = 0;
  for (const auto& tensor : a.manifest.tensors) {
    total += static_cast<std::uint64_t>(tensor.info.numel()) * element_nbytes(tensor.info.dtype);
  }
  std::vector<std::byte> bytes_a, bytes_b;
  for (std::size_t t = 0; t < a.manifest.tensors.size(); ++t) {
    const TensorInfo& info = a.manifest.tensors[t].info;
    TensorDifference difference{info.name, info.kind, {}, 0, 0};
    const auto found = in_b.find(info.key());
    if (found == in_b.end()) {
      difference.note = "only in A";
    } else {
      difference.note = obstacle(info, b.manifest.tensors[found->second].info);
    }
    const std::size_t element = element_nbytes(info.dtype);
    const bool same_order = found != in_b.end() && info.order == b.manifest.tensors[found->second].info.order;
    const std::int64_t part = same_order ? kPartNumel : info.numel();
    for (std::int64_t begin = 0; difference.note.empty() && begin < info.numel(); begin += part) {
      const std::int64_t count = std::min(part, info.numel() - begin);
      bytes_a.resize(static_cast<std::size_t>(count) * element);
      bytes_b.resize(bytes_a.size());
      const Target want_a{t, begin, count, bytes_a.data()},
          want_b{found->second, begin, count, bytes_b.data()};
      reader_a.read({&want_a, 1});
      reader_b.read({&want_b, 1});
      if (!same_order) {
        make_row_major(bytes_a, info);
        make_row_major(bytes_b, b.manifest.tensors[found->second].info);
      }
      compare(info.dtype, bytes_a, bytes_b, difference);
      done += bytes_a.size();
      if (progress) progress(done, total);
    }
    if (found != in_b.end()) in_b.erase(found);
    ++report.compared;
    if (difference.note.empty() && difference.differing == 0) {
      ++report.identical;
    } else {
      report.different.push_back(std::move(difference));
    }
  }
  for (const auto& [key, t] : in_b) {
    const TensorInfo& info = b.manifest.tensors[t].info;
    report.different.push_back({info.name, info.kind, "only in B", 0, 0});
  }
  if (a.manifest.world_size != b.manifest.world_size) {
    report.state.push_back(
        fmt::format("world size: {} and {}", a.manifest.world_size, b.manifest.world_size));
  }
  compare_json("state", a.manifest.state, b.manifest.state, report.state);
  compare_json("client_state", a.manifest.client_state, b.manifest.client_state, report.state);
  return report;
}

}  // namespace zero::checkpoint
