# tests/<layer>/*.cpp → one GoogleTest program per layer, test_<layer>; its tests are named
# <layer>.Suite.Case in ctest. tests/support is linked into each of them.
find_package(GTest REQUIRED)
include(GoogleTest)

file(WRITE "${PROJECT_BINARY_DIR}/generated/support_anchor.cpp.new" "")
file(COPY_FILE "${PROJECT_BINARY_DIR}/generated/support_anchor.cpp.new"
     "${PROJECT_BINARY_DIR}/generated/support_anchor.cpp" ONLY_IF_DIFFERENT)
evix_glob(support_sources "tests/support/*.cpp")
# Its operator new is only for the programs that ask for it.
list(FILTER support_sources EXCLUDE REGEX "/allocations\\.cpp$")
add_library(test_support STATIC ${support_sources}
                                "${PROJECT_BINARY_DIR}/generated/support_anchor.cpp")
target_include_directories(test_support PUBLIC "${PROJECT_SOURCE_DIR}/src"
                                               "${PROJECT_SOURCE_DIR}/tests")
target_compile_definitions(test_support PUBLIC EVIX_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
target_link_libraries(test_support PUBLIC evix_static evix_lenient_flags GTest::gmock GTest::gtest)
if(EVIX_TEST_PCH)
  target_precompile_headers(
    test_support PRIVATE <gmock/gmock.h> <gtest/gtest.h> <algorithm> <chrono> <cstdint>
    <expected> <functional> <memory> <string> <string_view> <thread> <vector>)
endif()

add_library(test_allocations OBJECT "${PROJECT_SOURCE_DIR}/tests/support/allocations.cpp")
target_link_libraries(test_allocations PRIVATE test_support)

function(evix_add_test_program layer)
  evix_glob(sources "tests/${layer}/*.cpp")
  if(NOT sources)
    return()
  endif()
  add_executable(test_${layer} ${sources})
  target_link_libraries(test_${layer} PRIVATE test_support GTest::gtest_main)
  if(layer STREQUAL "cli")
    # Its libraries define macros that the shared precompiled header was made without.
    target_link_libraries(test_cli PRIVATE evix_cli_parts)
  elseif(EVIX_TEST_PCH)
    target_precompile_headers(test_${layer} REUSE_FROM test_support)
  endif()

  evix_glob(c_sources "tests/${layer}/*.c")
  if(c_sources)
    add_library(test_${layer}_c OBJECT ${c_sources})
    target_compile_options(test_${layer}_c PRIVATE -pedantic-errors)
    target_link_libraries(test_${layer}_c PRIVATE evix_static evix_lenient_flags)
    target_link_libraries(test_${layer} PRIVATE test_${layer}_c)
  endif()

  # The same tests over the library with the mistakes in it (tests/mutations). Its objects come
  # first: the linker then takes their inline functions, and nothing from the library itself.
  add_executable(mutants_${layer} EXCLUDE_FROM_ALL $<TARGET_OBJECTS:evix_mutants>
                                                   $<TARGET_OBJECTS:test_${layer}>)
  set_target_properties(
    mutants_${layer} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME test_${layer}
                                RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/mutants")
  target_link_libraries(mutants_${layer} PRIVATE test_support GTest::gtest_main)

  # Discovery before the tests rather than after each link keeps rebuilds short.
  gtest_discover_tests(
    test_${layer}
    TEST_PREFIX "${layer}."
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    PROPERTIES TIMEOUT 60 LABELS ${layer} ENVIRONMENT
               "EVIX_PROGRAM=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/evix")
endfunction()

foreach(layer base op sys poll backend loop io task capi regress)
  evix_add_test_program(${layer})
endforeach()
foreach(layer task regress)
  if(TARGET test_${layer})
    target_link_libraries(test_${layer} PRIVATE test_allocations)
    target_link_libraries(mutants_${layer} PRIVATE test_allocations)
  endif()
endforeach()

# The conformance suite once more, with calls and allocations that fail: tests/torture/run. The
# library's doors are replaced by those of tests/torture/wrapped.cpp when it is linked.
evix_glob(torture_sources "tests/torture/*.cpp")
if(torture_sources AND TARGET test_backend AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  add_executable(torture EXCLUDE_FROM_ALL ${torture_sources} $<TARGET_OBJECTS:test_backend>)
  target_link_libraries(torture PRIVATE test_support test_allocations)
  foreach(door
      _ZN4evix6detail5Calls6kernelEv
      _ZN4evix6detail8make_simEm
      _ZN4evix6detail22make_readiness_backendESt10unique_ptrINS0_10PollDriverESt14default_deleteIS2_EERNS0_5CallsERNS0_10BufferPoolE
      _ZN4evix6detail21make_io_uring_backendERNS0_5CallsERNS0_10BufferPoolERiRNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE)
    target_link_options(torture PRIVATE "-Wl,--wrap=${door}")
  endforeach()
endif()
if(TARGET evix_cli)
  evix_add_test_program(cli)
endif()

# What tests/soak/run runs.
evix_glob(soak_sources "tests/soak/*.cpp")
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  add_executable(soak EXCLUDE_FROM_ALL ${soak_sources})
  target_link_libraries(soak PRIVATE test_support)
endif()

# What tests/degraded/run runs: a program that degrades its environment, and one that is run in it.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  evix_glob(launcher_sources "tests/degraded/launcher.cpp" "tests/degraded/refusals.cpp"
            "tests/degraded/*_measures.cpp")
  add_executable(degraded_launcher ${launcher_sources})
  add_executable(degraded_self_test "${PROJECT_SOURCE_DIR}/tests/degraded/self_test.cpp")
  target_include_directories(degraded_launcher PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(degraded_launcher PRIVATE evix_lenient_flags)
  target_link_libraries(degraded_self_test PRIVATE evix_static evix_lenient_flags)
endif()

# A public header may be the first thing that a program includes, and may be included twice.
function(evix_add_header_test name compiler language flags header)
  add_test(NAME headers.${name}
           COMMAND "${compiler}" -x ${language} ${flags} ${evix_warnings_both} -Werror -fsyntax-only
                   -I "${PROJECT_SOURCE_DIR}/include" -include "${header}" -include "${header}"
                   /dev/null)
  set_tests_properties(headers.${name} PROPERTIES TIMEOUT 60 LABELS headers)
endfunction()

set(cxx_flags ${CMAKE_CXX23_STANDARD_COMPILE_OPTION} ${evix_warnings_cxx})
set(c_flags -std=c99 -pedantic-errors ${evix_warnings_c})
evix_glob(cpp_headers "include/evix/*.hpp")
foreach(header ${cpp_headers})
  cmake_path(GET header FILENAME name)
  evix_add_header_test(evix/${name} "${CMAKE_CXX_COMPILER}" c++ "${cxx_flags}" "evix/${name}")
endforeach()
evix_glob(c_headers "include/*.h")
foreach(header ${c_headers})
  cmake_path(GET header FILENAME name)
  evix_add_header_test(${name}.as_c99 "${CMAKE_C_COMPILER}" c "${c_flags}" "${name}")
  evix_add_header_test(${name}.as_cpp "${CMAKE_CXX_COMPILER}" c++ "${cxx_flags}" "${name}")
endforeach()

find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(TARGET evix_cli)
  add_subdirectory("${PROJECT_SOURCE_DIR}/tests/cli" "${PROJECT_BINARY_DIR}/tests/cli")
endif()
if(TARGET test_backend)
  # Others than sim cannot skip: EVIX_SKIP_ON does not compile for them.
  add_test(NAME backend.skips
           COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/tests/backend/check_skips.py"
                   $<TARGET_FILE:test_backend> --filter "*/sim")
  set_tests_properties(backend.skips PROPERTIES TIMEOUT 300 LABELS backend)
  if(NOT EVIX_SANITIZE)
    add_test(NAME backend.table
             COMMAND Python3::Interpreter -B
                     "${PROJECT_SOURCE_DIR}/tests/backend/conformance_table.py"
                     $<TARGET_FILE:test_backend>)
    set_tests_properties(backend.table PROPERTIES SKIP_RETURN_CODE 77 LABELS backend)
  endif()
endif()
add_test(NAME layers.tree COMMAND "${PROJECT_SOURCE_DIR}/scripts/check-layers")
add_test(NAME layers.planted_violations
         COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/tests/layers/check_layers_test.py"
                 "${PROJECT_SOURCE_DIR}")
set_tests_properties(layers.tree layers.planted_violations PROPERTIES TIMEOUT 120 LABELS layers)
# Every interleaving of a model, which no build of the library changes: skipped (77) without spin.
if(NOT EVIX_SANITIZE)
  add_test(NAME models.mailbox COMMAND "${PROJECT_SOURCE_DIR}/tests/models/run")
  set_tests_properties(models.mailbox PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 LABELS models)
endif()

# The installed tree is what a program gets: built once in a prefix of its own, used from C++
# through find_package and from C through pkg-config. A sanitized library is not for installing.
if(EXISTS "${PROJECT_SOURCE_DIR}/include/evix.h" AND NOT EVIX_SANITIZE)
  add_test(NAME install.consumer
           COMMAND "${PROJECT_SOURCE_DIR}/tests/install/run" "${PROJECT_BINARY_DIR}"
                   "${CMAKE_C_COMPILER}" "${CMAKE_CXX_COMPILER}")
  set_tests_properties(install.consumer PROPERTIES TIMEOUT 180 LABELS install)
endif()
