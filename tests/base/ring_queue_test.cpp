#include "base/ring_queue.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

namespace evix::detail {
namespace {

template <class T>
std::uint32_t push(RingQueue<T*>& queue, T* entry) {
  std::uint32_t position = 0;
  EXPECT_TRUE(queue.push(entry, position));
  return position;
}

TEST(RingQueue, FirstInFirstOutWhileItGrows) {
  RingQueue<int*> queue;
  EXPECT_EQ(queue.pop(), nullptr);
  std::vector<int> values(1000);
  for (int& value : values) push(queue, &value);
  EXPECT_EQ(queue.size(), 1000U);
  for (int& value : values) EXPECT_EQ(queue.pop(), &value);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.pop(), nullptr);
}

TEST(RingQueue, EraseTakesOneOutAndTwiceDoesNothing) {
  RingQueue<int*> queue;
  int values[3]{};
  push(queue, &values[0]);
  const std::uint32_t middle = push(queue, &values[1]);
  push(queue, &values[2]);
  queue.erase(middle);
  queue.erase(middle);
  EXPECT_EQ(queue.size(), 2U);
  EXPECT_EQ(queue.pop(), &values[0]);
  EXPECT_EQ(queue.pop(), &values[2]);
  EXPECT_EQ(queue.pop(), nullptr);
}

TEST(RingQueue, PositionsHoldAcrossGrowing) {
  RingQueue<int*> queue;
  std::vector<int> values(200);
  std::vector<std::uint32_t> positions;
  for (int i = 0; i < 40; ++i) {  // so that the queue wraps before it grows
    push(queue, &values[0]);
    queue.pop();
  }
  for (int& value : values) positions.push_back(push(queue, &value));
  for (std::size_t i = 0; i < values.size(); i += 2) queue.erase(positions[i]);
  for (std::size_t i = 1; i < values.size(); i += 2) EXPECT_EQ(queue.pop(), &values[i]);
  EXPECT_TRUE(queue.empty());
}

// Against a deque, with a fixed seed.
TEST(RingQueue, BehavesAsADeque) {
  RingQueue<std::uint32_t*> queue;
  std::vector<std::uint32_t> values(20'000);
  std::deque<std::uint32_t*> model;
  std::minstd_rand random(7);
  for (std::uint32_t& value : values) {
    value = push(queue, &value);
    model.push_back(&value);
    if (random() % 3 == 0) {
      const std::size_t which = random() % model.size();
      queue.erase(*model[which]);
      model.erase(model.begin() + static_cast<std::ptrdiff_t>(which));
    }
    if (random() % 3 == 0 && !model.empty()) {
      ASSERT_EQ(queue.pop(), model.front());
      model.pop_front();
    }
    ASSERT_EQ(queue.size(), model.size());
  }
}

}  // namespace
}  // namespace evix::detail
