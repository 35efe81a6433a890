#include "checkpoint/torch_pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_map>

#include "checkpoint/safetensors.h"
#include "zero/errors.h"

namespace zero::checkpoint {
namespace {

using Kind = PickledValue::Kind;

constexpr int kMaxDepth = 64;

struct Storage {
  std::string_view name;
  ElementType dtype;
};
constexpr Storage kStorages[] = {
    {"torch.FloatStorage", ElementType::kF32}, {"torch.DoubleStorage", ElementType::kF64},
    {"torch.HalfStorage", ElementType::kF16},  {"torch.BFloat16Storage", ElementType::kBF16},
    {"torch.LongStorage", ElementType::kI64},  {"torch.IntStorage", ElementType::kI32},
    {"torch.ShortStorage", ElementType::kI16}, {"torch.CharStorage", ElementType::kI8},
    {"torch.ByteStorage", ElementType::kU8},   {"torch.BoolStorage", ElementType::kBool},
};

PickledPointer make(Kind kind) {
  auto value = std::make_shared<PickledValue>();
  value->kind = kind;
  return value;
}
PickledPointer make_integer(Kind kind, std::int64_t integer) {
  auto value = make(kind);
  value->integer = integer;
  return value;
}
PickledPointer make_text(Kind kind, std::string text) {
  auto value = make(kind);
  value->text = std::move(text);
  return value;
}

/// A stack machine over the opcodes of protocol 2 that torch.save and the values in state dicts use.
class Machine {
 public:
  Machine(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  PickledPointer run() {
    while (true) {
      const char opcode = byte();
      if (opcode == '.') return pop();
      execute(opcode);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw CheckpointError(fmt::format("{}: its pickle cannot be read at byte {}: {}", what_, position_, problem));
  }

  // ---- input ----
  std::string_view bytes(std::size_t count) {
    if (count > text_.size() - position_) fail("it ends too early");
    position_ += count;
    return text_.substr(position_ - count, count);
  }
  char byte() { return bytes(1)[0]; }
  /// Little-endian.
  std::uint64_t unsigned_number(std::size_t count) {
    std::uint64_t value = 0;
    const auto raw = bytes(count);
    for (std::size_t i = 0; i < count; ++i) value |= std::uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
    return value;
  }
  std::string_view line() {
    const std::size_t end = text_.find('\n', position_);
    if (end == std::string_view::npos) fail("a line has no end");
    const auto result = bytes(end - position_);
    ++position_;
    return result;
  }

  // ---- stack ----
  void push(PickledPointer value) { stack_.push_back(std::move(value)); }
  PickledPointer pop() {
    if (stack_.empty() || (!marks_.empty() && stack_.size() == marks_.back())) fail("a value is missing");
    auto value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  const PickledPointer& top() const {
    if (stack_.empty()) fail("a value is missing");
    return stack_.back();
  }
  std::vector<PickledPointer> pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickledPointer> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  void add_to(PickledValue& container, Kind kind, std::vector<PickledPointer> items) {
    if (container.kind == Kind::kObject) return;  // what an object of some class holds is of no use here
    if (container.kind != kind || (kind == Kind::kDict && items.size() % 2 != 0)) fail("values in the wrong place");
    for (auto& item : items) {
      if (item.get() == &container) fail("a value holds itself");
      container.depth = std::max(container.depth, item->depth + 1);
      container.items.push_back(std::move(item));
    }
    if (container.depth > kMaxDepth) fail("values are nested too deeply");
  }
  void push_list(std::vector<PickledPointer> items) {
    auto list = make(Kind::kList);
    add_to(*list, Kind::kList, std::move(items));
    push(std::move(list));
  }
  void push_tuple(std::size_t count) {
    std::vector<PickledPointer> items(count);
    for (std::size_t i = count; i > 0; --i) items[i - 1] = pop();
    push_list(std::move(items));
  }
  void push_memo(std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail("it refers to a value that is not there");
    push(found->second);
  }

  // ---- tensors ----
  std::int64_t integer(const PickledPointer& value) const {
    if (value->kind != Kind::kInt || value->integer < 0) fail("a size is not a whole number");
    return value->integer;
  }
  std::vector<std::int64_t> integers(const PickledPointer& value) const {
    if (value->kind != Kind::kList) fail("sizes are not a tuple");
    std::vector<std::int64_t> result;
    for (const auto& item : value->items) result.push_back(integer(item));
    return result;
  }

  /// ("storage", storage class, key, location, elements).
  PickledPointer storage(const PickledPointer& id) const {
    const bool well = id->kind == Kind::kList && id->items.size() == 5 && id->items[0]->text == "storage" &&
                      id->items[1]->kind == Kind::kObject && id->items[2]->kind == Kind::kString;
    if (!well) fail("a storage is not described as torch.save does");
    const auto* type = std::find_if(std::begin(kStorages), std::end(kStorages),
                                    [&](const Storage& one) { return one.name == id->items[1]->text; });
    if (type == std::end(kStorages)) fail(fmt::format("there is no use for a {}", id->items[1]->text));
    auto value = make(Kind::kTensor);
    value->tensor.dtype = type->dtype;
    value->tensor.storage = id->items[2]->text;
    value->tensor.storage_numel = integer(id->items[4]);
    return value;
  }

  /// (storage, offset, sizes, strides, ...).
  PickledPointer tensor(const std::vector<PickledPointer>& arguments) const {
    if (arguments.size() < 4 || arguments[0]->kind != Kind::kTensor) fail("a tensor without a storage");
    auto value = make(Kind::kTensor);
    PickledTensor& tensor = value->tensor;
    tensor = arguments[0]->tensor;
    tensor.offset = integer(arguments[1]);
    tensor.shape = integers(arguments[2]);
    tensor.strides = integers(arguments[3]);
    if (tensor.shape.size() != tensor.strides.size()) fail("sizes and strides of a tensor do not match");
    // The last element it reaches, without overflow.
    const std::int64_t numel = checked_numel(tensor.shape, what_);
    std::int64_t last = tensor.offset;
    for (std::size_t d = 0; numel > 0 && d < tensor.shape.size(); ++d) {
      std::int64_t reach = 0;
      if (__builtin_mul_overflow(tensor.shape[d] - 1, tensor.strides[d], &reach) ||
          __builtin_add_overflow(last, reach, &last)) {
        fail("a tensor is larger than its storage");
      }
    }
    if (numel > 0 && last >= tensor.storage_numel) fail("a tensor is larger than its storage");
    return value;
  }

  PickledPointer call(const std::string& name, const PickledPointer& arguments) const {
    if (arguments->kind != Kind::kList) fail("arguments are not a tuple");
    if (name == "torch._utils._rebuild_tensor_v2") return tensor(arguments->items);
    if (name == "torch._utils._rebuild_parameter" && !arguments->items.empty()) return arguments->items[0];
    if (name == "collections.OrderedDict" && arguments->items.empty()) return make(Kind::kDict);
    return make_text(Kind::kObject, name);
  }

  void execute(char opcode) {
    switch (opcode) {
      case '\x80':  // PROTO
        if (const char version = byte(); version > 5) fail(fmt::format("its protocol {} is unknown", int{version}));
        return;
      case '(':
        return marks_.push_back(stack_.size());
      case '0':  // POP
        pop();
        return;
      case 'N':
        return push(make(Kind::kNone));
      case '\x88':
        return push(make_integer(Kind::kBool, 1));
      case '\x89':
        return push(make_integer(Kind::kBool, 0));
      case 'K':
        return push(make_integer(Kind::kInt, static_cast<std::int64_t>(unsigned_number(1))));
      case 'M':
        return push(make_integer(Kind::kInt, static_cast<std::int64_t>(unsigned_number(2))));
      case 'J':
        return push(make_integer(Kind::kInt, static_cast<std::int32_t>(unsigned_number(4))));
      case '\x8a':
        return push_long(unsigned_number(1));
      case 'G': {
        std::uint64_t bits = 0;
        for (const char c : bytes(8)) bits = bits << 8 | static_cast<unsigned char>(c);
        auto value = make(Kind::kFloat);
        value->number = std::bit_cast<double>(bits);
        return push(std::move(value));
      }
      case 'X':
        return push(make_text(Kind::kString, std::string(bytes(unsigned_number(4)))));
      case '\x8c':
        return push(make_text(Kind::kString, std::string(bytes(unsigned_number(1)))));
      case 'T':
      case 'B':
        return push(make_text(Kind::kString, std::string(bytes(unsigned_number(4)))));
      case 'U':
      case 'C':
        return push(make_text(Kind::kString, std::string(bytes(unsigned_number(1)))));
      default:
        return execute_structure(opcode);
    }
  }

  void push_long(std::uint64_t count) {
    if (count > 8) fail("a whole number has more than 64 bits");
    std::uint64_t value = unsigned_number(count);
    if (count > 0 && count < 8 && (value >> (8 * count - 1)) != 0) value |= ~std::uint64_t{0} << (8 * count);
    push(make_integer(Kind::kInt, static_cast<std::int64_t>(value)));
  }

  void execute_structure(char opcode) {
    switch (opcode) {
      case '}':
        return push(make(Kind::kDict));
      case ']':
      case ')':
        return push(make(Kind::kList));
      case 't':
        return push_list(pop_to_mark());
      case '\x85':
        return push_tuple(1);
      case '\x86':
        return push_tuple(2);
      case '\x87':
        return push_tuple(3);
      case 'a': {
        auto item = pop();
        return add_to(*top(), Kind::kList, {std::move(item)});
      }
      case 'e': {
        auto items = pop_to_mark();
        return add_to(*top(), Kind::kList, std::move(items));
      }
      case 's': {
        auto value = pop(), key = pop();
        return add_to(*top(), Kind::kDict, {std::move(key), std::move(value)});
      }
      case 'u': {
        auto items = pop_to_mark();
        return add_to(*top(), Kind::kDict, std::move(items));
      }
      case 'q':
        memo_[unsigned_number(1)] = top();
        return;
      case 'r':
        memo_[unsigned_number(4)] = top();
        return;
      case 'h':
        return push_memo(unsigned_number(1));
      case 'j':
        return push_memo(unsigned_number(4));
      default:
        return execute_object(opcode);
    }
  }

  void execute_object(char opcode) {
    switch (opcode) {
      case 'c': {
        const auto module = line(), name = line();
        return push(make_text(Kind::kObject, fmt::format("{}.{}", module, name)));
      }
      case 'Q':
        return push(storage(pop()));
      case 'R': {
        const auto arguments = pop(), function = pop();
        if (function->kind != Kind::kObject) fail("a call of what is no function");
        return push(call(function->text, arguments));
      }
      case '\x81': {  // NEWOBJ
        const auto arguments = pop(), type = pop();
        return push(make_text(Kind::kObject, type->text));
      }
      case 'b':  // BUILD: attributes, of which a state dict has some of its own
        pop();
        return;
      default:
        fail(fmt::format("torch.save does not write the opcode 0x{:02x}", static_cast<unsigned char>(opcode)));
    }
  }

  std::string_view text_;
  const std::string& what_;
  std::size_t position_ = 0;
  std::vector<PickledPointer> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, PickledPointer> memo_;
};

std::string describe(const PickledValue& value) {
  switch (value.kind) {
    case Kind::kObject:
      return "an object of " + value.text;
    case Kind::kList:
      return "a list";
    case Kind::kTensor:
      return "a single tensor";
    case Kind::kDict:
      return "a dictionary without tensors";
    default:
      return "a plain value";
  }
}

/// The value of a key; null when it is not there.
const PickledValue* find(const PickledValue& dict, std::string_view key) {
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    if (dict.items[i]->kind == Kind::kString && dict.items[i]->text == key) return dict.items[i + 1].get();
  }
  return nullptr;
}

std::vector<std::pair<std::string, PickledTensor>> tensors_in(const PickledValue& dict) {
  std::vector<std::pair<std::string, PickledTensor>> tensors;
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    // Anything else is a module's extra state, which no parameter or buffer takes.
    if (dict.items[i]->kind != Kind::kString || dict.items[i + 1]->kind != Kind::kTensor) continue;
    tensors.emplace_back(dict.items[i]->text, dict.items[i + 1]->tensor);
  }
  return tensors;
}

}  // namespace

PickledPointer parse_torch_pickle(std::string_view text, const std::string& what) { return Machine(text, what).run(); }

std::vector<std::pair<std::string, PickledTensor>> tensors_of_state_dict(const PickledValue& value,
                                                                         const std::string& what) {
  if (value.kind == Kind::kDict) {
    auto tensors = tensors_in(value);
    for (const char* key : {"state_dict", "model_state_dict", "model", "module"}) {
      const auto* inner = tensors.empty() ? find(value, key) : nullptr;
      if (inner && inner->kind == Kind::kDict) tensors = tensors_in(*inner);
    }
    if (!tensors.empty()) return tensors;
  }
  throw CheckpointError(fmt::format(
      "{} holds {}, want a state dict of plain tensors: torch.save(module.state_dict(), path)", what, describe(value)));
}

}  // namespace zero::checkpoint
