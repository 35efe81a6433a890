# libtorch comes from a `torch` wheel or a libtorch folder: -DTorch_DIR=.../share/cmake/Torch or
# CMAKE_PREFIX_PATH. All else from the system.
if(NOT ZERO_FUZZ)
  if(SKBUILD AND NOT Torch_DIR)
    # pip builds the wheel: for the torch of the Python that runs it.
    execute_process(COMMAND ${Python3_EXECUTABLE} -c "import torch.utils; print(torch.utils.cmake_prefix_path)"
      OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE no_torch)
    if(no_torch)
      message(FATAL_ERROR "zerotorch is built for the torch that is installed, and the Python of this build has none. "
        "Install torch, then type:  pip install --no-build-isolation .")
    endif()
    list(PREPEND CMAKE_PREFIX_PATH ${torch_prefix})
  endif()
  include(${CMAKE_CURRENT_LIST_DIR}/ZeroTorch.cmake)
  if(NOT Torch_VERSION)
    file(STRINGS ${TORCH_INSTALL_PREFIX}/include/torch/headeronly/version.h ZERO_TORCH_VERSION_LINES
         REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" ZERO_TORCH_VERSION_NUMBERS "${ZERO_TORCH_VERSION_LINES}")
    string(JOIN "." Torch_VERSION ${ZERO_TORCH_VERSION_NUMBERS})
  endif()
  message(STATUS "libtorch ${Torch_VERSION} in ${TORCH_INSTALL_PREFIX}")
  if(Torch_VERSION AND (Torch_VERSION VERSION_LESS 2.11 OR Torch_VERSION VERSION_GREATER_EQUAL 2.16))
    message(WARNING "zerotorch is tested with libtorch 2.11 to 2.15, this is ${Torch_VERSION}")
  endif()

  # A libtorch in this folder (.venv, which make fetches) is installed, too: what is installed outlives the folder. One
  # with CUDA inside needs the packages around it, and stays where it is.
  cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${TORCH_INSTALL_PREFIX}" NORMALIZE zero_has_own_libtorch)
  if(SKBUILD OR EXISTS ${TORCH_INSTALL_PREFIX}/lib/libtorch_cuda.so)
    set(zero_has_own_libtorch OFF)
  endif()
  option(ZERO_INSTALL_LIBTORCH "Install a copy of libtorch with zerotorch" ${zero_has_own_libtorch})
  set(ZERO_INSTALLED_LIBTORCH "${CMAKE_INSTALL_LIBDIR}/zerotorch/libtorch")

  # What is installed finds its neighbours and its libtorch.
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}" "$ORIGIN")
  if(ZERO_INSTALL_LIBTORCH)
    list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../${ZERO_INSTALLED_LIBTORCH}/lib" "$ORIGIN/zerotorch/libtorch/lib")
  else()
    list(APPEND CMAKE_INSTALL_RPATH "${TORCH_INSTALL_PREFIX}/lib")
  endif()
  if(SKBUILD)
    set(CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/../torch/lib")
  endif()

  # Torch's imported targets carry flags of its own build; we only want headers and libraries.
  add_library(zero_libtorch INTERFACE)
  add_library(zero::libtorch ALIAS zero_libtorch)
  set_target_properties(zero_libtorch PROPERTIES EXPORT_NAME libtorch)
  target_link_libraries(zero_libtorch INTERFACE torch)
endif()

find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
add_library(zero_xxhash INTERFACE)
target_include_directories(zero_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})
target_link_libraries(zero_xxhash INTERFACE ${XXHASH_LIBRARY})

# Asynchronous files; without it threads do the same.
find_path(URING_INCLUDE_DIR liburing.h)
find_library(URING_LIBRARY uring)
if(URING_INCLUDE_DIR AND URING_LIBRARY)
  set(ZERO_WITH_URING ON)
endif()

# Ranks on several hosts without MPI. Its library is loaded when it is needed: only the headers must be there.
find_path(UCX_INCLUDE_DIR ucp/api/ucp.h)
if(UCX_INCLUDE_DIR AND NOT ZERO_FUZZ)
  set(ZERO_WITH_UCX ON)
endif()

if(ZERO_BUILD_LM AND NOT ZERO_FUZZ)
  find_package(CLI11 REQUIRED)
endif()
if(ZERO_WITH_MPI AND NOT ZERO_FUZZ)
  find_package(MPI COMPONENTS CXX)
endif()
# The package is for the Python that the wheel's torch was made for; a libtorch folder has no torch for Python. Sanitizers
# would have to be loaded before the interpreter.
if(ZERO_BUILD_PYTHON AND NOT ZERO_FUZZ AND NOT ZERO_SANITIZE)
  find_library(ZERO_TORCH_PYTHON_LIBRARY torch_python PATHS ${TORCH_INSTALL_PREFIX}/lib NO_DEFAULT_PATH)
  if(NOT Python3_EXECUTABLE AND EXISTS ${TORCH_INSTALL_PREFIX}/../../../../bin/python)
    get_filename_component(Python3_EXECUTABLE ${TORCH_INSTALL_PREFIX}/../../../../bin/python ABSOLUTE)
  endif()
  find_package(Python3 3.10 COMPONENTS Interpreter Development.Module)
  if(ZERO_TORCH_PYTHON_LIBRARY AND Python3_Development.Module_FOUND)
    set(ZERO_WITH_PYTHON ON)
    message(STATUS "Python package for ${Python3_EXECUTABLE}")
  else()
    message(STATUS "No Python package: it needs libtorch of a torch wheel and Python's headers (python3-dev)")
  endif()
endif()
if(ZERO_BUILD_TESTS AND NOT ZERO_FUZZ)
  find_package(GTest REQUIRED)
endif()
