# bench/x.cpp → bench_x over evix; bench/floor/x.cpp → floor_x, hand-written over the kernel;
# bench/peers/x.cpp → peer_x, the only programs here that link another loop.
find_package(benchmark QUIET)
find_library(EVIX_LIBEV ev)

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
foreach(file ${floor_sources})
  evix_add_bench(floor "${file}" Threads::Threads)
endforeach()

if(EVIX_LIBEV)
  evix_glob(peer_sources "bench/peers/*.cpp")
  foreach(file ${peer_sources})
    evix_add_bench(peer "${file}" evix_static ${bench_library} "${EVIX_LIBEV}")
  endforeach()
endif()
