// Any sequence of calls of the API, from outside and in callbacks, on a simulated loop, next to a
// model that knows which callbacks are due (tests/backend/random_world.hpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/random_world.hpp"

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  testing::InitGoogleTest(count, *arguments);
  GTEST_FLAG_SET(break_on_failure, true);  // there is no test that could fail: the input does
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t head_size = 2;
  constexpr std::uint64_t steps_max = 2000;
  if (size <= head_size) return -1;
  const auto choices = std::span(data, size).subspan(head_size);
  // The seed chooses the loop's options too.
  evix::test::RandomWorld world({.backend = evix::BackendKind::sim,
                                 .seed = data[0],
                                 .faults = data[1] % 2 != 0,
                                 .choices = choices});
  world.run(std::min<std::uint64_t>(choices.size(), steps_max));
  return 0;
}
