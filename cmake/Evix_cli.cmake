# The program: build/<preset>/bin/evix, over the public headers only. Its parts are a library of
# their own, so that tests/cli can reach them.
evix_glob(cli_sources "cli/*.cpp" "cli/*/*.cpp")
if(NOT cli_sources)
  return()
endif()
set(cli_main "${PROJECT_SOURCE_DIR}/cli/main.cpp")
list(REMOVE_ITEM cli_sources "${cli_main}")

find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp REQUIRED)

add_library(evix_cli_parts STATIC ${cli_sources})
target_compile_definitions(evix_cli_parts PUBLIC EVIX_VERSION_TEXT="${PROJECT_VERSION}")
target_include_directories(evix_cli_parts PUBLIC "${PROJECT_SOURCE_DIR}/cli")
target_include_directories(evix_cli_parts SYSTEM PUBLIC "${CLI11_INCLUDE_DIR}")
target_link_libraries(evix_cli_parts PUBLIC evix_static fmt::fmt nlohmann_json::nlohmann_json
                                     PRIVATE evix_build_flags)

add_executable(evix_cli "${cli_main}")
set_target_properties(evix_cli PROPERTIES OUTPUT_NAME evix)
target_link_libraries(evix_cli PRIVATE evix_cli_parts evix_build_flags)
add_dependencies(programs evix_cli)
install(TARGETS evix_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
