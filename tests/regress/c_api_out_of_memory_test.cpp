#include <evix.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "support/allocations.hpp"
#include "support/descriptors.hpp"

// Without memory for the call that starts a handle, the handle stayed with its loop though nobody
// had a pointer to it, a listening port among others; and a stream that could not be closed for
// want of memory was stale all the same: nobody could close it again. Each allocation of a life
// with every kind of handle fails once here.
namespace evix::test {
namespace {

class Life {
 public:
  void run() {
    loop_ = evix_loop_create(nullptr);
    if (loop_ == nullptr) return expect_no_memory();
    make_handles();
    connect();
    EXPECT_EQ(evix_loop_run_for(loop_, 20'000'000), 0) << evix_last_error();
    close_all();
    EXPECT_EQ(evix_loop_run_for(loop_, 5'000'000'000), 0) << evix_last_error();
    EXPECT_EQ(ended_, owed_);
    EXPECT_EQ(counters().handles, kept_);
    EXPECT_EQ(evix_loop_destroy(loop_), 0);
  }

 private:
  static void expect_no_memory() { EXPECT_EQ(evix_last_error_code(), -ENOMEM); }

  evix_loop_counters_t counters() {
    evix_loop_counters_t all{};
    all.size = sizeof all;
    EXPECT_EQ(evix_loop_counters(loop_, &all), 0);
    return all;
  }

  /** What could not be made does not exist. */
  template <class Make>
  auto made(Make make) {
    const std::uint64_t before = counters().handles;
    auto* handle = make();
    EXPECT_EQ(counters().handles, before + (handle != nullptr ? 1 : 0));
    if (handle == nullptr) expect_no_memory();
    return handle;
  }
  void end(int code) { EXPECT_EQ(code, 0) << evix_last_error(); }
  /** An operation that has one callback, if it was accepted. */
  void owe(int code) {
    if (code == 0) {
      ++owed_;
    } else {
      EXPECT_EQ(code, -ENOMEM);
    }
  }

  void make_handles() {
    const auto nothing = [](void*) {};
    if (auto* timer = made([&] { return evix_timer_create(loop_, 1000, 0, nothing, nullptr); })) {
      end(evix_timer_destroy(timer));
    }
    if (auto* io = made([&] { return evix_io_create(loop_, 0, EVIX_IO_READ, nothing, nullptr); })) {
      end(evix_io_stop(loop_, io));
    }
    const auto signalled = [](evix_signal_t*, int, void*) {};
    if (auto* signal = made([&] { return evix_signal_create(loop_, 10, signalled, nullptr); })) {
      end(evix_signal_destroy(signal));
    }
    if (auto* waker = made([&] { return evix_waker_create(loop_, nothing, nullptr); })) {
      end(evix_waker_destroy(waker));
    }
    if (auto* poster = evix_poster_create(loop_)) {
      end(evix_poster_destroy(poster));
    } else {
      expect_no_memory();
    }
  }

  void connect() {
    listener_ =
        made([this] { return evix_tcp_listen(loop_, "127.0.0.1:0", nullptr, accepted, this); });
    if (listener_ == nullptr) return;
    char address[64];
    ASSERT_GT(evix_listener_address(listener_, address, sizeof address), 0);
    client_ = made([&] { return evix_tcp_connect(loop_, address, nullptr, done, this); });
    if (client_ != nullptr) ++owed_;
    other_ = made([&] { return evix_tcp_connect(loop_, address, nullptr, done, this); });
    if (other_ != nullptr) ++owed_;
  }

  static void accepted(evix_listener_t*, int status, evix_stream_t* stream, void* data) {
    auto& self = *static_cast<Life*>(data);
    if (status != 0) {
      EXPECT_EQ(status, -ENOMEM);
      return;
    }
    self.owe(evix_stream_receive(stream, received, data));
    self.owe(evix_stream_send(stream, "hello", 5, done, data));
    int closed = evix_stream_close_then(stream, ended, data);
    if (closed == -ENOMEM) closed = evix_stream_close_then(stream, ended, data);
    self.owe(closed);
    EXPECT_EQ(evix_stream_close(stream), EVIX_ESTALE);
  }
  static void received(evix_stream_t*, int, const void*, std::size_t, void* data) { ended(data); }
  static void done(evix_stream_t*, int, void* data) { ended(data); }
  static void ended(void* data) { ++static_cast<Life*>(data)->ended_; }

  void close_all() {
    if (listener_ != nullptr) end(evix_listener_close(listener_));
    if (client_ != nullptr) {
      int closed = evix_stream_close_gracefully(client_, 0, 0, ended, this);
      if (closed == -ENOMEM) closed = evix_stream_close_gracefully(client_, 0, 0, ended, this);
      owe(closed);
    }
    if (other_ != nullptr) {
      const std::uint64_t before = counters().handles;
      end(evix_stream_close(other_));
      EXPECT_EQ(evix_stream_close(other_), EVIX_ESTALE);
      EXPECT_EQ(evix_loop_run_ready(loop_), 0);
      kept_ += counters().handles == before ? 1 : 0;
    }
  }

  evix_loop_t* loop_ = nullptr;
  evix_listener_t* listener_ = nullptr;
  evix_stream_t* client_ = nullptr;
  evix_stream_t* other_ = nullptr;
  int owed_ = 0;
  int ended_ = 0;
  std::uint64_t kept_ = 0;  ///< records of closes without memory, which go with the loop
};

TEST(CApiOutOfMemory, EachAllocationFailsOnce) {
  EVIX_NEEDS_ALLOCATIONS();
  Life().run();  // what is made once for the process is there afterwards
  int nth = 1;
  for (bool happened = true; happened && !HasFailure(); ++nth) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    const std::size_t descriptors = open_descriptors();
    const FailAllocation fault(nth);
    Life().run();
    happened = fault.happened();
    EXPECT_EQ(open_descriptors(), descriptors);
  }
  EXPECT_GT(nth, 25) << "allocations were looked at";
}

}  // namespace
}  // namespace evix::test
