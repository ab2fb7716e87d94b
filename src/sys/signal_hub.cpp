#include "sys/signal_hub.hpp"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <mutex>

#include "base/mutation.hpp"
#include "sys/calls.hpp"
#include "sys/process.hpp"

namespace evix::detail {
namespace {

struct Entry {
  std::atomic<SignalReceiver*> first = nullptr;
  std::atomic<int> handlers = 0;  // that walk the list now
  struct sigaction before{};
};

std::array<Entry, signal_max + 1> entries;
std::mutex lock;

/** Blocks every signal in this thread, so that no handler of ours interrupts a holder of `lock`. */
class Blocked {
 public:
  Blocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~Blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

 private:
  sigset_t before_{};
};

/**
 * The child of a fork has none of the threads that may have been inside a handler or held the lock
 * at that moment, so it would wait for them for ever.
 */
[[maybe_unused]] const int hub_fork_handlers =
    around_forks([] { lock.lock(); }, [] { lock.unlock(); },
                 [] {
                   for (Entry& entry : entries) entry.handlers.store(0, std::memory_order_relaxed);
                   lock.unlock();
                 });

}  // namespace

// Joining pushes in front; leaving unlinks and then waits until the handlers that may have seen
// the receiver are gone.
int SignalHub::join(Calls& calls, SignalReceiver& receiver, int signal) noexcept {
  if (signal < 1 || signal > signal_max) return -EINVAL;
  const Blocked blocked;
  const std::lock_guard guard(lock);
  Entry& entry = entries[static_cast<std::size_t>(signal)];
  SignalReceiver* first = entry.first.load(std::memory_order_relaxed);
  receiver.signal_ = signal;
  receiver.next_.store(first, std::memory_order_relaxed);
  entry.first.store(&receiver, std::memory_order_seq_cst);
  if (first != nullptr) return 0;
  struct sigaction action{};
  // The thread that a signal meets may have a stack too small for a handler and say so with an
  // alternate one, as runtimes with small or growing stacks do: sigaltstack(2).
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  action.sa_handler = [](int number) {
    const int errno_before = errno;
    Entry& caught = entries[static_cast<std::size_t>(number)];
    caught.handlers.fetch_add(1, std::memory_order_seq_cst);
    for (SignalReceiver* each = caught.first.load(std::memory_order_seq_cst); each != nullptr;
         each = each->next_) {
      each->note_(each->target_, number);
    }
    caught.handlers.fetch_sub(1, std::memory_order_seq_cst);
    errno = errno_before;
  };
  const int error = calls.signal_action(signal, &action, &entry.before);
  if (error < 0) {
    entry.first.store(nullptr, std::memory_order_seq_cst);
    receiver.signal_ = 0;
  }
  return error;
}

void SignalHub::leave(Calls& calls, SignalReceiver& receiver) noexcept {
  if (receiver.signal_ == 0) return;
  const Blocked blocked;
  const std::lock_guard guard(lock);
  Entry& entry = entries[static_cast<std::size_t>(receiver.signal_)];
  SignalReceiver* first = entry.first.load(std::memory_order_relaxed);
  if (first == &receiver) {
    entry.first.store(receiver.next_, std::memory_order_seq_cst);
  } else {
    SignalReceiver* each = first;
    while (each->next_ != &receiver) each = each->next_;
    each->next_.store(receiver.next_.load());
  }
  if (entry.first.load(std::memory_order_relaxed) == nullptr) {
    if (mutated("T104")) entry.before = {};
    calls.signal_action(receiver.signal_, &entry.before, nullptr);
  }
  while (entry.handlers.load(std::memory_order_seq_cst) != 0) sched_yield();
  receiver.signal_ = 0;
}

}  // namespace evix::detail
