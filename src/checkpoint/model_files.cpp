#include "checkpoint/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/check.h"
#include "io/io_error.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::checkpoint {
namespace {

constexpr std::string_view kTemporary = ".writing";

}  // namespace

ElementType exported_type(ElementType own, ElementType module, const std::string& wanted) {
  if (wanted == "module") return module;
  if (!is_floating_point(own)) return own;
  if (wanted == "fp32") return ElementType::kF32;
  if (wanted == "bf16") return ElementType::kBF16;
  if (wanted == "fp16") return ElementType::kF16;
  throw CheckpointError(fmt::format("'{}' is no dtype to export to; want fp32, bf16, fp16 or module", wanted));
}

ModelFiles::ModelFiles(io::FileSystem& files, std::string folder, std::vector<SafetensorsEntry> entries,
                       const ExportOptions& options)
    : files_(files), folder_(std::move(folder)), stem_(options.stem), entries_(std::move(entries)) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto nbytes = static_cast<std::uint64_t>(checked_numel(entries_[i].shape, entries_[i].name)) *
                        element_nbytes(entries_[i].dtype);
    if (parts_.empty() || (parts_.back().nbytes > 0 && parts_.back().nbytes + nbytes > options.max_file_nbytes)) {
      parts_.push_back({i, 0, 0, {}});
    }
    parts_.back().nbytes += nbytes;
    ++parts_.back().count;
    total_nbytes_ += nbytes;
  }
  if (parts_.empty()) parts_.push_back({});
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].name = parts_.size() == 1 ? stem_ + ".safetensors"
                                        : fmt::format("{}-{:05}-of-{:05}.safetensors", stem_, i + 1, parts_.size());
  }
  files_.make_folders(folder_);
  if (const std::uint64_t free = files_.free_nbytes(folder_); free < total_nbytes_ + (1 << 20)) {
    throw IoError(fmt::format("'{}' has {} free, the weights need {}", folder_, human_nbytes(free),
                              human_nbytes(total_nbytes_ + (1 << 20))));
  }
  open_part();
}

ModelFiles::~ModelFiles() {
  if (finished_) return;
  file_.reset();
  for (const Part& part : parts_) {
    try {
      io::remove_all(files_, temporary(part));
    } catch (const std::exception&) {  // the first error is already on its way
    }
  }
}

std::string ModelFiles::temporary(const Part& part) const {
  return io::join(folder_, part.name) + std::string(kTemporary);
}

std::string ModelFiles::index_name() const { return stem_ + ".safetensors.index.json"; }

void ModelFiles::open_part() {
  const Part& part = parts_[part_];
  io::remove_all(files_, temporary(part));
  file_ = files_.create(temporary(part));
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  const auto first = entries_.begin() + static_cast<std::ptrdiff_t>(part.first);
  header.entries.assign(first, first + static_cast<std::ptrdiff_t>(part.count));
  const std::string text = make_safetensors_header(header, 4096);
  file_->write(0, std::as_bytes(std::span(text)));
  file_->drain();
  offset_ = text.size();
  part_end_ = offset_ + part.nbytes;
}

void ModelFiles::close_part() {
  ZERO_CHECK(offset_ == part_end_, "{} of {} bytes written", offset_, part_end_);
  file_->sync();
  file_->close();
  file_.reset();
}

void ModelFiles::append(std::span<const std::byte> data) {
  if (data.empty()) return;
  while (offset_ == part_end_) {
    close_part();
    ++part_;
    ZERO_CHECK(part_ < parts_.size(), "more data than entries");
    open_part();
  }
  ZERO_CHECK(data.size() <= part_end_ - offset_);
  file_->write(offset_, data);
  file_->drain();
  offset_ += data.size();
}

void ModelFiles::remove_old_files() {
  const std::regex pattern(stem_ + "(-\\d{5}-of-\\d{5})?\\.safetensors(\\.index\\.json)?");
  for (const auto& name : files_.list(folder_)) {
    const bool ours = std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) { return part.name == name; });
    if (!ours && (parts_.size() == 1 || name != index_name()) && std::regex_match(name, pattern)) {
      files_.remove(io::join(folder_, name));
    }
  }
}

ExportReport ModelFiles::finish() {
  close_part();
  while (++part_ < parts_.size()) {  // parts of empty tensors
    open_part();
    close_part();
  }
  ExportReport report;
  for (const Part& part : parts_) {
    files_.rename(temporary(part), io::join(folder_, part.name));
    report.files.push_back(io::join(folder_, part.name));
  }
  finished_ = true;
  if (parts_.size() > 1) {
    nlohmann::json index = {{"metadata", {{"total_size", total_nbytes_}}}};
    for (const Part& part : parts_) {
      for (std::size_t i = 0; i < part.count; ++i) index["weight_map"][entries_[part.first + i].name] = part.name;
    }
    io::replace_text(files_, io::join(folder_, index_name()), index.dump(1) + "\n");
    report.files.push_back(io::join(folder_, index_name()));
  }
  remove_old_files();
  files_.sync_folder(folder_);
  report.tensors = static_cast<std::int64_t>(entries_.size());
  report.nbytes = total_nbytes_;
  return report;
}

}  // namespace zero::checkpoint
