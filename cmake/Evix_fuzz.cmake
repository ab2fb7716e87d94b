# One libFuzzer program per file: fuzz/x.cpp → fuzz_x.
evix_glob(fuzz_sources "fuzz/*.cpp")
foreach(file ${fuzz_sources})
  get_filename_component(name "${file}" NAME_WE)
  add_executable(fuzz_${name} "${file}")
  target_include_directories(fuzz_${name} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(fuzz_${name} PRIVATE evix_static evix_lenient_flags)
endforeach()

# The model of the random tests, and the faulty calls that it runs over.
find_package(GTest REQUIRED)
target_sources(fuzz_api_sequence
               PRIVATE "${PROJECT_SOURCE_DIR}/tests/backend/random_world.cpp"
                       "${PROJECT_SOURCE_DIR}/tests/backend/random_tcp.cpp"
                       "${PROJECT_SOURCE_DIR}/tests/support/fault_calls.cpp"
                       "${PROJECT_SOURCE_DIR}/tests/support/ring_faults.cpp")
target_include_directories(fuzz_api_sequence PRIVATE "${PROJECT_SOURCE_DIR}/tests")
target_link_libraries(fuzz_api_sequence PRIVATE GTest::gtest)
