# bench/x.cpp → bench_x over evix; bench/floor/x.cpp → floor_x, hand-written over the kernel;
# bench/peers/x.cpp → peer_x, the only programs here that link another loop.
find_package(benchmark QUIET)
find_library(EVIX_LIBEV ev)
find_library(EVIX_LIBURING uring)

function(evix_add_bench prefix file)
  get_filename_component(name "${file}" NAME_WE)
  add_executable(${prefix}_${name} "${file}")
  target_link_libraries(${prefix}_${name} PRIVATE evix_lenient_flags ${ARGN})
  target_include_directories(${prefix}_${name} PRIVATE "${PROJECT_SOURCE_DIR}/bench"
                                                       "${PROJECT_SOURCE_DIR}/src")
  target_link_options(${prefix}_${name} PRIVATE -Wl,--as-needed)
endfunction()

set(bench_library "$<TARGET_NAME_IF_EXISTS:benchmark::benchmark>")
evix_glob(bench_sources "bench/*.cpp")
foreach(file ${bench_sources})
  evix_add_bench(bench "${file}" evix_static ${bench_library})
endforeach()

evix_glob(floor_sources "bench/floor/*.cpp")
if(NOT EVIX_LIBURING)
  list(FILTER floor_sources EXCLUDE REGEX "io_uring\\.cpp$")
endif()
foreach(file ${floor_sources})
  evix_add_bench(floor "${file}" Threads::Threads "$<$<BOOL:${EVIX_LIBURING}>:${EVIX_LIBURING}>")
endforeach()

if(EVIX_LIBEV)
  evix_glob(peer_sources "bench/peers/*.cpp")
  foreach(file ${peer_sources})
    evix_add_bench(peer "${file}" evix_static ${bench_library} "${EVIX_LIBEV}")
  endforeach()
endif()

# A short run of each, so that none is found broken on the day it is needed. What they assert is
# exact (bytes, allocations, calls); times are printed and not judged here.
if(NOT EVIX_BUILD_TESTS)
  return()
endif()
function(evix_add_bench_test name)
  add_test(NAME bench.${name} COMMAND ${ARGN})
  set_tests_properties(bench.${name} PROPERTIES
                       TIMEOUT 120 LABELS bench
                       ENVIRONMENT "EVIX_BENCH_PROGRAMS=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
endfunction()

# What replaces malloc cannot be counted below it.
if(NOT EVIX_SANITIZE)
  evix_add_bench_test(echo_counts bench_echo_counts epoll 8 2000 500)
  evix_add_bench_test(echo_counts_automatic bench_echo_counts automatic 8 2000 500)
  evix_add_bench_test(idle_memory bench_idle_memory 2000)
endif()
if(EVIX_LIBEV)
  evix_add_bench_test(timers peer_timers 1 "restart 1000, 50")
  evix_add_bench_test(loop_timers peer_loop_timers 1 1000)
endif()
if(TARGET evix_cli)
  set(bench_subject_loud "$<TARGET_FILE:evix_cli> echo --listen 127.0.0.1:0 --backend epoll")
  set(bench_subject "${bench_subject_loud} --quiet")
  set(bench_ratio "${PROJECT_SOURCE_DIR}/scripts/bench/echo-ratio" --rounds 1 --connections 4
      --seconds 0.1 --warm-up 0.1 --subject "${bench_subject}")
  evix_add_bench_test(echo_ratio ${bench_ratio})
  evix_add_bench_test(storm_ratio ${bench_ratio} --storm)
  evix_add_bench_test(waits_ratio "${PROJECT_SOURCE_DIR}/scripts/bench/waits-ratio" --rounds 1
                      --connections 4 --echoes 2000 --subject "${bench_subject_loud}" --floor
                      "$<TARGET_FILE:floor_echo_epoll> --listen 127.0.0.1:0")
  find_program(EVIX_VALGRIND valgrind)
  if(EVIX_VALGRIND AND NOT EVIX_SANITIZE)
    evix_add_bench_test(instructions "${PROJECT_SOURCE_DIR}/scripts/bench/instructions" --echoes
                        100,300 "${bench_subject}")
  endif()
endif()
