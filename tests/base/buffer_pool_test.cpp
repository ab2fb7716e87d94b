#include "base/buffer_pool.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>
#include <vector>

// Leaks and double frees are what ASan looks at here; the other threads, TSan.
namespace evix::detail {
namespace {

TEST(BufferPool, LastInFirstOutForItsOwner) {
  BufferPool* pool = BufferPool::make(100);
  pool->set_owner(current_thread());
  EXPECT_EQ(pool->block_size(), 100U);
  BufferBlock* first = pool->acquire();
  BufferBlock* second = pool->acquire();
  ASSERT_NE(first, second);
  std::memset(first->bytes(), 1, 100);
  std::memset(second->bytes(), 2, 100);
  EXPECT_EQ(first->bytes()[99], std::byte{1});
  BufferPool::release(first);
  BufferPool::release(second);
  EXPECT_EQ(pool->acquire(), second);
  EXPECT_EQ(pool->acquire(), first);
  BufferPool::release(first);
  BufferPool::release(second);
  pool->abandon();
}

TEST(BufferPool, OtherThreadsGiveBackAndTheOwnerTakesAgain) {
  BufferPool* pool = BufferPool::make(64);
  pool->set_owner(current_thread());
  std::vector<BufferBlock*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(pool->acquire());
  std::thread([&] {
    for (BufferBlock* block : blocks) BufferPool::release(block);
  }).join();
  std::set<BufferBlock*> again;
  for (int i = 0; i < 100; ++i) again.insert(pool->acquire());
  EXPECT_EQ(again, std::set<BufferBlock*>(blocks.begin(), blocks.end()));
  for (BufferBlock* block : blocks) BufferPool::release(block);
  pool->abandon();
}

TEST(BufferPool, OutlivesItsLoopUntilTheLastBlockIsBack) {
  BufferPool* pool = BufferPool::make(64);
  pool->set_owner(current_thread());
  std::vector<BufferBlock*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(pool->acquire());
  BufferPool::release(blocks.back());
  blocks.pop_back();
  pool->abandon();
  std::vector<std::thread> threads;
  for (std::size_t part = 0; part < 4; ++part) {
    threads.emplace_back([&, part] {
      for (std::size_t i = part; i < blocks.size(); i += 4) {
        std::memset(blocks[i]->bytes(), 3, 64);
        BufferPool::release(blocks[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace evix::detail
