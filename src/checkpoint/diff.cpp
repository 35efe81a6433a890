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

constexpr std::int64_t kComparedNumel = 4 << 20;

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
  if (a.shape != b.shape) return fmt::format("shape [{}] and [{}]", fmt::join(a.shape, ", "), fmt::join(b.shape, ", "));
  if (a.dtype != b.dtype) return fmt::format("dtype {} and {}", element_type_name(a.dtype), element_type_name(b.dtype));
  return {};
}

/// All elements of a tensor.
void make_row_major(std::vector<std::byte>& bytes, const TensorInfo& info) {
  if (info.order.is_row_major()) return;
  std::vector<std::byte> ordered(bytes.size());
  to_row_major(bytes.data(), ordered.data(), info.shape, info.order, element_nbytes(info.dtype));
  bytes.swap(ordered);
}

void compare_json(const std::string& what, const std::string& a, const std::string& b, std::vector<std::string>& out) {
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

/// Reads two checkpoints side by side.
class Differ {
 public:
  Differ(io::FileSystem& files, const std::string& path_a, const std::string& path_b, const Progress& progress)
      : a_(find_checkpoint(files, path_a)),
        b_(find_checkpoint(files, path_b)),
        reader_a_(files, a_),
        reader_b_(files, b_),
        progress_(progress) {
    for (const auto& tensor : a_.manifest.tensors)
      total_ += static_cast<std::uint64_t>(tensor.info.numel()) * element_nbytes(tensor.info.dtype);
  }

  DiffReport run() {
    compare_tensors();
    const Manifest &a = a_.manifest, &b = b_.manifest;
    if (a.world_size != b.world_size)
      report_.state.push_back(fmt::format("world size: {} and {}", a.world_size, b.world_size));
    compare_json("state", a.state, b.state, report_.state);
    compare_json("client_state", a.client_state, b.client_state, report_.state);
    return std::move(report_);
  }

 private:
  /// Streams of random numbers belong to ranks, which other numbers of ranks have not.
  bool is_of_a_missing_rank(const TensorInfo& info) const {
    return info.kind == "random_state" && a_.manifest.world_size != b_.manifest.world_size;
  }

  void compare_tensors() {
    std::map<std::string, std::size_t> in_b;
    for (std::size_t t = 0; t < b_.manifest.tensors.size(); ++t) in_b[b_.manifest.tensors[t].info.key()] = t;
    for (std::size_t t = 0; t < a_.manifest.tensors.size(); ++t) {
      const TensorInfo& info = a_.manifest.tensors[t].info;
      TensorDifference difference{info.name, info.kind, {}, 0, 0};
      if (const auto found = in_b.find(info.key()); found == in_b.end()) {
        difference.note = "only in A";
      } else {
        difference.note = obstacle(info, b_.manifest.tensors[found->second].info);
        if (difference.note.empty()) compare_values(t, found->second, difference);
        in_b.erase(found);
      }
      if (!difference.note.empty() && is_of_a_missing_rank(info)) {
        report_.state.push_back(fmt::format("{} {}: {}", info.kind, info.name, difference.note));
        continue;
      }
      ++report_.compared;
      if (difference.note.empty() && difference.differing == 0) {
        ++report_.identical;
      } else {
        report_.different.push_back(std::move(difference));
      }
    }
    for (const auto& [key, t] : in_b) {
      const TensorInfo& info = b_.manifest.tensors[t].info;
      if (is_of_a_missing_rank(info)) {
        report_.state.push_back(fmt::format("{} {}: only in B", info.kind, info.name));
        continue;
      }
      report_.different.push_back({info.name, info.kind, "only in B", 0, 0});
    }
  }

  /// Tensors of the same shape and dtype: part by part, or whole where their elements lie in different orders.
  void compare_values(std::size_t t_a, std::size_t t_b, TensorDifference& difference) {
    const TensorInfo &info_a = a_.manifest.tensors[t_a].info, &info_b = b_.manifest.tensors[t_b].info;
    const bool same_order = info_a.order == info_b.order;
    const std::int64_t numel = info_a.numel(), part = same_order ? kComparedNumel : numel;
    for (std::int64_t begin = 0; begin < numel; begin += part) {
      const std::int64_t count = std::min(part, numel - begin);
      bytes_a_.resize(static_cast<std::size_t>(count) * element_nbytes(info_a.dtype));
      bytes_b_.resize(bytes_a_.size());
      const Target want_a{t_a, begin, count, bytes_a_.data()}, want_b{t_b, begin, count, bytes_b_.data()};
      reader_a_.read({&want_a, 1});
      reader_b_.read({&want_b, 1});
      if (!same_order) {
        make_row_major(bytes_a_, info_a);
        make_row_major(bytes_b_, info_b);
      }
      compare(info_a.dtype, bytes_a_, bytes_b_, difference);
      done_ += bytes_a_.size();
      if (progress_) progress_(done_, total_);
    }
  }

  Found a_, b_;
  RangeReader reader_a_, reader_b_;
  const Progress& progress_;
  std::uint64_t total_ = 0, done_ = 0;
  std::vector<std::byte> bytes_a_, bytes_b_;
  DiffReport report_;
};

}  // namespace

DiffReport diff(io::FileSystem& files, const std::string& path_a, const std::string& path_b, const Progress& progress) {
  return Differ(files, path_a, path_b, progress).run();
}

}  // namespace zero::checkpoint
