# cpack -G DEB (make package): the command line, the libraries and headers, and libtorch's libraries beside them, so that
# nothing else has to be there. For the system it is built on.
get_filename_component(zero_torch_lib ${TORCH_INSTALL_PREFIX}/lib ABSOLUTE)
# A wheel with CUDA has libraries that a CPU build does not load.
foreach(name libtorch.so libtorch_cpu.so libc10.so)
  list(APPEND zero_torch_libraries ${zero_torch_lib}/${name})
endforeach()
file(GLOB zero_torch_more ${zero_torch_lib}/libgomp*.so* ${zero_torch_lib}/libmkl*.so* ${zero_torch_lib}/libiomp5.so)
install(FILES ${zero_torch_libraries} ${zero_torch_more} DESTINATION ${CMAKE_INSTALL_LIBDIR}/zerotorch
        COMPONENT libtorch EXCLUDE_FROM_ALL)
file(GLOB zero_torch_licenses ${TORCH_INSTALL_PREFIX}/../torch-*.dist-info/licenses/LICENSE
     ${TORCH_INSTALL_PREFIX}/../torch-*.dist-info/licenses/NOTICE ${TORCH_INSTALL_PREFIX}/LICENSE ${TORCH_INSTALL_PREFIX}/NOTICE)
install(FILES ${zero_torch_licenses} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/zerotorch/libtorch COMPONENT libtorch EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/zerotorch RENAME copyright
        COMPONENT libtorch EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/zerotorch
        COMPONENT libtorch EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME zerotorch)
set(CPACK_PACKAGE_CONTACT "zerotorch developers <zerotorch@localhost>")
set(CPACK_PACKAGE_DESCRIPTION "Trains models that do not fit one process, from the DeepSpeed JSON people have, on the CPUs
of one or several hosts: optimizer states, gradients and parameters are divided among the ranks (ZeRO stages 1 to 3), or
kept on NVMe. The command line zero, the C++ library for libtorch, and libtorch itself.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};zerotorch;Unspecified;/" "${PROJECT_BINARY_DIR};zerotorch;libtorch;/")
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/package_rpath.cmake)
set(CPACK_THREADS 0)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${zero_torch_lib})
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openmpi-bin, python3-matplotlib")
include(CPack)
