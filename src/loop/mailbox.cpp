#include "loop/mailbox.hpp"

#include <cerrno>
#include <thread>

namespace evix::detail {
namespace {

// An eventfd write can be interrupted (EINTR) but not for ever; EAGAIN means that the counter is
// full, so the loop wakes anyway (trap T108).
constexpr int write_attempts_max = 100;

}  // namespace

Work* Mailbox::closed_mark() noexcept {
  static Work mark;
  return &mark;
}

Work* Mailbox::reverse(Work* newest_first) noexcept {
  Work* oldest_first = nullptr;
  while (newest_first != nullptr) {
    Work* work = newest_first;
    newest_first = work->next;
    work->next = oldest_first;
    oldest_first = work;
  }
  return oldest_first;
}

Work* Mailbox::take() noexcept {
  if (mutated("T110")) {
    Work* seen = head_.load();
    std::this_thread::yield();
    head_.store(nullptr);
    return reverse(seen);
  }
  return reverse(head_.exchange(nullptr, std::memory_order_acq_rel));
}

void Mailbox::write_event() noexcept {
  if (parents() || mutated("T113")) return;
  // close() waits for the writers, so the descriptor cannot be closed and reused in between.
  writers_.fetch_add(1, std::memory_order_seq_cst);
  const native_handle event = event_.load(std::memory_order_seq_cst);
  if (event != no_handle) {
    for (int attempt = 0; attempt < write_attempts_max; ++attempt) {
      if (calls_->event_write(event) != -EINTR) break;
    }
  }
  writers_.fetch_sub(1, std::memory_order_seq_cst);
}

int Mailbox::open_event() noexcept {
  if (event() != no_handle) return 0;
  const int event = calls_->event_create();
  if (event < 0) return event;
  event_.store(event, std::memory_order_seq_cst);
  return 0;
}

int Mailbox::after_fork() noexcept {
  fork_generation_.store(detail::fork_generation(), std::memory_order_relaxed);
  if (!mutated("T033")) forget_signals();
  wake_up();
  writers_.store(0, std::memory_order_relaxed);  // those threads exist in the parent only
  const native_handle parents = event_.exchange(no_handle, std::memory_order_seq_cst);
  if (parents == no_handle) return 0;
  calls_->close(parents);
  return open_event();
}

Work* Mailbox::close() noexcept {
  Work* left = reverse(head_.exchange(closed_mark(), std::memory_order_acq_rel));
  const native_handle event = event_.exchange(no_handle, std::memory_order_seq_cst);
  // Writers that a child counts are threads of the parent; here they will never be done.
  while (!parents() && writers_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  if (event != no_handle) calls_->close(event);
  calls_ = nullptr;
  return left;
}

}  // namespace evix::detail
