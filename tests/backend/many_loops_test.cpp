#include <dirent.h>
#include <grp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <list>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/conformance.hpp"
#include "backend/fork_support.hpp"
#include "support/descriptors.hpp"

/** @file
 * Many loops alive at once.
 */
namespace evix::test {
namespace {

class ManyLoops : public Conformance {};
EVIX_OVER_BACKENDS(ManyLoops);

TEST_P(ManyLoops, ThousandAliveAtOnce) {
  constexpr int count = 1000;
  std::list<Loop> loops;
  int ran = 0;
  for (int i = 0; i < count; ++i) {
    loops.emplace_back(options());
    loops.back().post([&] { ++ran; });
  }
  for (Loop& each : loops) EXPECT_EQ(each.run(), 0);
  EXPECT_EQ(ran, count);
}

// ---- T140: memory that a user may lock ---------------------------------------------------------

/** What the child below ended with. */
enum MemlockEnd { all_worked, not_allowed, no_loop, did_not_run, leaked };

/** A loop over `kind`, or, where the kernel has no memory for it, over what it chooses itself. */
std::optional<Loop> make_loop_or_fall_back(BackendKind kind) {
  auto made = Loop::create({.backend = kind});
  if (!made && made.error() == Errc::backend_unavailable) made = Loop::create();
  if (!made) return std::nullopt;
  return std::move(*made);
}

// An ordinary user who may lock 64 KiB, all rings together: 1,000 loops with EVIX_TEST_FULL=1, else
// 200, alive at once, and ten times as many one after the other, whose memory the kernel gives back
// late. For root another user, as whom nobody else locks memory.
TEST_P(ManyLoops, TrapT140EachWorksWhereLittleMemoryMayBeLocked) {
  const std::uint64_t count = scaled(1000, 200);
  const int ended = run_child([&]() -> int {
    alarm(300);  // the full count takes longer than other children may
    const rlimit limit{64 * 1024, 64 * 1024};
    constexpr uid_t user = 60'140;
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return not_allowed;
    // The limit does not hold for root (CAP_IPC_LOCK).
    if (getuid() == 0 && (setgroups(0, nullptr) != 0 || setgid(user) != 0 || setuid(user) != 0)) {
      return not_allowed;
    }
    const std::size_t descriptors = open_descriptors();
    {
      std::list<Loop> loops;
      std::uint64_t ran = 0;
      for (std::uint64_t i = 0; i < count; ++i) {
        auto made = make_loop_or_fall_back(GetParam());
        if (!made) return no_loop;
        loops.push_back(std::move(*made));
        loops.back().post([&] { ++ran; });
      }
      for (Loop& each : loops) {
        if (each.run() != 0) return did_not_run;
      }
      if (ran != count) return did_not_run;
    }
    for (std::uint64_t i = 0; i < 10 * count; ++i) {
      auto made = make_loop_or_fall_back(GetParam());
      if (!made) return no_loop;
      if (made->run() != 0) return did_not_run;
    }
    return open_descriptors() == descriptors ? all_worked : leaked;
  });
  if (ended == not_allowed) GTEST_SKIP() << "this process may not become another user";
  EXPECT_EQ(ended, all_worked);
}

// ---- T146: threads and turns of idle loops -----------------------------------------------------

/** Threads of this process: all, and those that the kernel has made for rings ("iou-sqp-1234"). */
struct Threads {
  std::size_t count = 0;
  std::size_t of_rings = 0;
};
Threads threads_of_this_process() {
  Threads found;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* task = readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    ++found.count;
    std::string name;
    std::getline(std::ifstream("/proc/self/task/" + std::string(task->d_name) + "/comm"), name);
    found.of_rings += name.starts_with("iou-") ? 1 : 0;
  }
  closedir(tasks);
  return found;
}

// 200 loops in 200 threads with nothing to do, for a second.
TEST_P(ManyLoops, TrapT146TwoHundredIdleOnesDoNotSpin) {
  std::thread([] {}).join();  // ThreadSanitizer has a thread of its own from the first one on
  const Threads before = threads_of_this_process();
  constexpr int count = 200;
  std::list<LoopThread> idle;
  std::vector<Loop*> loops;
  for (int i = 0; i < count; ++i) {
    LoopThread& thread = idle.emplace_back(Callback<void(Loop&)>(), options());
    std::atomic<Loop*> inside = nullptr;
    ASSERT_TRUE(thread.post([&](Loop& its_loop) {
      inside = &its_loop;
      inside.notify_one();
    }));
    inside.wait(nullptr);
    loops.push_back(inside);
  }
  const Threads after = threads_of_this_process();
  // Threads of an earlier test may just have ended.
  EXPECT_LE(after.count, before.count + count);
  EXPECT_EQ(after.of_rings, 0U);
  const Duration cpu_before = process_cpu_time();
  std::vector<std::uint64_t> turns_before;
  for (const Loop* each : loops) turns_before.push_back(each->counters().turns);
  Loop clock;  // real time, whatever the backend
  const KeepAlive alive = clock.keep_alive();
  ASSERT_EQ(clock.run_for(1s), 0);
  EXPECT_LT(process_cpu_time() - cpu_before, 10 * idle_cpu_max);
  for (std::size_t i = 0; i < loops.size(); ++i) {
    EXPECT_LE(loops[i]->counters().turns - turns_before[i], idle_turns_max);
  }
  for (LoopThread& thread : idle) EXPECT_EQ(thread.join(), 0);
}

}  // namespace
}  // namespace evix::test
