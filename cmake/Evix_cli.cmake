# The program: build/<preset>/bin/evix, over the public headers only.
evix_glob(cli_sources "cli/*.cpp" "cli/*/*.cpp")
if(NOT cli_sources)
  return()
endif()

find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp REQUIRED)

add_executable(evix_cli ${cli_sources})
set_target_properties(evix_cli PROPERTIES OUTPUT_NAME evix)
target_compile_definitions(evix_cli PRIVATE EVIX_VERSION_TEXT="${PROJECT_VERSION}")
target_include_directories(evix_cli PRIVATE "${PROJECT_SOURCE_DIR}/cli")
target_include_directories(evix_cli SYSTEM PRIVATE "${CLI11_INCLUDE_DIR}")
target_link_libraries(evix_cli PRIVATE evix_static evix_build_flags fmt::fmt
                                       nlohmann_json::nlohmann_json)
add_dependencies(programs evix_cli)
install(TARGETS evix_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
