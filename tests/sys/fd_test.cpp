#include "sys/fd.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <utility>
#include <vector>

namespace evix::detail {
namespace {

class RecordingCalls : public Calls {
 public:
  int close(int fd) noexcept override {
    closed.push_back(fd);
    return result;
  }
  std::vector<int> closed;
  int result = 0;
};

using Closed = std::vector<int>;

TEST(Fd, ClosesOnceThroughTheTable) {
  RecordingCalls calls;
  {
    Fd fd(calls, 7);
    EXPECT_EQ(fd.get(), 7);
    EXPECT_TRUE(fd);
  }
  EXPECT_EQ(calls.closed, Closed{7});
}

TEST(Fd, MovesOwnership) {
  RecordingCalls calls;
  {
    Fd first(calls, 7);
    Fd second(std::move(first));
    EXPECT_FALSE(first);
    Fd third(calls, 8);
    third = std::move(second);
    EXPECT_EQ(calls.closed, Closed{8});
    EXPECT_EQ(third.get(), 7);
    Fd& same = third;
    third = std::move(same);
    EXPECT_EQ(third.get(), 7);
  }
  EXPECT_EQ(calls.closed, (Closed{8, 7}));
}

TEST(Fd, ReleaseAndResetLeaveNothingToClose) {
  RecordingCalls calls;
  {
    Fd released(calls, 7);
    EXPECT_EQ(released.release(), 7);
    Fd reset(calls, 8);
    reset.reset();
    reset.reset();
    Fd none;
    Fd refused(calls, -EMFILE);
    EXPECT_FALSE(refused);
  }
  EXPECT_EQ(calls.closed, Closed{8});
}

TEST(Fd, CloseIsNotRepeatedAfterEintr) {
  RecordingCalls calls;
  calls.result = -EINTR;
  {
    Fd fd(calls, 7);
  }
  EXPECT_EQ(calls.closed, Closed{7});
}

}  // namespace
}  // namespace evix::detail
