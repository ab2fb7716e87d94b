#pragma once

#include <memory>

#include "evix/callback.hpp"
#include "evix/error.hpp"
#include "evix/export.hpp"
#include "evix/loop.hpp"

/** @file
 * A loop that owns its thread.
 */
namespace evix {

/**
 * A loop on a thread of its own. It runs until join() and then to its natural end, or until
 * stop().
 */
class EVIX_API LoopThread {
 public:
  /**
   * Makes the loop and starts the thread. Throws std::system_error when either fails.
   * @param begin runs first on the new thread, with the loop; make handles there.
   */
  explicit LoopThread(Callback<void(Loop&)> begin = {}, const LoopOptions& options = {});
  LoopThread(LoopThread&&) noexcept;
  LoopThread& operator=(LoopThread&&) = delete;
  /** stop(), then join(). */
  ~LoopThread();

  /**
   * Any thread. Runs `task` on the loop's thread; what a stop() or an exception leaves over is
   * destroyed with the loop. @return Errc::closed when the loop has ended.
   */
  Result<void> post(Callback<void(Loop&), 4 * sizeof(void*)> task);
  Poster poster() const;
  /** Ends the loop before its next callback. Any thread. */
  void stop() noexcept;
  /**
   * Lets the loop come to its natural end (what was posted before still runs) and waits for the
   * thread. Rethrows an exception that left a callback there. Not from the loop's own thread.
   * @return what run() returned.
   */
  int join();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace evix
