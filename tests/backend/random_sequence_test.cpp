#include "backend/random_world.hpp"
#include "support/descriptors.hpp"

// Random calls on a loop with many handles, from outside and in its callbacks, nested runs and
// exceptions among them. A ledger has each callback that is owed; a failure names its seed.
namespace evix::test {
namespace {

constexpr std::uint64_t steps_of_a_world = 4000;

class RandomSequence : public testing::TestWithParam<BackendKind> {
 protected:
  static void run(bool faults) {
    const std::uint64_t worlds = scaled(500, 5);
    const char* wanted = std::getenv("EVIX_TEST_SEED");
    const std::uint64_t first = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 1;
    for (std::uint64_t seed = first; seed < first + worlds && !HasFailure(); ++seed) {
      SCOPED_TRACE("EVIX_TEST_SEED=" + std::to_string(seed));
      const std::size_t descriptors = open_descriptors();
      {
        RandomWorld world({.backend = GetParam(), .seed = seed, .faults = faults});
        world.run(steps_of_a_world);
      }
      EXPECT_EQ(open_descriptors(), descriptors);
    }
  }
};
EVIX_OVER_BACKENDS(RandomSequence);

TEST_P(RandomSequence, EveryCallbackThatIsOwedRunsOnce) { run(false); }
TEST_P(RandomSequence, EveryCallbackThatIsOwedRunsOnceAlsoWithFaults) { run(true); }

}  // namespace
}  // namespace evix::test
