# Makes the target `torch`: libtorch's headers, and its libraries for the CPU. Sets TORCH_INSTALL_PREFIX. In the build of
# zerotorch and, installed beside its package, in projects that use it.
#
# The package of a libtorch with CUDA inside (PyPI's wheel) wants a CUDA toolkit, which a machine without a GPU has not.
if(NOT TARGET torch)
  if(NOT Torch_DIR)
    find_file(zero_torch_config TorchConfig.cmake NO_CACHE PATHS ${CMAKE_PREFIX_PATH} PATH_SUFFIXES share/cmake/Torch Torch)
    if(zero_torch_config)
      get_filename_component(Torch_DIR ${zero_torch_config} DIRECTORY)
    endif()
  endif()
  set(zero_torch_prefix)
  if(Torch_DIR)
    get_filename_component(zero_torch_prefix ${Torch_DIR}/../../.. ABSOLUTE)
  endif()
  if(zero_torch_prefix AND EXISTS ${zero_torch_prefix}/lib/libtorch_cuda.so)
    set(TORCH_INSTALL_PREFIX ${zero_torch_prefix})
    add_library(torch INTERFACE IMPORTED)
    target_include_directories(torch SYSTEM INTERFACE ${zero_torch_prefix}/include
      ${zero_torch_prefix}/include/torch/csrc/api/include)
    target_link_libraries(torch INTERFACE ${zero_torch_prefix}/lib/libtorch_cpu.so ${zero_torch_prefix}/lib/libc10.so)
    message(STATUS "libtorch has CUDA inside; zerotorch uses what it has for the CPU")
  else()
    # It warns of libraries that its own package leaves out, with a call stack, in every project that uses it.
    set(zero_log_level ${CMAKE_MESSAGE_LOG_LEVEL})
    set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
    find_package(Torch REQUIRED)
    set(CMAKE_MESSAGE_LOG_LEVEL ${zero_log_level})
  endif()
endif()

# zero::libtorch_cuda, where libtorch has CUDA inside: for programs whose module is on a GPU. Nothing calls it by name, so
# the linker is told to keep it.
if(NOT TARGET zero::libtorch_cuda AND EXISTS ${TORCH_INSTALL_PREFIX}/lib/libtorch_cuda.so)
  add_library(zero::libtorch_cuda INTERFACE IMPORTED)
  target_link_libraries(zero::libtorch_cuda INTERFACE
    "-Wl,--push-state,--no-as-needed,${TORCH_INSTALL_PREFIX}/lib/libtorch_cuda.so,--pop-state,--allow-shlib-undefined")
endif()
