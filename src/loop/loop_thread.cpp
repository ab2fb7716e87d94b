#include <evix/loop_thread.hpp>

#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.hpp"
#include "sys/error.hpp"

namespace evix {

struct LoopThread::State {
  explicit State(const LoopOptions& options) : loop(options), keep(loop.keep_alive()) {}

  Loop loop;
  KeepAlive keep;
  Poster poster = loop.poster();
  std::atomic<bool> ended = false;
  int code = 0;
  std::exception_ptr failure;
  std::thread thread;
};

LoopThread::LoopThread(Callback<void(Loop&)> begin, const LoopOptions& options)
    : state_(std::make_unique<State>(options)) {
  state_->thread = std::thread([state = state_.get(), start = std::move(begin)]() mutable {
    try {
      if (start) start(state->loop);
      state->code = state->loop.run();
    } catch (...) {
      state->failure = std::current_exception();
    }
    state->ended = true;
  });
}

LoopThread::LoopThread(LoopThread&&) noexcept = default;

LoopThread::~LoopThread() {
  if (state_ == nullptr || !state_->thread.joinable()) return;
  stop();
  state_->thread.join();
}

Result<void> LoopThread::post(Callback<void(Loop&), 4 * sizeof(void*)> task) {
  detail::check(static_cast<bool>(task), "an empty callback was posted");
  if (state_->ended) return detail::failure(Errc::closed, "post");
  auto run = [loop = &state_->loop, work = std::move(task)]() mutable { work(*loop); };
  static_assert(sizeof run <= sizeof(PostCallback) - sizeof(void*), "it would go to the heap");
  return state_->poster.post(std::move(run));
}

Poster LoopThread::poster() const { return state_->poster; }

void LoopThread::stop() noexcept { state_->loop.stop_all(); }

int LoopThread::join() {
  detail::check(state_->thread.get_id() != std::this_thread::get_id(),
                "join() of a loop's thread from that thread");
  if (state_->thread.joinable()) {
    // Dropped on the loop's thread, behind everything posted before.
    if (!state_->ended) {
      state_->loop.post([state = state_.get()] { state->keep = KeepAlive(); });
    }
    state_->thread.join();
    state_->keep = KeepAlive();
  }
  if (state_->failure) std::rethrow_exception(std::exchange(state_->failure, nullptr));
  return state_->code;
}

}  // namespace evix
