#include "persistence/weight_source.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "checkpoint/torch_pickle.h"
#include "checkpoint/weight_files.h"
#include "engine/buffers.h"
#include "engine/tensor_types.h"
#include "zero/errors.h"

namespace zero::persistence {
namespace {

using engine::stored_form;
using engine::to_element_type;
using engine::to_scalar_type;
class SafetensorsSource : public WeightSource {
 public:
  SafetensorsSource(io::FileSystem& files, const std::string& path) : weights_(files, path) {
    for (const auto& entry : weights_.entries()) tensors_.push_back({entry.name, entry.dtype, entry.shape});
  }
  const std::vector<WeightInfo>& tensors() const override { return tensors_; }
  at::Tensor read(std::size_t index) override {
    const auto& info = tensors_[index];
    at::Tensor values = at::empty(info.shape, at::TensorOptions().dtype(to_scalar_type(info.dtype)));
    weights_.read(index, {static_cast<std::byte*>(values.mutable_data_ptr()), weights_.nbytes(index)});
    return values;
  }

 private:
  checkpoint::WeightFiles weights_;
  std::vector<WeightInfo> tensors_;
};

/// Tensors that are in memory, or in a mapped file.
class TensorSource : public WeightSource {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided) {
      throw CheckpointError(fmt::format("the tensor '{}' is not a plain dense one", name));
    }
    values_.push_back(stored_form(tensor));
    const at::Tensor& values = values_.back();
    tensors_.push_back({name, to_element_type(values.scalar_type(), name), values.sizes().vec()});
  }
  const std::vector<WeightInfo>& tensors() const override { return tensors_; }
  at::Tensor read(std::size_t index) override { return values_[index].cpu().contiguous(); }

 private:
  std::vector<WeightInfo> tensors_;
  std::vector<at::Tensor> values_;
};

/// A file's bytes, read as they are touched. Tensors keep it alive.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // a FIFO would wait for a writer
    struct stat status {};
    if (fd >= 0 && ::fstat(fd, &status) == 0 && !S_ISREG(status.st_mode)) {
      ::close(fd);
      throw IoError(fmt::format("cannot read '{}': it is not a regular file", path));
    }
    if (fd >= 0 && status.st_size > 0) {
      nbytes_ = static_cast<std::size_t>(status.st_size);
      data_ = ::mmap(nullptr, nbytes_, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    const int error = errno;
    if (fd >= 0) ::close(fd);
    if (fd < 0 || data_ == MAP_FAILED) {
      throw IoError(fmt::format("cannot read '{}': {}", path, std::generic_category().message(error)));
    }
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (nbytes_ > 0) ::munmap(data_, nbytes_);
  }
  std::string_view bytes() const { return {static_cast<const char*>(data_), nbytes_}; }

 private:
  void* data_ = nullptr;
  std::size_t nbytes_ = 0;
};

/// `nbytes` of a mapped file from `offset`, as a storage's memory; read-only.
at::DataPtr memory_in(const std::shared_ptr<MappedFile>& file, std::size_t offset, std::size_t nbytes) {
  if (offset > file->bytes().size() || nbytes > file->bytes().size() - offset) {
    throw CheckpointError("a tensor's data lies beyond the end of the file");
  }
  auto* context = new std::shared_ptr<MappedFile>(file);
  return {const_cast<char*>(file->bytes().data()) + offset, context,
          [](void* pointer) { delete static_cast<std::shared_ptr<MappedFile>*>(pointer); }, at::kCPU};
}

/// Views of a mapped archive's records.
std::unique_ptr<WeightSource> read_pickle(caffe2::serialize::PyTorchStreamReader& reader, const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  const auto [pickle, nbytes] = reader.getRecord("data.pkl");
  const std::string what = fmt::format("'{}'", path);
  const auto value = checkpoint::parse_torch_pickle({static_cast<const char*>(pickle.get()), nbytes}, what);
  auto source = std::make_unique<TensorSource>();
  for (const auto& [name, tensor] : checkpoint::tensors_of_state_dict(*value, what)) {
    const std::string record = "data/" + tensor.storage;
    const auto wanted = static_cast<std::size_t>(tensor.storage_numel) * element_nbytes(tensor.dtype);
    if (reader.getRecordSize(record) < wanted) {
      throw CheckpointError(fmt::format("{}: the data of '{}' is too short", what, name));
    }
    const at::Storage storage(at::Storage::use_byte_size_t(), wanted,
                              memory_in(file, reader.getRecordOffset(record), wanted));
    const at::Tensor view = at::empty({0}, at::TensorOptions().dtype(to_scalar_type(tensor.dtype)));
    source->add(name, at::Tensor(view).set_(storage, tensor.offset, tensor.shape, tensor.strides));
  }
  return source;
}

std::unique_ptr<WeightSource> read_module_archive(const std::string& path) {
  auto source = std::make_unique<TensorSource>();
  const auto module = torch::jit::load(path, c10::Device(at::kCPU));
  for (const auto& item : module.named_parameters()) source->add(item.name, item.value);
  for (const auto& item : module.named_buffers()) source->add(item.name, item.value);
  if (source->tensors().empty()) {
    throw CheckpointError(fmt::format("'{}' holds no parameters; want torch::save(module, path)", path));
  }
  return source;
}

std::unique_ptr<WeightSource> open_torch_archive(const std::string& path) {
  constexpr std::string_view kZip = "PK\x03\x04";
  if (!MappedFile(path).bytes().starts_with(kZip)) {
    throw CheckpointError(fmt::format(
        "'{}' is neither a safetensors file (by its name) nor an archive of torch.save; archives from before "
        "torch 1.6 must be saved again by a newer one",
        path));
  }
  try {
    caffe2::serialize::PyTorchStreamReader reader(path);
    return reader.hasRecord("constants.pkl") ? read_module_archive(path) : read_pickle(reader, path);
  } catch (const c10::Error& error) {
    throw CheckpointError(
        fmt::format("'{}' cannot be read as a state dict of plain tensors: {}", path, error.what_without_backtrace()));
  }
}

}  // namespace

std::unique_ptr<WeightSource> open_weights(io::FileSystem& files, const std::string& path) {
  if (checkpoint::WeightFiles::recognises(files, path)) {
    return std::make_unique<SafetensorsSource>(files, path);
  }
  if (files.kind(path) == io::FileKind::kNone) throw IoError(fmt::format("'{}' does not exist", path));
  return open_torch_archive(path);
}

}  // namespace zero::persistence
