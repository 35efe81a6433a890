# zerotorch_cuda: the passes as CUDA kernels, a library of its own that zerotorch loads where it is beside it. Built where
# nvcc is found; nothing else needs it, and without it a GPU's memory is updated by libtorch's operators. By a command, as
# CMake's own CUDA knows C++20 of newer compilers only, and makes a compiler that does not work the whole build's problem.
# With a libtorch for CPUs they would be of no use, and take minutes: ZERO_WITH_CUDA=ON, also in the environment, builds
# them all the same.
set(zero_with_cuda OFF)
if(EXISTS ${TORCH_INSTALL_PREFIX}/lib/libtorch_cuda.so OR "$ENV{ZERO_WITH_CUDA}")
  set(zero_with_cuda ON)
endif()
option(ZERO_WITH_CUDA "Build CUDA kernels when nvcc is found" ${zero_with_cuda})
if(NOT ZERO_WITH_CUDA OR ZERO_SANITIZE)
  return()
endif()
find_program(ZERO_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin PATH_SUFFIXES bin)
if(NOT ZERO_NVCC)
  return()
endif()
# Without contraction of multiply and add, with the division and square root of IEEE, without flush to zero: the bits of
# the CPU.
set(zero_nvcc ${ZERO_NVCC} -std=c++20 -O3 --fmad=false --prec-div=true --prec-sqrt=true --ftz=false
  --expt-relaxed-constexpr -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off --cudart=static
  -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include)
set(zero_cuda_source ${PROJECT_SOURCE_DIR}/src/optim/cuda/kernels.cu)
if(NOT DEFINED ZERO_CUDA_ARCHITECTURES)
  file(WRITE ${PROJECT_BINARY_DIR}/CMakeFiles/probe.cu "#include <span>\n__global__ void probe() {}\n")
  foreach(architecture 80 90 100)
    execute_process(COMMAND ${zero_nvcc} -arch=sm_${architecture} -c ${PROJECT_BINARY_DIR}/CMakeFiles/probe.cu
      -o ${PROJECT_BINARY_DIR}/CMakeFiles/probe.o RESULT_VARIABLE problem OUTPUT_QUIET ERROR_QUIET)
    if(NOT problem)
      list(APPEND architectures ${architecture})
    endif()
  endforeach()
  set(ZERO_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "Of CUDA kernels; the last one also as PTX, for newer GPUs")
endif()
if(NOT ZERO_CUDA_ARCHITECTURES)
  message(STATUS "zerotorch: ${ZERO_NVCC} compiles nothing of ours: no kernels of our own on GPUs")
  return()
endif()
set(codes "")
foreach(architecture IN LISTS ZERO_CUDA_ARCHITECTURES)
  list(APPEND codes -gencode=arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(GET ZERO_CUDA_ARCHITECTURES -1 newest)
list(APPEND codes -gencode=arch=compute_${newest},code=compute_${newest})
set(zero_cuda_library ${PROJECT_BINARY_DIR}/src/libzerotorch_cuda.so)
add_custom_command(OUTPUT ${zero_cuda_library}
  COMMAND ${zero_nvcc} ${codes} -MD -MF ${zero_cuda_library}.d -shared ${zero_cuda_source} -o ${zero_cuda_library}
  # Beside the library that tests and benchmarks use, too.
  COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/src/open
  COMMAND ${CMAKE_COMMAND} -E create_symlink ${zero_cuda_library} ${PROJECT_BINARY_DIR}/src/open/libzerotorch_cuda.so
  DEPENDS ${zero_cuda_source} DEPFILE ${zero_cuda_library}.d COMMENT "Compiling CUDA kernels for ${ZERO_CUDA_ARCHITECTURES}"
  VERBATIM)
add_custom_target(zerotorch_cuda ALL DEPENDS ${zero_cuda_library})
install(FILES ${zero_cuda_library} DESTINATION ${CMAKE_INSTALL_LIBDIR} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
  GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE OPTIONAL)
