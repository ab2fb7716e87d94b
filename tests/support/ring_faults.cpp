#include "support/ring_faults.hpp"

#include <liburing.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "sys/calls.hpp"

namespace evix::detail {
namespace {

// Linux 6.10; not in liburing 2.3.
constexpr unsigned nop_inject_result = 1U << 0;

unsigned& word(std::byte* memory, std::uint32_t offset) {
  return *reinterpret_cast<unsigned*>(memory + offset);
}

void inject(io_uring_sqe& entry, std::int64_t result) {
  const std::uint64_t token = entry.user_data;
  io_uring_prep_nop(&entry);
  entry.user_data = token;
  entry.rw_flags = static_cast<int>(nop_inject_result);
  entry.len = static_cast<unsigned>(result);
}

void wait_for(io_uring_sqe& entry, unsigned bits) {
  const std::uint64_t token = entry.user_data;
  io_uring_prep_poll_add(&entry, entry.fd, bits);
  entry.user_data = token;
}

}  // namespace

void RingFaults::set_up(int fd, const void* parameters) {
  const auto& p = *static_cast<const io_uring_params*>(parameters);
  const std::lock_guard lock(mutex_);
  RingView& view = rings_[fd] = RingView();
  view.entry_head = p.sq_off.head;
  view.entry_mask = p.sq_entries - 1;
  view.completion_head = p.cq_off.head;
  view.completion_tail = p.cq_off.tail;
  view.completions = p.cq_off.cqes;
  view.completion_mask = p.cq_entries - 1;
}

void RingFaults::mapped(int fd, std::uint64_t offset, std::size_t, void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = rings_.find(fd);
  if (found == rings_.end()) return;
  if (offset == IORING_OFF_SQES) {
    found->second.entries = static_cast<io_uring_sqe*>(memory);
  } else {
    found->second.queues = static_cast<std::byte*>(memory);
  }
}

void RingFaults::registered_buffers(int fd, const void* registration) {
  const std::lock_guard lock(mutex_);
  const auto found = rings_.find(fd);
  if (found == rings_.end()) return;
  const auto& buffers = *static_cast<const io_uring_buf_reg*>(registration);
  found->second.buffers = reinterpret_cast<std::byte*>(buffers.ring_addr);
  found->second.buffer_mask = static_cast<std::uint16_t>(buffers.ring_entries - 1);
  found->second.buffer_head = 0;
}

void RingFaults::closed(int fd) noexcept {
  const std::lock_guard lock(mutex_);
  rings_.erase(fd);
}

void RingFaults::registered_as(int fd, unsigned index) {
  const std::lock_guard lock(mutex_);
  indexes_[index] = fd;
}

RingFaults::RingView* RingFaults::view_of(int fd, bool registered) {
  const std::lock_guard lock(mutex_);
  if (registered) fd = indexes_[static_cast<unsigned>(fd)];
  const auto found = rings_.find(fd);
  const bool usable =
      found != rings_.end() && found->second.queues != nullptr && found->second.entries != nullptr;
  return usable ? &found->second : nullptr;
}

void RingFaults::before_enter(int fd, bool registered, unsigned count) {
  RingView* view = view_of(fd, registered);
  if (view == nullptr) return;
  const unsigned first = word(view->queues, view->entry_head);
  for (unsigned i = 0; i < count; ++i) {
    replace(*view, view->entries[(first + i) & view->entry_mask]);
  }
}

void RingFaults::replace(RingView& view, io_uring_sqe& entry) {
  const Waiting waiting{entry.opcode, entry.fd, entry.addr, entry.len,
                        (entry.flags & IOSQE_BUFFER_SELECT) != 0};
  switch (entry.opcode) {
    case IORING_OP_RECV:
      wait_for(entry, POLLIN | POLLRDHUP);
      break;
    case IORING_OP_ACCEPT:
      wait_for(entry, POLLIN);
      break;
    case IORING_OP_SEND: {
      const bool may_wait = (entry.msg_flags & MSG_DONTWAIT) == 0;
      const std::int64_t result =
          table_.send(entry.fd, reinterpret_cast<const void*>(entry.addr), entry.len);
      if (result != -EAGAIN || !may_wait) return inject(entry, result);
      wait_for(entry, POLLOUT);
      break;
    }
    case IORING_OP_POLL_ADD: {
      // Multishot for reading is that of the wake descriptor.
      const bool is_wake =
          (entry.len & IORING_POLL_ADD_MULTI) != 0 && (entry.poll32_events & POLLIN) != 0;
      if (asks_poll && !is_wake) ask_poll(entry);
      return;
    }
    case IORING_OP_ASYNC_CANCEL:
      if (cancels_lost == 0) return;
      --cancels_lost;
      return inject(entry, -ENOENT);
    default:
      return;
  }
  view.waiting[entry.user_data] = waiting;
}

void RingFaults::ask_poll(io_uring_sqe& entry) {
  pollfd asked{entry.fd, static_cast<short>(entry.poll32_events), 0};
  if (table_.poll(&asked, 1, 0) > 0) {
    inject(entry, asked.revents);
  } else {
    wait_for(entry, 0);
  }
}

void RingFaults::after_enter(int fd, bool registered) {
  RingView* view = view_of(fd, registered);
  if (view == nullptr) return;
  const unsigned head = word(view->queues, view->completion_head);
  const unsigned tail =
      __atomic_load_n(&word(view->queues, view->completion_tail), __ATOMIC_ACQUIRE);
  if (static_cast<int>(view->seen - head) < 0) view->seen = head;
  auto* const completions = reinterpret_cast<io_uring_cqe*>(view->queues + view->completions);
  for (; view->seen != tail; ++view->seen) {
    io_uring_cqe& completion = completions[view->seen & view->completion_mask];
    const auto found = view->waiting.find(completion.user_data);
    if (found == view->waiting.end()) continue;
    const Waiting waiting = found->second;
    view->waiting.erase(found);
    if (completion.res > 0) complete(*view, completion, waiting);
  }
}

void RingFaults::complete(RingView& view, io_uring_cqe& completion, const Waiting& waiting) {
  auto* const bytes = reinterpret_cast<void*>(waiting.address);
  switch (waiting.opcode) {
    case IORING_OP_ACCEPT:
      completion.res = table_.accept(waiting.fd);
      break;
    case IORING_OP_SEND:
      completion.res = static_cast<int>(table_.send(waiting.fd, bytes, waiting.size));
      break;
    default:
      if (waiting.selects) {
        receive_selected(view, completion, waiting);
      } else {
        completion.res = static_cast<int>(table_.receive(waiting.fd, bytes, waiting.size));
      }
      break;
  }
}

void RingFaults::receive_selected(RingView& view, io_uring_cqe& completion,
                                  const Waiting& waiting) {
  auto* const buffers = reinterpret_cast<io_uring_buf*>(view.buffers);
  if (__atomic_load_n(&buffers[0].resv, __ATOMIC_ACQUIRE) == view.buffer_head) {
    completion.res = -ENOBUFS;
    return;
  }
  const io_uring_buf& buffer = buffers[view.buffer_head & view.buffer_mask];
  const std::uint16_t number = buffer.bid;
  completion.res = static_cast<int>(
      table_.receive(waiting.fd, reinterpret_cast<void*>(buffer.addr), buffer.len));
  if (completion.res <= 0) return;
  ++view.buffer_head;
  completion.flags = IORING_CQE_F_BUFFER | unsigned{number} << IORING_CQE_BUFFER_SHIFT;
}

}  // namespace evix::detail
