# cmake --install: headers, libzerotorch, the command line, and find_package(zerotorch).
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/zero DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(zero_targets zerotorch zero_libtorch)
if(ZERO_BUILD_MODELS)
  list(APPEND zero_targets zerotorch_models)
endif()
install(TARGETS ${zero_targets} EXPORT zerotorchTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT zerotorchTargets NAMESPACE zero:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerotorch)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/zerotorchConfig.cmake.in
  ${PROJECT_BINARY_DIR}/zerotorchConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerotorch)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/zerotorchConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/zerotorchConfig.cmake ${PROJECT_BINARY_DIR}/zerotorchConfigVersion.cmake
        ${PROJECT_SOURCE_DIR}/cmake/ZeroTorch.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerotorch)
