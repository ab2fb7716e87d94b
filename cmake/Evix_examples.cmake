# One program per file: examples/cpp/x.cpp → example_cpp_x, examples/c/x.c → example_c_x.
# Both are run as tests and must print exactly examples/expected/x.txt.
function(evix_add_example language file)
  get_filename_component(name "${file}" NAME_WE)
  set(program example_${language}_${name})
  add_executable(${program} "${file}")
  target_link_libraries(${program} PRIVATE evix_static evix_build_flags)
  set_target_properties(${program} PROPERTIES LINKER_LANGUAGE CXX)
  if(language STREQUAL "c")
    target_compile_options(${program} PRIVATE -pedantic-errors)
  endif()
  add_dependencies(programs ${program})
  if(EVIX_BUILD_TESTS)
    add_test(NAME examples.${language}.${name}
             COMMAND "${PROJECT_SOURCE_DIR}/scripts/run-example" "$<TARGET_FILE:${program}>"
                     "${PROJECT_SOURCE_DIR}/examples/expected/${name}.txt")
    set_tests_properties(examples.${language}.${name} PROPERTIES TIMEOUT 60 LABELS examples)
  endif()
endfunction()

evix_glob(cpp_examples "examples/cpp/*.cpp")
evix_glob(c_examples "examples/c/*.c")
foreach(file ${cpp_examples})
  evix_add_example(cpp "${file}")
endforeach()
foreach(file ${c_examples})
  evix_add_example(c "${file}")
endforeach()
