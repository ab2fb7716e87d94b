#include <evix/callback.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

namespace evix {
namespace {

/** Counts lives, and where they are. */
template <std::size_t padding, bool nothrow = true>
struct Counted {
  static inline int alive = 0;
  std::array<char, padding> bytes{};

  Counted() { ++alive; }
  Counted(Counted&&) noexcept(nothrow) { ++alive; }
  Counted& operator=(Counted&&) = delete;
  ~Counted() { --alive; }
  bool inside(const void* object, std::size_t size) const {
    const auto here = reinterpret_cast<std::uintptr_t>(this);
    const auto begin = reinterpret_cast<std::uintptr_t>(object);
    return here >= begin && here < begin + size;
  }
};

template <class Captured>
void expect_one_life(bool inline_storage) {
  using Probe = Callback<const Captured*()>;
  ASSERT_EQ(Captured::alive, 0);
  {
    Probe first([captured = Captured()]() { return &captured; });
    EXPECT_EQ(Captured::alive, 1);
    EXPECT_EQ(first()->inside(&first, sizeof first), inline_storage);
    Probe second(std::move(first));
    EXPECT_FALSE(first);
    ASSERT_TRUE(second);
    EXPECT_EQ(Captured::alive, 1);
    EXPECT_EQ(second()->inside(&second, sizeof second), inline_storage);
    Probe third;
    third = std::move(second);
    Probe& same = third;
    third = std::move(same);
    EXPECT_TRUE(third);
    EXPECT_EQ(Captured::alive, 1);
    third = Probe([other = Captured()]() { return &other; });
    EXPECT_EQ(Captured::alive, 1);
    third.reset();
    third.reset();
    EXPECT_EQ(Captured::alive, 0);
    Probe fourth([captured = Captured()]() { return &captured; });
    EXPECT_EQ(Captured::alive, 1);
  }
  EXPECT_EQ(Captured::alive, 0);
}

TEST(Callback, SmallCapturesLiveInside) { expect_one_life<Counted<24>>(true); }
TEST(Callback, LargeCapturesLiveOutside) { expect_one_life<Counted<25>>(false); }
TEST(Callback, MovesThatMayThrowLiveOutside) { expect_one_life<Counted<8, false>>(false); }

struct alignas(64) Aligned {
  int value = 5;
};

TEST(Callback, OverAlignedCapturesLiveOutsideAndStayAligned) {
  Callback<std::uintptr_t()> callback(
      [aligned = Aligned()]() { return reinterpret_cast<std::uintptr_t>(&aligned); });
  EXPECT_EQ(callback() % 64, 0U);
}

int twice(int value) { return 2 * value; }

TEST(Callback, EmptyOnes) {
  EXPECT_FALSE(Callback<void()>());
  EXPECT_FALSE(Callback<void()>(nullptr));
  int (*no_function)(int) = nullptr;
  EXPECT_FALSE(Callback<int(int)>(no_function));
  EXPECT_EQ(Callback<int(int)>(twice)(21), 42);
  EXPECT_EQ(Callback<int(int)>(&twice)(4), 8);
}

TEST(Callback, CallingAnEmptyOneEndsTheProcess) {
  Callback<int(int)> empty;
  EXPECT_DEATH(empty(1), "^evix: an empty callback was called\n");
  EXPECT_DEATH(empty.call_in_place(1), "^evix: an empty callback was called\n");
  Callback<int(int)> from(twice);
  Callback<int(int)> to(std::move(from));
  EXPECT_EQ(to(1), 2);
  EXPECT_DEATH(from(1), "^evix: an empty callback was called\n");
}

TEST(Callback, PassesMoveOnlyArgumentsAndReferences) {
  Callback<int(std::unique_ptr<int>, int&)> callback([](std::unique_ptr<int> owned, int& changed) {
    changed = *owned;
    return *owned + 1;
  });
  int changed = 0;
  EXPECT_EQ(callback(std::make_unique<int>(6), changed), 7);
  EXPECT_EQ(changed, 6);
}

TEST(Callback, KeepsStateBetweenCallsAndMoves) {
  Callback<int()> counter([count = 0]() mutable { return ++count; });
  EXPECT_EQ(counter(), 1);
  Callback<int()> moved(std::move(counter));
  EXPECT_EQ(moved(), 2);
  EXPECT_EQ(moved(), 3);
}

}  // namespace
}  // namespace evix
