#include "base/slab.hpp"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <vector>

namespace evix::detail {
namespace {

struct Item {
  static inline int alive = 0;
  std::uint32_t slot = 0;
  int value;

  explicit Item(int given) : value(given) {
    if (given < 0) throw std::runtime_error("refused");
    ++alive;
  }
  Item(const Item&) = delete;
  Item& operator=(const Item&) = delete;
  ~Item() { --alive; }
};

TEST(Slab, AddressesStayWhileItGrows) {
  Slab<Item> slab;
  std::vector<Item*> items;
  for (int i = 0; i < 1000; ++i) items.push_back(slab.make(i));
  EXPECT_EQ(slab.size(), 1000U);
  std::set<std::uint32_t> slots;
  for (int i = 0; i < 1000; ++i) {
    const Item* item = items[static_cast<std::size_t>(i)];
    EXPECT_EQ(item->value, i);
    EXPECT_EQ(slab.find(item->slot, slab.generation(item)), item);
    slots.insert(item->slot);
  }
  EXPECT_EQ(slots.size(), 1000U);
}

TEST(Slab, StalePairsFindNothing) {
  Slab<Item> slab;
  Item* item = slab.make(1);
  const std::uint32_t slot = item->slot;
  const std::uint32_t generation = slab.generation(item);
  EXPECT_NE(generation, 0U);
  slab.free(item);
  EXPECT_EQ(slab.find(slot, generation), nullptr);
  Item* second = slab.make(2);
  EXPECT_EQ(second->slot, slot);  // last in, first out
  EXPECT_EQ(slab.find(slot, generation), nullptr);
  EXPECT_EQ(slab.find(slot, slab.generation(second)), second);
  EXPECT_EQ(slab.find(slot, 0), nullptr);
  EXPECT_EQ(slab.find(slot + 1, 1), nullptr);  // never made
  EXPECT_EQ(slab.find(1'000'000, 1), nullptr);
}

TEST(Slab, ConstructorThatThrowsTakesNoSlot) {
  Slab<Item> slab;
  EXPECT_THROW(slab.make(-1), std::runtime_error);
  EXPECT_EQ(slab.size(), 0U);
  Item* first = slab.make(1);
  EXPECT_THROW(slab.make(-1), std::runtime_error);
  Item* second = slab.make(2);
  EXPECT_NE(first->slot, second->slot);
  EXPECT_EQ(slab.size(), 2U);
}

TEST(Slab, WalkMayFreeWhatItIsGiven) {
  Slab<Item> slab;
  for (int i = 0; i < 300; ++i) slab.make(i);
  slab.for_each([&](Item& item) {
    if (item.value % 3 != 0) slab.free(&item);
  });
  EXPECT_EQ(slab.size(), 100U);
  int sum = 0;
  slab.for_each([&](Item& item) { sum += item.value; });
  EXPECT_EQ(sum, 3 * (99 * 100 / 2));
}

TEST(Slab, DestroysWhatIsLeft) {
  ASSERT_EQ(Item::alive, 0);
  {
    Slab<Item> slab;
    for (int i = 0; i < 130; ++i) slab.make(i);
    slab.free(slab.make(7));
    EXPECT_EQ(Item::alive, 130);
  }
  EXPECT_EQ(Item::alive, 0);
}

}  // namespace
}  // namespace evix::detail
