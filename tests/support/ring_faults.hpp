#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

struct io_uring_cqe;
struct io_uring_sqe;

namespace evix::detail {

class Calls;

/**
 * Makes the socket operations of a ring through a table of calls, so that what a test does to
 * receive, send and accept happens on io_uring as on the other backends.
 *
 * An entry for one of them becomes a poll; when it says ready the call is made, and the completion
 * gets its result. A send is tried before. Each is one shot, as on a kernel that ends a multishot
 * early. Everything else reaches the kernel as it is. Rings may be made and closed by any thread;
 * those whose operations are made here all belong to one.
 */
class RingFaults {
 public:
  explicit RingFaults(Calls& table) noexcept : table_(table) {}

  /** Watched descriptors are as the table's poll() says, and silent else. */
  bool asks_poll = false;
  /** So many of the next cancels find nothing (-ENOENT). */
  unsigned cancels_lost = 0;

  /** The memory of this ring has been mapped. */
  void mapped(int fd, std::uint64_t offset, std::size_t size, void* memory);
  void set_up(int fd, const void* parameters);
  void registered_buffers(int fd, const void* registration);
  void closed(int fd) noexcept;

  /** Before the kernel gets `count` new entries. @param fd may be a registered index. */
  void before_enter(int fd, bool registered, unsigned count);
  void after_enter(int fd, bool registered);
  void registered_as(int fd, unsigned index);

 private:
  struct Waiting {
    std::uint8_t opcode;
    int fd;
    std::uint64_t address;
    std::uint32_t size;
    bool selects;
  };
  struct RingView {
    std::byte* queues = nullptr;
    io_uring_sqe* entries = nullptr;
    std::uint32_t entry_head = 0;
    std::uint32_t entry_mask = 0;
    std::uint32_t completion_head = 0;
    std::uint32_t completion_tail = 0;
    std::uint32_t completion_mask = 0;
    std::uint32_t completions = 0;
    std::uint32_t seen = 0;  // completions below were looked at
    std::byte* buffers = nullptr;
    std::uint16_t buffer_mask = 0;
    std::uint16_t buffer_head = 0;
    std::unordered_map<std::uint64_t, Waiting> waiting;
  };

  RingView* view_of(int fd, bool registered);
  void replace(RingView& view, io_uring_sqe& entry);
  void ask_poll(io_uring_sqe& entry);
  void complete(RingView& view, io_uring_cqe& completion, const Waiting& waiting);
  void receive_selected(RingView& view, io_uring_cqe& completion, const Waiting& waiting);

  Calls& table_;
  std::mutex mutex_;  // of the maps, not of what a thread has found in them
  std::unordered_map<int, RingView> rings_;
  std::unordered_map<unsigned, int> indexes_;
};

}  // namespace evix::detail
