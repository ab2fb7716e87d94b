#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backend/sim_script.hpp"
#include "backend/sim_scripts.hpp"
#include "backend/sim_scripts_setup.hpp"

/** @file
 * The simulated kernel beside the real one: the same scripts, the same answers.
 */
namespace evix::detail {
namespace {

std::vector<Script> all_scripts() {
  std::vector<Script> scripts;
  for (const Script& script : socket_scripts) scripts.push_back(script);
  for (const Script& script : connect_scripts) scripts.push_back(script);
  for (const Script& script : bind_scripts) scripts.push_back(script);
  for (const Script& script : edge_scripts) scripts.push_back(script);
  return scripts;
}

class SimDifferential : public testing::TestWithParam<Script> {};

TEST_P(SimDifferential, RealKernelAnswersAsWritten) {
  const auto world = make_real_world();
  EXPECT_EQ(run_script(*world, GetParam().steps), expected_lines(GetParam().steps));
}

TEST_P(SimDifferential, SimulatedKernelAnswersAsWritten) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const auto world = make_simulated_world(seed);
    EXPECT_EQ(run_script(*world, GetParam().steps), expected_lines(GetParam().steps)) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Scripts, SimDifferential, testing::ValuesIn(all_scripts()),
                         [](const auto& script) { return std::string(script.param.name); });

TEST(SimScripts, ThereAreAtLeastSixty) { EXPECT_GE(all_scripts().size(), 60U); }

}  // namespace
}  // namespace evix::detail
