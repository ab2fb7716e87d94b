include(CMakePackageConfigHelpers)

set(package_directory "${CMAKE_INSTALL_LIBDIR}/cmake/evix")
set(generated "${PROJECT_BINARY_DIR}/generated")

install(TARGETS evix evix_static EXPORT evixTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(EXISTS "${PROJECT_SOURCE_DIR}/include")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
endif()
install(EXPORT evixTargets NAMESPACE evix:: DESTINATION "${package_directory}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/packaging/evixConfig.cmake.in"
                              "${generated}/evixConfig.cmake"
                              INSTALL_DESTINATION "${package_directory}")
write_basic_package_version_file("${generated}/evixConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${generated}/evixConfig.cmake" "${generated}/evixConfigVersion.cmake"
        DESTINATION "${package_directory}")

# The prefix in evix.pc is written relative to the file, so that an installed tree can be moved.
file(RELATIVE_PATH evix_pc_to_prefix
     "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file("${PROJECT_SOURCE_DIR}/packaging/evix.pc.in" "${generated}/evix.pc" @ONLY)
install(FILES "${generated}/evix.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
