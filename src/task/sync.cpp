#include <evix/channel.hpp>
#include <evix/sync.hpp>

#include "base/check.hpp"
#include "task/task_record.hpp"

namespace evix::detail {
namespace {

void leave(QueueWait& wait) noexcept { std::exchange(wait.queue, nullptr)->remove(wait); }

Withdrawn withdraw(TaskWait& wait) noexcept {
  leave(static_cast<QueueWait&>(wait));
  wait.chain = nullptr;
  return Withdrawn::ended;
}

constexpr TaskWaitKind queue_kind{withdraw, "another task"};

}  // namespace

void enqueue_wait(WaitQueue& queue, QueueWait& wait, TaskChain& chain) noexcept {
  record_of(chain).core->check_usable("a task was used by a thread that does not run its loop");
  check(queue.empty() || record_of(*queue.last()->chain).core == record_of(chain).core,
        "tasks of two loops wait for one event, semaphore or channel");
  wait.queue = &queue;
  queue.push(wait);
  chain.suspend(wait, queue_kind);
}

QueueWait& resume_first(WaitQueue& queue) noexcept {
  QueueWait& wait = *queue.first();
  record_of(*wait.chain)
      .core->check_usable("a task was resumed by a thread that does not run its loop");
  leave(wait);
  resume_later(wait);
  return wait;
}

void check_nobody_waits(const WaitQueue& queue, std::size_t promises) noexcept {
  check(queue.empty() && promises == 0, "what a task waits for was destroyed");
}

void fail_permit() noexcept { fail_check("a semaphore was destroyed before its permits"); }

Error closed_channel_error() noexcept { return Error(make_error_code(Errc::closed), "push"); }

}  // namespace evix::detail
