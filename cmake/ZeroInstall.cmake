# cmake --install: headers, libzerotorch, libzerotorch_lm, the command line, and find_package(zerotorch).
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/zero DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(zero_targets zerotorch zero_libtorch)
if(ZERO_BUILD_LM)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/lm/include/zero DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  list(APPEND zero_targets zerotorch_lm)
endif()
install(TARGETS ${zero_targets} EXPORT zerotorchTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT zerotorchTargets NAMESPACE zero:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerotorch)
# What is installed, without tests, benchmarks and the Python package.
add_custom_target(zero_installed DEPENDS ${zero_targets})
foreach(target zero zerotorch_cuda)
  if(TARGET ${target})
    add_dependencies(zero_installed ${target})
  endif()
endforeach()
if(ZERO_INSTALL_LIBTORCH)
  set(zero_torch_config_dir "\${CMAKE_CURRENT_LIST_DIR}/../../zerotorch/libtorch/share/cmake/Torch")
  # Hard links where the file system allows them: some 0.5 GB.
  install(CODE "
    set(from \"${TORCH_INSTALL_PREFIX}\")
    set(to \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${ZERO_INSTALLED_LIBTORCH}\")
    message(STATUS \"Installing: \${to}\")
    file(REMOVE_RECURSE \${to})
    file(MAKE_DIRECTORY \${to}/share)
    foreach(part lib include share/cmake)
      execute_process(COMMAND cp -RL --link \${from}/\${part} \${to}/\${part} RESULT_VARIABLE failed ERROR_QUIET)
      if(failed)
        file(REMOVE_RECURSE \${to}/\${part})
        execute_process(COMMAND cp -RL \${from}/\${part} \${to}/\${part} COMMAND_ERROR_IS_FATAL ANY)
      endif()
    endforeach()
    file(GLOB_RECURSE copied LIST_DIRECTORIES false \${CMAKE_INSTALL_PREFIX}/${ZERO_INSTALLED_LIBTORCH}/*)
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES \${copied})" COMPONENT libtorch_tree)
else()
  set(zero_torch_config_dir "${TORCH_INSTALL_PREFIX}/share/cmake/Torch")
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/zerotorchConfig.cmake.in
  ${PROJECT_BINARY_DIR}/zerotorchConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerotorch)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/zerotorchConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/zerotorchConfig.cmake ${PROJECT_BINARY_DIR}/zerotorchConfigVersion.cmake
        ${PROJECT_SOURCE_DIR}/cmake/ZeroTorch.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zerotorch)
