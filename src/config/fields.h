#pragma once
// Where a key's value is kept in Config, both ways: a row of the schema names the members that lead to it.
#include <string>
#include <type_traits>
#include <vector>

#include "config/schema.h"

namespace zero::config {

template <class T>
void assign(T& field, const Value& value) {
  if constexpr (std::is_same_v<T, bool>) {
    field = value.boolean;
  } else if constexpr (std::is_integral_v<T>) {
    field = static_cast<T>(value.count);
  } else if constexpr (std::is_floating_point_v<T>) {
    field = value.number;
  } else if constexpr (std::is_enum_v<T>) {
    field = static_cast<T>(*value.choice);
  } else if constexpr (std::is_same_v<T, std::string>) {
    field = value.text;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    field = value.texts;
  } else {
    assign(field.emplace(), value);  // std::optional
  }
}

template <class T>
Value value_of(const T& field) {
  if constexpr (std::is_same_v<T, bool>) {
    return {.boolean = field};
  } else if constexpr (std::is_integral_v<T>) {
    return {.count = field};
  } else if constexpr (std::is_floating_point_v<T>) {
    return {.number = field};
  } else if constexpr (std::is_enum_v<T>) {
    return {.choice = static_cast<std::size_t>(field)};
  } else if constexpr (std::is_same_v<T, std::string>) {
    return {.text = field};
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return {.texts = field};
  } else {
    return field ? value_of(*field) : Value{.given = false};  // std::optional
  }
}

/// The field reached by these members, one after the other. Enumerators are in the order of the key's choices.
template <auto... members>
constexpr Field field = {.bind = [](Config& config, const Value& value) { assign((config.*....*members), value); },
                         .unbind = [](const Config& config) { return value_of((config.*....*members)); }};

/// A count whose 0 means that nothing was given.
template <auto... members>
constexpr Field count_or_null = {.bind = field<members...>.bind, .unbind = [](const Config& config) {
                                   Value value = field<members...>.unbind(config);
                                   value.given = value.count != 0;
                                   return value;
                                 }};

}  // namespace zero::config
