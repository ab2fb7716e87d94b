#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "capi/api_table.hpp"

// Every public function × null, garbage, a freed handle, a handle of a destroyed loop, a handle of
// another kind: EVIX_ESTALE (convention 3 of evix.h), whatever else is passed.

namespace {

void plain(void*) {}
void on_signal(evix_signal_t*, int, void*) {}
void on_stream(evix_stream_t*, int, void*) {}

/** One handle of each kind, as pointers by kind. */
struct Handles {
  evix_loop_t* loop = evix_loop_create(nullptr);
  evix_timer_t* timer = evix_timer_new(loop);
  evix_io_t* io = evix_io_create(loop, 0, EVIX_IO_READ, plain, nullptr);
  evix_signal_t* signal = evix_signal_create(loop, 10, on_signal, nullptr);
  evix_waker_t* waker = evix_waker_create(loop, plain, nullptr);
  evix_listener_t* listener = evix_tcp_listen(loop, "127.0.0.1:0", nullptr, nullptr, nullptr);
  evix_stream_t* stream = evix_tcp_connect(loop, "127.0.0.1:1", nullptr, on_stream, nullptr);
  evix_poster_t* poster = evix_poster_create(loop);
  evix_loop_thread_t* thread = evix_loop_thread_create(nullptr, nullptr, nullptr);
  evix_poller_t* poller = evix_poller_create(nullptr);
  evix_timer_queue_t* queue = evix_timer_queue_create();

  std::vector<void*> of(Needs needs) const {
    switch (needs) {
      case Needs::poster:
        return {poster};
      case Needs::loop_thread:
        return {thread};
      case Needs::poller:
        return {poller};
      case Needs::timer_queue:
        return {queue};
      default:
        return handles_of_loop(*this, needs);
    }
  }
  std::vector<void*> all() const {
    return {loop, timer, io, signal, waker, listener, stream, poster, thread, poller, queue};
  }

  void free_handles() {
    EXPECT_EQ(evix_timer_destroy(timer), 0);
    EXPECT_EQ(evix_io_stop(loop, io), 0);
    EXPECT_EQ(evix_signal_destroy(signal), 0);
    EXPECT_EQ(evix_waker_destroy(waker), 0);
    EXPECT_EQ(evix_listener_close(listener), 0);
    EXPECT_EQ(evix_stream_close(stream), 0);
  }
  void free_the_rest() {
    EXPECT_EQ(evix_poster_destroy(poster), 0);
    EXPECT_EQ(evix_loop_thread_join(thread), 0);
    EXPECT_EQ(evix_poller_destroy(poller), 0);
    EXPECT_EQ(evix_timer_queue_destroy(queue), 0);
  }
};

/** Another error, so that a call that reports nothing is seen. */
void forget_last_error() {
  const evix_loop_options_t wrong_size{};
  ASSERT_EQ(evix_loop_create_ex(&wrong_size), nullptr);
  ASSERT_EQ(evix_last_error_code(), -EINVAL);
}

void expect_stale(const ApiCall& api, void* handle, evix_loop_t* loop, const char* what) {
  forget_last_error();
  const std::int64_t result = api.call(handle, loop);
  EXPECT_TRUE(result == EVIX_ESTALE || result == 0) << api.name << " with " << what;
  EXPECT_EQ(evix_last_error_code(), EVIX_ESTALE) << api.name << " with " << what;
  EXPECT_NE(std::string(evix_last_error()).find(api.name), std::string::npos) << evix_last_error();
}

class StaleHandles : public testing::TestWithParam<ApiCall> {
 protected:
  const ApiCall& api() { return GetParam(); }
};

TEST_P(StaleHandles, NullAndGarbage) {
  evix_loop_t* loop = evix_loop_create(nullptr);
  int on_stack = 0;
  const auto on_heap = std::make_unique<std::uint64_t[]>(64);
  const std::uintptr_t numbers[] = {1, 2, 3, 0x5a5a5a5a, UINTPTR_MAX, UINTPTR_MAX - 1, 0xdeadbeef};
  expect_stale(api(), nullptr, loop, "null");
  expect_stale(api(), &on_stack, loop, "an address on the stack");
  expect_stale(api(), on_heap.get(), loop, "an address on the heap");
  for (const std::uintptr_t number : numbers) {
    expect_stale(api(), reinterpret_cast<void*>(number), loop, "an invented number");
  }
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST_P(StaleHandles, Freed) {
  Handles handles;
  evix_loop_t* other = evix_loop_create(nullptr);
  handles.free_handles();
  handles.free_the_rest();
  if (api().needs == Needs::loop) {
    EXPECT_EQ(evix_loop_destroy(handles.loop), 0);
  }
  for (void* handle : handles.of(api().needs)) {
    expect_stale(api(), handle, api().needs == Needs::loop ? other : handles.loop, "freed");
  }
  // Slots are used again, generations are not: more timers than there are free slots.
  evix_loop_t* live = api().needs == Needs::loop ? other : handles.loop;
  for (int i = 0; i < 300; ++i) ASSERT_NE(evix_timer_new(live), nullptr);
  for (void* handle : handles.of(api().needs)) {
    expect_stale(api(), handle, live, "freed, its slot used again");
  }
  EXPECT_EQ(evix_loop_destroy(other), 0);
  if (api().needs != Needs::loop) {
    EXPECT_EQ(evix_loop_destroy(handles.loop), 0);
  }
}

TEST_P(StaleHandles, OfADestroyedLoop) {
  Handles handles;
  evix_loop_t* other = evix_loop_create(nullptr);
  ASSERT_EQ(evix_loop_destroy(handles.loop), 0);
  const bool of_loop = api().needs != Needs::poster && api().needs != Needs::loop_thread &&
                       api().needs != Needs::poller && api().needs != Needs::timer_queue;
  if (of_loop) {
    for (void* handle : handles.of(api().needs)) {
      expect_stale(api(), handle, other, "of a destroyed loop");
      expect_stale(api(), handle, handles.loop, "of a destroyed loop, with that loop");
    }
  }
  handles.free_the_rest();
  EXPECT_EQ(evix_loop_destroy(other), 0);
}

TEST_P(StaleHandles, OfAnotherKind) {
  Handles handles;
  const auto mine = handles.of(api().needs);
  for (void* handle : handles.all()) {
    if (std::find(mine.begin(), mine.end(), handle) != mine.end()) continue;
    expect_stale(api(), handle, handles.loop, "of another kind");
  }
  handles.free_the_rest();
  EXPECT_EQ(evix_loop_destroy(handles.loop), 0);
}

INSTANTIATE_TEST_SUITE_P(Api, StaleHandles, testing::ValuesIn(api_calls()),
                         [](const auto& tested) { return tested.param.name; });

TEST(ApiTable, NamesEveryFunctionOfTheHeader) {
  std::ifstream file(EVIX_SOURCE_DIR "/include/evix.h");
  std::stringstream stream;
  stream << file.rdbuf();
  const std::string header = stream.str();
  // They are given no handle.
  std::set<std::string> known = {"evix_version",
                                 "evix_version_text",
                                 "evix_last_error",
                                 "evix_last_error_code",
                                 "evix_error_text",
                                 "evix_epoll_backend",
                                 "evix_kqueue_backend",
                                 "evix_io_uring_backend",
                                 "evix_poll_backend",
                                 "evix_sim_backend",
                                 "evix_backend_by_name",
                                 "evix_loop_create",
                                 "evix_loop_create_ex",
                                 "evix_loop_thread_create",
                                 "evix_poller_create",
                                 "evix_timer_queue_create",
                                 "evix_here"};
  for (const ApiCall& api : api_calls()) known.insert(api.name);
  std::set<std::string> declared;
  const std::regex declaration("EVIX_API [^(;]*?(evix_[a-z0-9_]+)\\(");
  for (std::sregex_iterator at(header.begin(), header.end(), declaration), end; at != end; ++at) {
    declared.insert((*at)[1]);
  }
  EXPECT_GT(declared.size(), 100U);
  EXPECT_EQ(declared, known);
}

TEST(StaleHandle, OneShotTimerIsGoneInItsOwnCallback) {
  struct Context {
    evix_loop_t* loop = evix_loop_create(nullptr);
    evix_timer_t* timer = nullptr;
    int stop = 0;
    int destroy = 0;
  } context;
  context.timer = evix_timer_create(
      context.loop, 0, 0,
      [](void* data) {
        auto& self = *static_cast<Context*>(data);
        self.stop = evix_timer_stop(self.loop, self.timer);
        self.destroy = evix_timer_destroy(self.timer);
      },
      &context);
  ASSERT_EQ(evix_loop_run(context.loop), 0);
  EXPECT_EQ(context.stop, EVIX_ESTALE);
  EXPECT_EQ(context.destroy, EVIX_ESTALE);
  EXPECT_EQ(evix_timer_stop(context.loop, context.timer), EVIX_ESTALE);
  EXPECT_EQ(evix_timer_destroy(context.timer), EVIX_ESTALE);
  EXPECT_EQ(evix_loop_destroy(context.loop), 0);
}

TEST(StaleHandle, HandleOfAnotherLoopIsRefused) {
  evix_loop_t* one = evix_loop_create(nullptr);
  evix_loop_t* two = evix_loop_create(nullptr);
  evix_timer_t* timer = evix_timer_create(one, 1, 1, plain, nullptr);
  evix_io_t* io = evix_io_create(one, 0, EVIX_IO_READ, plain, nullptr);
  EXPECT_EQ(evix_timer_stop(two, timer), -EINVAL);
  EXPECT_EQ(evix_io_stop(two, io), -EINVAL);
  EXPECT_EQ(evix_timer_stop(nullptr, timer), EVIX_ESTALE);
  EXPECT_EQ(evix_timer_stop(one, timer), 0);
  EXPECT_EQ(evix_io_stop(one, io), 0);
  EXPECT_EQ(evix_loop_destroy(one), 0);
  EXPECT_EQ(evix_loop_destroy(two), 0);
}

TEST(StaleHandle, PointersDifferForEveryLifeOfASlot) {
  evix_loop_t* loop = evix_loop_create(nullptr);
  std::set<evix_timer_t*> seen;
  for (int i = 0; i < 1000; ++i) {
    evix_timer_t* timer = evix_timer_new(loop);
    EXPECT_TRUE(seen.insert(timer).second);
    EXPECT_EQ(evix_timer_destroy(timer), 0);
  }
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

}  // namespace
