# How evix's own sources are compiled. Nothing here reaches a program that only links evix.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")

# Only what gcc 12 and clang 19 both know and agree on.
set(evix_warnings_both
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wcast-align -Wcast-qual
    -Wformat=2 -Wundef -Wimplicit-fallthrough)
set(evix_warnings_cxx -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast -Wextra-semi)
set(evix_warnings_c -Wstrict-prototypes -Wmissing-prototypes)

add_library(evix_common_flags INTERFACE)
target_compile_options(
  evix_common_flags
  INTERFACE ${evix_warnings_both}
            "$<$<COMPILE_LANGUAGE:CXX>:${evix_warnings_cxx}>"
            "$<$<COMPILE_LANGUAGE:C>:${evix_warnings_c}>"
            "$<$<BOOL:${EVIX_WERROR}>:-Werror>")

if(EVIX_HARDENING AND NOT EVIX_SANITIZE)
  target_compile_options(
    evix_common_flags INTERFACE
    "$<$<CONFIG:Release>:-fstack-protector-strong;-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
  target_link_options(evix_common_flags INTERFACE "$<$<CONFIG:Release>:-Wl,-z,relro,-z,now>")
endif()

if(EVIX_SANITIZE)
  target_compile_options(
    evix_common_flags INTERFACE -fsanitize=${EVIX_SANITIZE} -fno-sanitize-recover=all
                                -fno-omit-frame-pointer -O1)
  target_link_options(evix_common_flags INTERFACE -fsanitize=${EVIX_SANITIZE})
endif()

# The library, the program and the examples.
add_library(evix_build_flags INTERFACE)
target_compile_options(evix_build_flags INTERFACE -Wsign-conversion)
target_link_libraries(evix_build_flags INTERFACE evix_common_flags)

# Tests and benchmarks compare sizes and counts of every kind with plain literals. clang's
# -Wconversion includes the sign, and CMake puts these options last.
add_library(evix_lenient_flags INTERFACE)
target_link_libraries(evix_lenient_flags INTERFACE evix_common_flags)
add_library(evix_lenient_sign INTERFACE)
target_compile_options(evix_lenient_sign INTERFACE -Wno-sign-conversion)
target_link_libraries(evix_lenient_flags INTERFACE evix_lenient_sign)

# The program and the examples, without tests and benchmarks.
add_custom_target(programs)

# evix_glob(<variable> <pattern>...): the files that match, relative to the source tree's root.
# New files are seen by the next build without a manual reconfigure.
function(evix_glob variable)
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/")
  file(GLOB found CONFIGURE_DEPENDS ${ARGN})
  set(${variable} ${found} PARENT_SCOPE)
endfunction()
