// A model's whole weights into and out of an engine that holds them in shards, one parameter at a time.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/load_report.h"
#include "checkpoint/model_files.h"
#include "engine/agreement.h"
#include "engine/buffers.h"
#include "engine/tensor_types.h"
#include "intercept/gradient_hook.h"
#include "persistence/checkpoints.h"
#include "persistence/weight_source.h"
#include "storage/cpu_allocator.h"
#include "zero/errors.h"

namespace zero {
namespace persistence {
namespace {

using checkpoint::agree;
using checkpoint::error_of;
using checkpoint::require_all_match;
using checkpoint::shape_mismatch;
using engine::broadcast_text;
using engine::Inventory;
using engine::name_matches;
using engine::Split;
using engine::stored_shape;
using engine::to_element_type;
using engine::to_scalar_type;

/// As error_of(), with the words of libtorch's errors and not their stack.
template <class Work>
std::string error_text(Work work) {
  return error_of([&] {
    try {
      work();
    } catch (const c10::Error& error) {
      throw ModelError(fmt::format("libtorch: {}", error.what_without_backtrace()));
    }
  });
}

/// Gives freed memory back to the system now and then. glibc finds no place for an aligned block in the gap
/// that one of the same size has left: a walk over the parameters would come to take as much as the model.
class FreedMemory {
 public:
  /// So much was freed, about.
  void add(std::uint64_t nbytes) {
    nbytes_ += nbytes;
    if (nbytes_ < kMostNbytes) return;
    storage::give_back_freed_memory();
    nbytes_ = 0;
  }

 private:
  static constexpr std::uint64_t kMostNbytes = 4 << 20;
  std::uint64_t nbytes_ = 0;
};

std::string to_json(const std::vector<WeightInfo>& tensors) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& info : tensors) list.push_back({info.name, element_type_name(info.dtype), info.shape});
  return list.dump();
}

std::vector<WeightInfo> from_json(const std::string& text) {
  std::vector<WeightInfo> tensors;
  for (const auto& item : nlohmann::json::parse(text)) {
    tensors.push_back({item[0], *checkpoint::parse_element_type(item[1].get<std::string>()), item[2]});
  }
  return tensors;
}

/// Weights of a source that only rank 0 has, matched with the model on every rank.
class FullWeightsLoader {
 public:
  FullWeightsLoader(Engine::Impl& impl, const std::string& path, const FullWeightsOptions& options)
      : impl_(impl), options_(options), what_(fmt::format("loading the weights '{}'", path)) {
    report_.folder = path;
  }

  /// Opens, lists, matches; changes nothing. *Collective.*
  void plan() {
    std::string listing;
    agree(what_, error_text([&] {
            if (impl_.groups.all.rank() != 0) return;
            source_ = open_weights(checkpoints_of(impl_).files(), report_.folder);
            listing = to_json(source_->tensors());
          }),
          impl_.groups.all);
    tensors_ = from_json(broadcast_text(std::move(listing), 0, impl_.groups.all, "weights"));
    for (std::size_t t = 0; t < tensors_.size(); ++t) index_.emplace(tensors_[t].name, t);
    agree(what_, error_text([&] { match(); }), impl_.groups.all);
    agree(what_, error_text([&] {
            if (source_ && options_.strict) check_copies();
          }),
          impl_.groups.all);
  }

  /// *Collective.*
  LoadReport apply() {
    at::NoGradGuard no_grad;
    FreedMemory freed;
    for (const auto& item : items_) {
      const auto& info = tensors_[item.tensor];
      at::Tensor values;
      agree(what_, error_text([&] {
              values = source_ ? source_->read(item.tensor)
                               : at::empty(info.shape, at::TensorOptions().dtype(to_scalar_type(info.dtype)));
            }),
            impl_.groups.all);
      if (impl_.groups.all.size() > 1 && values.numel() > 0) {
        // The root's memory is only read, so a mapped file will do.
        impl_.groups.all
            .broadcast(const_cast<void*>(values.const_data_ptr()), static_cast<std::int64_t>(values.nbytes()),
                       DType::kByte, 0, {.label = info.name})
            .wait();
      }
      item.apply(values);
      const auto nbytes = static_cast<std::uint64_t>(values.nbytes());
      values = at::Tensor();
      freed.add(nbytes);
    }
    impl_.sharded.store->publish(/*frozen_too=*/true);
    for (const auto& parameter : impl_.sharded.model.parameters) intercept::bump_version(parameter.tensor);
    report_.global_steps = impl_.training.global_steps;
    report_.micro_batches = impl_.training.micro_batches;
    return std::move(report_);
  }

 private:
  struct Item {
    std::size_t tensor;
    std::function<void(const at::Tensor&)> apply;
  };

  std::optional<std::size_t> find(const std::string& name) const {
    const auto renamed = options_.names.find(name);
    auto found = index_.find(renamed == options_.names.end() ? name : renamed->second);
    if (found == index_.end() && !options_.prefix.empty() && name.starts_with(options_.prefix))
      found = index_.find(name.substr(options_.prefix.size()));
    return found == index_.end() ? std::nullopt : std::optional(found->second);
  }
  static bool is_any_of(const std::vector<std::string>& patterns, const std::string& name) {
    return std::ranges::any_of(patterns, [&](const auto& pattern) { return name_matches(pattern, name); });
  }

  void match() {
    require_known_names(impl_.trained.inventory, options_.names, "FullWeightsOptions::names");
    std::vector<std::vector<std::string>> names(impl_.sharded.model.parameters.size());
    for (std::size_t p = 0; p < names.size(); ++p) names[p].push_back(impl_.sharded.model.parameters[p].name);
    for (const auto& [name, p] : impl_.trained.inventory.index_of) {
      if (name != names[p].front()) names[p].push_back(name);
    }
    for (const auto& [alias, name] : options_.aliases) {
      const auto found = impl_.trained.inventory.index_of.find(name);
      if (found != impl_.trained.inventory.index_of.end()) names[found->second].push_back(alias);
    }
    std::set<std::size_t> used;
    for (std::size_t p = 0; p < names.size(); ++p) match_parameter(static_cast<int>(p), names[p], used);
    for (const auto& buffer : impl_.trained.inventory.buffers) {
      if (buffer.persistent) match_buffer(buffer, used);
    }
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (!used.contains(t) && !is_any_of(options_.ignored, tensors_[t].name))
        report_.unexpected.push_back(tensors_[t].name);
    }
    if (options_.strict) {
      require_all_match(report_, "they are of another model",
                        "Set FullWeightsOptions::strict to false to load what fits, or "
                        "FullWeightsOptions::names where only names differ");
    }
  }

  /// One parameter of the model, and two tensors of the file: a model whose weights were not tied would lose one.
  void check_copies() {
    for (const auto& [first, second] : copies_) {
      if (tensors_[first].shape == tensors_[second].shape && source_->read(first).equal(source_->read(second)))
        continue;
      throw ModelError(
          fmt::format("'{}' and '{}' are one parameter of the model, and differ in the file: there they are "
                      "not tied",
                      tensors_[first].name, tensors_[second].name));
    }
  }

  /// A tied parameter may be there under each of its names.
  void match_parameter(int p, const std::vector<std::string>& names, std::set<std::size_t>& used) {
    std::optional<std::size_t> chosen;
    for (const auto& name : names) {
      const auto found = find(name);
      if (!found) continue;
      used.insert(*found);
      if (!chosen) {
        chosen = found;
      } else if (*found != *chosen) {
        copies_.emplace_back(*chosen, *found);
      }
    }
    const auto& parameter = impl_.sharded.model.parameters[p];
    if (!chosen) {
      if (!is_any_of(options_.optional, parameter.name)) report_.missing.push_back(parameter.name);
      return;
    }
    if (!fits(*chosen, parameter.name, parameter.tensor, split_of(p))) return;
    items_.push_back({*chosen, [this, p](const at::Tensor& values) { load_parameter(p, values); }});
  }

  void match_buffer(const Inventory::Named& buffer, std::set<std::size_t>& used) {
    auto found = find(buffer.name);
    if (found) used.insert(*found);
    for (const auto& alias : buffer.aliases) {
      const auto other = find(alias);
      if (other) used.insert(*other);
      if (!found) found = other;
    }
    if (!found) {
      if (!is_any_of(options_.optional, buffer.name)) report_.missing.push_back(buffer.name);
      return;
    }
    if (!fits(*found, buffer.name, buffer.tensor, buffer.split)) return;
    items_.push_back({*found, [tensor = buffer.tensor, split = buffer.split](const at::Tensor& values) {
                        engine::write_stored(tensor, split.part_of(values));
                      }});
  }

  const Split& split_of(int p) const { return impl_.trained.inventory.parameters[static_cast<std::size_t>(p)].split; }

  bool fits(std::size_t t, const std::string& name, const at::Tensor& mine, const Split& split) {
    const auto shape = split.whole_shape(stored_shape(mine));
    if (shape != tensors_[t].shape) {
      report_.mismatched.push_back(shape_mismatch(name, shape, tensors_[t].shape, "the file"));
      return false;
    }
    const bool is_whole = at::isIntegralType(mine.scalar_type(), /*includeBool=*/true);
    if (!is_whole && !checkpoint::is_floating_point(tensors_[t].dtype)) {
      report_.mismatched.push_back(
          fmt::format("{}: the file has {}", name, checkpoint::element_type_name(tensors_[t].dtype)));
      return false;
    }
    return true;
  }

  void load_parameter(int p, const at::Tensor& values) {
    const auto& parameter = impl_.sharded.model.parameters[p];
    if (parameter.range.empty()) return;
    at::Tensor flat =
        at::empty({parameter.range.numel()}, at::TensorOptions().dtype(at::kFloat).device(impl_.sharded.model.device));
    flat.as_strided(parameter.tensor.sizes(), parameter.tensor.strides(), 0).copy_(split_of(p).part_of(values));
    impl_.sharded.optimizer->load_range(parameter.unit, parameter.range, flat);
  }

  Engine::Impl& impl_;
  const FullWeightsOptions& options_;
  std::string what_;
  std::unique_ptr<WeightSource> source_;  ///< on rank 0
  std::vector<WeightInfo> tensors_;
  std::map<std::string, std::size_t> index_;
  std::vector<Item> items_;
  std::vector<std::pair<std::size_t, std::size_t>> copies_;  ///< tensors of one parameter
  LoadReport report_;
};

/// One tensor of an export: a name, and which parameter or buffer it is.
struct Exported {
  std::string name;
  int parameter = -1, buffer = -1;
  std::string file_name = name;
};

std::vector<Exported> exported_tensors(const Inventory& inventory, const sharding::ShardedModel& model,
                                       const checkpoint::ExportOptions& options) {
  std::vector<Exported> list;
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    list.push_back({model.parameters[p].name, static_cast<int>(p)});
    for (const auto& [name, index] : inventory.index_of) {
      if (index == static_cast<int>(p) && name != model.parameters[p].name) {
        list.push_back({name, static_cast<int>(p)});
      }
    }
  }
  for (std::size_t b = 0; options.include_buffers && b < inventory.buffers.size(); ++b) {
    if (!inventory.buffers[b].persistent) continue;
    list.push_back({inventory.buffers[b].name, -1, static_cast<int>(b)});
    for (const auto& alias : inventory.buffers[b].aliases) list.push_back({alias, -1, static_cast<int>(b)});
  }
  checkpoint::keep_named(options, list, &Exported::file_name);
  return list;
}

const Inventory::Named& named_of(const Engine::Impl& impl, const Exported& item) {
  return item.parameter >= 0 ? impl.trained.inventory.parameters[static_cast<std::size_t>(item.parameter)]
                             : impl.trained.inventory.buffers[static_cast<std::size_t>(item.buffer)];
}

/// A whole tensor in the file; parameters in the dtype that `dtype` asks for.
checkpoint::SafetensorsEntry entry_of(const Engine::Impl& impl, const Exported& item, const std::string& dtype) {
  const auto& [like, split] = std::tie(named_of(impl, item).tensor, named_of(impl, item).split);
  auto type = to_element_type(c10::toRealValueType(like.scalar_type()), item.name);
  if (item.parameter >= 0) type = checkpoint::exported_type(type, type, dtype);
  return {item.file_name, type, split.whole_shape(stored_shape(like)), 0, 0};
}

}  // namespace
}  // namespace persistence

LoadReport Engine::load_full_weights(const std::string& path, const FullWeightsOptions& options) {
  auto& impl = *impl_;
  impl.enter(engine::Entry::kBetweenSteps, "load_full_weights");
  persistence::FullWeightsLoader weights(impl, path, options);
  weights.plan();
  impl.sharded.store->quiesce();
  impl.groups.data_parallel.barrier({.label = "load_full_weights"}).wait();  // nobody reads old values any more
  impl.life.half_loaded = true;
  LoadReport report = weights.apply();
  impl.life.half_loaded = false;
  if (impl.sharded.local_steps) impl.sharded.local_steps->restart();
  impl.note_loaded(report);
  return report;
}

checkpoint::ExportReport Engine::save_full_weights(const std::string& folder, const checkpoint::ExportOptions& options,
                                                   const checkpoint::Progress& progress) {
  using checkpoint::ModelFiles;
  auto& impl = *impl_;
  impl.enter(engine::Entry::kReadWeights, "save_full_weights");
  impl.check_values("save_full_weights");
  at::NoGradGuard no_grad;
  const std::string what = fmt::format("writing the weights to '{}'", folder);
  const auto list = persistence::exported_tensors(impl.trained.inventory, impl.sharded.model, options);
  std::vector<checkpoint::SafetensorsEntry> entries;
  std::optional<ModelFiles> files;
  std::uint64_t total = 0, done = 0;
  checkpoint::agree(what, persistence::error_text([&] {
                      for (const auto& item : list) {
                        const auto& entry = entries.emplace_back(persistence::entry_of(impl, item, options.dtype));
                        total += static_cast<std::uint64_t>(c10::multiply_integers(entry.shape)) *
                                 element_nbytes(entry.dtype);
                      }
                      if (impl.groups.is_first()) {
                        files.emplace(persistence::checkpoints_of(impl).files(), folder, entries, options);
                      }
                    }),
                    impl.groups.all);
  checkpoint::ExportReport report;
  std::vector<std::byte> bytes;
  persistence::FreedMemory freed;
  for (std::size_t i = 0; i < list.size(); ++i) {
    at::Tensor whole =
        list[i].parameter >= 0 ? full_weight(list[i].name) : impl.trained.inventory.buffers[list[i].buffer].tensor;
    if (const auto& split = persistence::named_of(impl, list[i]).split; split.is_split())
      whole = split.gather(engine::stored_form(whole), *impl.groups.model_parallel, list[i].name);
    checkpoint::agree(what, persistence::error_text([&] {
                        if (!files) return;
                        const at::Tensor values = engine::stored_form(whole).cpu().contiguous();
                        const auto dtype = engine::to_element_type(values.scalar_type(), list[i].name);
                        bytes.resize(static_cast<std::size_t>(values.numel()) * element_nbytes(entries[i].dtype));
                        checkpoint::convert(dtype, static_cast<const std::byte*>(values.const_data_ptr()),
                                            entries[i].dtype, bytes.data(), static_cast<std::size_t>(values.numel()));
                        files->append(bytes);
                        done += bytes.size();
                        if (progress) progress(done, total);
                      }),
                      impl.groups.all);
    const auto nbytes = static_cast<std::uint64_t>(whole.nbytes());
    whole = at::Tensor();
    freed.add(nbytes);
  }
  checkpoint::agree(what, persistence::error_text([&] {
                      if (files) report = files->finish();
                    }),
                    impl.groups.all);
  report.tensors = static_cast<std::int64_t>(list.size());
  report.nbytes = total;
  if (impl.sharded.local_steps && impl.sharded.local_steps->in_round()) {
    report.notice = checkpoint::kBetweenExchanges;
    if (impl.groups.is_first()) base::log_warning("save_full_weights: {}", report.notice);
  }
  return report;
}

}  // namespace zero
