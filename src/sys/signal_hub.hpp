#pragma once

#include <atomic>

/** @file
 * One handler per signal in the process, for any number of receivers.
 *
 * The handler only tells each receiver the number; receivers do async-signal-safe work (set a bit,
 * write an event). The first receiver of a signal saves its disposition, the last to leave puts it
 * back whole. Dispositions are changed under a lock, with the signal blocked in this thread.
 */
namespace evix::detail {

class Calls;

/** Signals are 1..64 on Linux; a set of them is one word, bit `signal - 1`. */
inline constexpr int signal_max = 64;

class SignalReceiver {
 public:
  using Note = void (*)(void* target, int signal) noexcept;

  SignalReceiver(Note note, void* target) noexcept : note_(note), target_(target) {}
  SignalReceiver(const SignalReceiver&) = delete;
  SignalReceiver& operator=(const SignalReceiver&) = delete;

 private:
  friend class SignalHub;
  Note note_;
  void* target_;
  int signal_ = 0;
  std::atomic<SignalReceiver*> next_ = nullptr;
};

class SignalHub {
 public:
  /** 0 or the negative errno of sigaction(2). The receiver must leave before it dies. */
  static int join(Calls& calls, SignalReceiver& receiver, int signal) noexcept;
  /** When it returns no handler touches the receiver any more. */
  static void leave(Calls& calls, SignalReceiver& receiver) noexcept;
};

}  // namespace evix::detail
