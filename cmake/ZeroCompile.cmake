# Compiler settings shared by all targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

# Every target of ours goes through here. Torch's debug asserts do not match a release libtorch, so
# NDEBUG is always set towards its headers; our own checks do not depend on it. Multiply and add are
# never contracted: one curve must hold on every instruction set.
function(zero_target_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -ffp-contract=off)
  target_compile_definitions(${target} PRIVATE NDEBUG)
  if(ZERO_SANITIZE)
    list(JOIN ZERO_SANITIZE "," joined)
    target_compile_options(${target} PRIVATE -fsanitize=${joined} -fno-omit-frame-pointer -g)
    target_link_options(${target} PUBLIC -fsanitize=${joined})
  endif()
endfunction()
