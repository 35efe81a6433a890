#include "config/binder.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/values.h"
#include "zero/nearest_name.h"

namespace zero::config {
namespace {

using nlohmann::json;

/// What others call a key.
constexpr OtherName kOtherNames[] = {{"learning_rate", "lr"},
                                     {"weight_decay_rate", "weight_decay"},
                                     {"epsilon", "eps"},
                                     {"adam_epsilon", "eps"},
                                     {"beta1", "betas"},
                                     {"beta2", "betas"},
                                     {"batch_size", "train_batch_size"},
                                     {"global_batch_size", "train_batch_size"},
                                     {"micro_batch_size", "train_micro_batch_size_per_gpu"},
                                     {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
                                     {"max_grad_norm", "gradient_clipping"},
                                     {"clip_grad", "gradient_clipping"},
                                     {"zero", "zero_optimization"},
                                     {"warmup_steps", "warmup_num_steps"},
                                     {"num_warmup_steps", "warmup_num_steps"},
                                     {"max_lr", "warmup_max_lr"},
                                     {"total_steps", "total_num_steps"}};

constexpr std::string_view kWrapper = "config_params";

std::string join(const std::string& section, const std::string& name) {
  return section.empty() ? name : section + "." + name;
}

bool any_enabled(const json& value) {
  if (!value.is_structured()) return false;
  if (value.is_object() && value.value("/enabled"_json_pointer, json()) == true) return true;
  return std::any_of(value.begin(), value.end(), any_enabled);
}

class Binder {
 public:
  Binder(const Document& document, Config& config, Problems& problems)
      : document_(document), config_(config), problems_(problems) {}

  GivenKeys run() {
    const json* root = &document_.root;
    if (root->is_object() && root->size() == 1 && root->contains(kWrapper)) {
      config_.notices.push_back("config_params: the wrapper is not needed; its content is read as the top level");
      root = &root->at(std::string(kWrapper));
      wrapped_ = true;
    }
    if (root->is_object()) {
      read_section(*root, {"", "", true});
    } else {
      problems_.add(1, fmt::format("got {}, want an object {{...}}", shown(*root)));
    }
    return std::move(given_);
  }

 private:
  /// Where we are: the path as written and under its current name; `active` is false inside a section that
  /// is switched off, whose members are checked for name and kind only.
  struct Place {
    std::string written;
    std::string current;
    bool active;
  };

  int line_of(const std::string& written) const {
    return document_.line_of(wrapped_ ? join(std::string(kWrapper), written) : written);
  }
  void problem(const Place& at, const std::string& text) {
    problems_.add(line_of(at.written), fmt::format("{}: {}", at.written, text));
  }
  void notice(const Place& at, const std::string& text) {
    config_.notices.push_back(fmt::format("{}: {}", at.written, text));
  }

  void read_section(const json& object, const Place& section) {
    for (const auto& [name, value] : object.items()) {
      read_member(value, {join(section.written, name), join(section.current, name), section.active}, section, name);
    }
  }

  void read_member(const json& value, Place at, const Place& section, const std::string& name) {
    const Key* key = find_key(at.current);
    // A dot in a name is no path: {"zero_optimization.stage": 1} must not be taken for the real thing.
    if (key == nullptr || name.find('.') != std::string::npos) return unknown(at, section, name);
    if (value.is_null() && key->nullable) return;
    if (!key->means.empty() && at.active && value.is_boolean()) {
      if (value == false) return;
      notice(at, fmt::format("old key; write '{}': \"{}\"", key->alias_of, key->means));
      at.current = key->alias_of;
      return take(*find_key(key->alias_of), key->means, at, section);
    }
    if (!key->alias_of.empty() && at.active) key = follow_alias(*key, at);
    take(*key, value, at, section);
  }

  /// The value of a key under its current name.
  void take(const Key& schema_key, const json& value, const Place& at, const Place& section) {
    const bool of_optimizer = schema_key.path.starts_with("optimizer.params.");
    const Key key = of_optimizer ? for_optimizer(optimizer_type(), schema_key) : schema_key;
    if (value.is_null() && key.fallback == "null") return;
    const auto [earlier, inserted] = given_.emplace(at.current, Given{at.written, line_of(at.written), {}});
    if (!inserted) {
      return problem(at, fmt::format("given twice: '{}' on line {} is the same setting; remove one",
                                     earlier->second.path, earlier->second.line));
    }
    if (key.kind == Kind::kSection) return read_subsection(key, value, at);
    if (is_auto(key, value)) return at.active && !is_off(section) ? refuse_auto(key, at) : void();
    Checked checked = check_value(key, value);
    if (!checked.ok()) return problem(at, checked.problem);
    if (at.active) settle(key, value, checked.value, at);
    earlier->second.value = std::move(checked.value);
  }

  /// Old names whose replacement has the same form are read as the replacement; the others have a row that
  /// says what becomes of them.
  const Key* follow_alias(const Key& alias, Place& at) {
    notice(at, fmt::format("old name; write '{}'", alias.alias_of));
    const Key* target = find_key(alias.alias_of);
    if (target->kind != alias.kind) return &alias;
    at.current = target->path;
    return target;
  }

  void settle(const Key& key, const json& json_value, const Value& value, const Place& at) {
    switch (key.status) {
      case KeyStatus::kHonoured:
        if (key.field.bind != nullptr) key.field.bind(config_, value);
        return;
      case KeyStatus::kNoEffect:
        if (!is_harmless(key, json_value)) notice(at, fmt::format("accepted, no effect: {}", key.note));
        return;
      case KeyStatus::kRefused:
        if (!is_harmless(key, json_value)) refuse(key, json_value, at);
        return;
    }
  }

  void refuse(const Key& key, const json& value, const Place& at) {
    problem(at, fmt::format("{} is not supported: {}", shown(value), key.note));
  }

  void read_subsection(const Key& key, const json& value, const Place& at) {
    if (key.path == "zero_optimization" && value.is_boolean()) {
      config_.zero_optimization.stage = value.get<bool>() ? 1 : 0;
      return notice(at, fmt::format("old form; write {{\"stage\": {}}}", config_.zero_optimization.stage));
    }
    if (!value.is_object()) return problem(at, check_value(key, value).problem);
    if (!key.gate.empty()) {
      if (at.active && switched_on(key, value, at)) return;
      if (names_in(key.path).empty()) return look_for_switches(key, value, at);
      return read_section(value, {at.written, at.current, false});
    }
    if (key.path.ends_with(".params") && !type_available(at)) return;
    read_section(value, at);
  }

  /// In a section that is off and has no rows of its members: one that would switch it on but for its spelling.
  void look_for_switches(const Key& section, const json& object, const Place& at) {
    for (const auto& [name, value] : object.items()) {
      const std::string_view near = nearest_name(name, split(section.gate), kOtherNames);
      if (near.empty() || near == name) continue;
      problem({join(at.written, name), join(at.current, name), at.active},
              fmt::format("unknown key; did you mean '{}'?", near));
    }
  }

  /// Reports and returns true when a section we refuse is switched on.
  bool switched_on(const Key& section, const json& object, const Place& at) {
    if (section.gate == "*" || section.gate == "**") {
      const bool off = object.empty() || object.value("/enabled"_json_pointer, json()) == false;
      const bool on = section.gate == "*" ? !off : any_enabled(object);
      if (on) problem(at, std::string(section.note));
      return on;
    }
    for (const std::string_view name : split(section.gate)) {
      const auto member = object.find(std::string(name));
      if (member == object.end() || member->is_null()) continue;
      const Place gate{join(at.written, std::string(name)), join(at.current, std::string(name)), true};
      const Key* key = find_key(gate.current);
      if (key != nullptr && is_auto(*key, *member)) {
        refuse_auto(*key, gate);
        return true;
      }
      const bool misfit = key != nullptr && !check_value(*key, *member).ok();  // reported with the others
      if (misfit || is_harmless(section, *member)) continue;
      if (section.status == KeyStatus::kNoEffect) {
        notice(at, fmt::format("accepted, no effect: {}", section.note));
        return false;
      }
      problem(gate, fmt::format("{} is not supported: {}", shown(*member), section.note));
      return true;
    }
    return false;
  }

  /// A section with "enabled": false.
  bool is_off(const Place& section) const {
    json::json_pointer pointer(wrapped_ ? "/" + std::string(kWrapper) : "");
    std::string_view rest = section.written;
    while (!rest.empty()) {
      const auto end = std::min(rest.find('.'), rest.size());
      pointer /= std::string(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return document_.root.value(pointer / std::string("enabled"), json()) == false;
  }

  /// As the document has it, in the spelling of the schema; empty: none, or none that is there.
  std::string optimizer_type() const {
    const json::json_pointer pointer((wrapped_ ? "/" + std::string(kWrapper) : "") + "/optimizer/type");
    if (!document_.root.contains(pointer)) return {};
    return check_value(*find_key("optimizer.type"), document_.root.at(pointer)).value.text;
  }

  /// Parameters of an optimizer or schedule that we do not have would only be reported as unknown.
  bool type_available(const Place& params) const {
    const std::string section = params.current.substr(0, params.current.rfind('.'));
    json::json_pointer pointer(wrapped_ ? "/" + std::string(kWrapper) : "");
    pointer /= section;
    pointer /= "type";
    if (!document_.root.contains(pointer)) return true;
    return check_value(*find_key(section + ".type"), document_.root.at(pointer)).ok();
  }

  static bool is_auto(const Key& key, const json& value) {
    return value == "auto" && key.kind != Kind::kString && key.kind != Kind::kAny && !check_value(key, value).ok();
  }

  void refuse_auto(const Key& key, const Place& at) {
    const bool has_default = !key.fallback.empty() && key.fallback != "null";
    const std::string put =
        has_default ? fmt::format("write {} or remove the key", key.fallback) : fmt::format("write {}", wanted(key));
    problem(at, fmt::format("\"auto\" is filled in by Hugging Face's trainer, which is not here; {}", put));
  }

  void unknown(const Place& at, const Place& section, const std::string& name) {
    if (name.starts_with('_')) return notice(at, "not read: a name that begins with '_' is taken for a comment");
    std::string text = "unknown key";
    const auto elsewhere = sections_with(name);
    const std::string_view near = nearest_name(name, names_in(section.current), kOtherNames);
    const std::string place = section.current.empty() ? "the top level" : "'" + section.current + "'";
    if (!near.empty()) {
      text += fmt::format("; did you mean '{}'?", near);
    } else if (elsewhere.size() == 1) {
      text += elsewhere[0].empty() ? fmt::format("; '{}' belongs at the top level", name)
                                   : fmt::format("; '{}' belongs in '{}'", name, elsewhere[0]);
    } else {
      text += fmt::format("; docs/config.md lists the keys of {}", place);
    }
    problem(at, text);
  }

  const Document& document_;
  Config& config_;
  Problems& problems_;
  GivenKeys given_;
  bool wrapped_ = false;
};

/// False for what belongs to an optimizer or schedule that is not there, or to one of another type.
bool is_used(const Key& key, const Config& config) {
  const Key* type = find_key(std::string(key.path.substr(0, key.path.find('.'))) + ".type");
  if (type == nullptr || type->field.unbind == nullptr) return true;
  const Value used = type->field.unbind(config);
  return used.given && takes(chosen(*type, used), key);
}

nlohmann::ordered_json::json_pointer pointer_to(std::string_view path) {
  std::string pointer = "/" + std::string(path);
  std::ranges::replace(pointer, '.', '/');
  return nlohmann::ordered_json::json_pointer(pointer);
}

}  // namespace

nlohmann::ordered_json unbind(const Config& config) {
  nlohmann::ordered_json root;
  for (const Key* key : all_keys()) {
    if (key->field.unbind == nullptr || !is_used(*key, config)) continue;
    root[pointer_to(key->path)] = json_of(*key, key->field.unbind(config));
  }
  return root;
}

GivenKeys bind(const Document& document, Config& config, Problems& problems) {
  return Binder(document, config, problems).run();
}

}  // namespace zero::config
