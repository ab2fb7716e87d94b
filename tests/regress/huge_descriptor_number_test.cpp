#include <unistd.h>

#include <cerrno>
#include <climits>
#include <fstream>
#include <memory>

#include "backend/conformance.hpp"

// Watching a number that is no descriptor made room for all numbers below it: 16 MB for INT_MAX.
namespace evix::test {
namespace {

/** Of this process, in bytes: proc(5), statm. */
std::int64_t mapped_bytes() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

class HugeDescriptorNumber : public Conformance {};
EVIX_OVER_BACKENDS(HugeDescriptorNumber);

TEST_P(HugeDescriptorNumber, CostsNothing) {
  Watcher watcher(loop);
  ASSERT_FALSE(watcher.start(-1, Ready::readable, [](Ready) {}));  // what the first failure costs
  const auto token = std::make_shared<int>(0);
  const std::int64_t before = mapped_bytes();
  for (const int number : {INT_MAX, INT_MAX - 1, 100'000'000}) {
    const auto started = watcher.start(number, Ready::readable, [token](Ready) {});
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().code().value(), EBADF);
    EXPECT_FALSE(watcher.active());
    const auto adopted = TcpStream::adopt(loop, number);
    ASSERT_FALSE(adopted);
    EXPECT_EQ(adopted.error().code().value(), EBADF);
  }
  EXPECT_LE(mapped_bytes() - before, 1024 * 1024);
  EXPECT_EQ(token.use_count(), 1);
}

class HugeDescriptorNumberInPoller : public testing::TestWithParam<BackendKind> {};
INSTANTIATE_TEST_SUITE_P(Backends, HugeDescriptorNumberInPoller,
                         testing::Values(BackendKind::epoll, BackendKind::poll), backend_name);

TEST_P(HugeDescriptorNumberInPoller, CostsNothing) {
  auto poller = Poller::create({.kind = GetParam()});
  ASSERT_TRUE(poller);
  const std::int64_t before = mapped_bytes();
  const auto added = poller->add(INT_MAX, Ready::readable, Trigger::level, 1);
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code().value(), EBADF);
  EXPECT_LE(mapped_bytes() - before, 1024 * 1024);
}

}  // namespace
}  // namespace evix::test
