# Compiler settings shared by all targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# ccache takes what is compiled with a precompiled header only when told that the header's macros don't matter.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

# Every target of ours goes through here. Torch's debug asserts do not match a release libtorch, so
# NDEBUG is always set towards its headers; our own checks do not depend on it. Multiply and add are
# never contracted: one curve must hold on every instruction set. One kind of position-independent code, so that
# libraries and programs can share precompiled headers. Loops over elements have flags of their own (src/CMakeLists.txt);
# the rest gains nothing from CMake's -O3, which takes a tenth longer to compile than -O2. PROGRAM: what is around the
# library (command line, tests) is compiled quickly, not for speed.
function(zero_target_options target)
  cmake_parse_arguments(arg "PROGRAM" "" "" ${ARGN})
  target_compile_options(${target} PRIVATE -fPIC $<$<CONFIG:Release>:$<IF:$<BOOL:${arg_PROGRAM}>,-Og,-O2>>)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -ffp-contract=off)
  if(NOT arg_PROGRAM)
    target_compile_options(${target} PRIVATE -Wshadow -Wextra-semi -Wnon-virtual-dtor -Woverloaded-virtual)
  endif()
  # Other compilers warn of other things, and other versions of libtorch deprecate others.
  if(ZERO_WARNINGS_AS_ERRORS AND CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\."
     AND Torch_VERSION MATCHES "^2\\.13")
    # Not those that the optimiser finds in what it has inlined: they depend on flags and are often wrong.
    target_compile_options(${target} PRIVATE -Werror -Wno-error=array-bounds -Wno-error=maybe-uninitialized
      -Wno-error=stringop-overflow -Wno-error=stringop-overread -Wno-error=tsan)
  endif()
  target_compile_definitions(${target} PRIVATE NDEBUG)
  if(ZERO_SANITIZE)
    list(JOIN ZERO_SANITIZE "," joined)
    target_compile_options(${target} PRIVATE -fsanitize=${joined} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${joined})
  endif()
endfunction()

# Half of the time of compiling a file that uses libtorch goes into libtorch's headers. zero_precompile() compiles
# them once, with the flags of libraries or of programs: `<owner>_tensors` the few that most files include, `<owner>` those
# of modules, too. Every file pays for what is in them, even for what it does not use (templates that are instantiated at
# its end: 1 s with the first, 5 s with the second), so zero_use_precompiled() gives each file of a target what it
# includes. Never a header of ours: what a file includes stays what it needs, and -DZERO_PRECOMPILE=OFF builds the same.
function(zero_precompile owner)
  foreach(name ${owner}_tensors ${owner})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${name}.cpp CONTENT "")
    add_library(${name} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${name}.cpp)
    zero_target_options(${name} ${ARGN})
    target_link_libraries(${name} PRIVATE zero_libtorch zero_torch_fmt nlohmann_json::nlohmann_json)
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endforeach()
  target_precompile_headers(${owner}_tensors PRIVATE ${PROJECT_SOURCE_DIR}/cmake/tensor_headers.h)
  target_precompile_headers(${owner} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/libtorch_headers.h)
  set_property(GLOBAL PROPERTY zero_precompiled_${owner} ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${owner}.dir/cmake_pch.hxx)
endfunction()

# Loops over elements, whose source is compiled once per instruction set: vectorised, never contracted. What is there on
# this processor is picked at run time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(zero_x86 ZERO_X86_KERNELS)
endif()

# Of <path>_generic.cpp, <path>_avx2.cpp and <path>_avx512.cpp in the list <sources>: the flags of each, for targets of
# this directory. Before zero_batch().
function(zero_per_instruction_set sources path)
  set(flags -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math)
  set_source_files_properties(${path}_generic.cpp PROPERTIES COMPILE_OPTIONS "${flags}")
  if(NOT zero_x86)
    list(FILTER ${sources} EXCLUDE REGEX "${path}_avx(2|512)\\.cpp$")
    set(${sources} ${${sources}} PARENT_SCOPE)
    return()
  endif()
  set_source_files_properties(${path}_avx2.cpp PROPERTIES COMPILE_OPTIONS "${flags};-mavx2;-mf16c")
  # GCC 12 warns of its own intrinsics where they are inlined.
  set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512cd -mprefer-vector-width=512 -Wno-maybe-uninitialized)
  set_source_files_properties(${path}_avx512.cpp PROPERTIES COMPILE_OPTIONS "${flags};${avx512}")
endfunction()

# Most of what a file of ours takes to compile is what it includes, and what it makes of that again. zero_batch() compiles
# the files of a folder a few at a time, which halves the time of a first build; whoever works on them sets ZERO_BATCH to
# 1, for a file alone is compiled sooner. So anonymous namespaces of a folder's files have no two things of one name.
# Before zero_use_precompiled(), after properties of single files, which are left alone.
function(zero_batch target)
  if(ZERO_BATCH LESS_EQUAL 1)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  set(rest "")
  set(groups "")
  foreach(source ${sources})
    get_filename_component(path ${source} ABSOLUTE BASE_DIR ${folder})
    get_source_file_property(options ${source} DIRECTORY ${folder} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} DIRECTORY ${folder} COMPILE_DEFINITIONS)
    get_source_file_property(alone ${source} DIRECTORY ${folder} SKIP_PRECOMPILE_HEADERS)
    if(options OR definitions OR alone OR NOT path MATCHES "\\.cpp$")
      list(APPEND rest ${source})
      continue()
    endif()
    zero_needs_modules(${path} needs_modules)
    get_filename_component(room ${path} DIRECTORY)
    get_filename_component(room ${room} NAME)
    set(group ${room})
    if(needs_modules)
      string(APPEND group _modules)
    endif()
    set(needs_modules_${group} ${needs_modules})
    list(APPEND groups ${group})
    list(APPEND files_${group} ${path})
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group ${groups})
    list(LENGTH files_${group} count)
    math(EXPR batches "(${count} + ${ZERO_BATCH} - 1) / ${ZERO_BATCH}")
    foreach(number RANGE 1 ${batches})
      math(EXPR first "(${number} - 1) * ${count} / ${batches}")
      math(EXPR length "${number} * ${count} / ${batches} - ${first}")
      list(SUBLIST files_${group} ${first} ${length} files)
      set(text "")
      foreach(file ${files})
        string(APPEND text "#include \"${file}\"\n")
      endforeach()
      set(batch ${PROJECT_BINARY_DIR}/batches/${target}/${group}_${number}.cpp)
      file(CONFIGURE OUTPUT ${batch} CONTENT "${text}" @ONLY)
      set_property(GLOBAL PROPERTY zero_needs_${batch} ${needs_modules_${group}})
      list(APPEND rest ${batch})
    endforeach()
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${rest})
  # Said of any file but the main one.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()

function(zero_use_precompiled owner)
  if(NOT ZERO_PRECOMPILE)
    return()
  endif()
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
    if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      target_precompile_headers(${target} REUSE_FROM ${owner})
      continue()
    endif()
    target_precompile_headers(${target} REUSE_FROM ${owner}_tensors)
    get_property(header GLOBAL PROPERTY zero_precompiled_${owner})
    get_target_property(sources ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    foreach(source ${sources})
      get_filename_component(path ${source} ABSOLUTE BASE_DIR ${folder})
      zero_needs_modules(${path} needs_modules)
      if(needs_modules)
        set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
          COMPILE_OPTIONS "-Winvalid-pch;-include;${header}" OBJECT_DEPENDS ${header}.gch)
      endif()
    endforeach()
  endforeach()
endfunction()

# Whether a file of ours includes libtorch's modules or all its operators, itself or through other files of ours. As of
# the last time CMake ran: a file that has become another since is compiled as well, if more slowly.
function(zero_needs_modules path result)
  get_property(known GLOBAL PROPERTY zero_needs_${path})
  if(NOT "${known}" STREQUAL "")
    set(${result} ${known} PARENT_SCOPE)
    return()
  endif()
  set_property(GLOBAL PROPERTY zero_needs_${path} OFF)  # where files include each other
  set(found OFF)
  file(STRINGS ${path} lines REGEX "^ *# *include")
  foreach(line ${lines})
    if(line MATCHES "<(torch/|ATen/Functions.h|ATen/ATen.h)")
      set(found ON)
    elseif(line MATCHES "\"(.*)\"")
      get_filename_component(folder ${path} DIRECTORY)
      foreach(root ${folder} ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
              ${PROJECT_SOURCE_DIR}/lm/include ${PROJECT_SOURCE_DIR}/lm ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/apps/zero)
        if(EXISTS ${root}/${CMAKE_MATCH_1})
          zero_needs_modules(${root}/${CMAKE_MATCH_1} inner)
          if(inner)
            set(found ON)
          endif()
          break()
        endif()
      endforeach()
    endif()
    if(found)
      break()
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY zero_needs_${path} ${found})
  set(${result} ${found} PARENT_SCOPE)
endfunction()
