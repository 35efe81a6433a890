#pragma once
// Functions of libraries that are loaded at run time.
#include <dlfcn.h>

namespace zero::device {

/// False if the library has no such function; `function` has its type.
template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace zero::device
