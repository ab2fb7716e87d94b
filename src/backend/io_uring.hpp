#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/contract.hpp"
#include "backend/io_uring_buffers.hpp"
#include "backend/io_uring_ring.hpp"
#include "backend/source_ops.hpp"
#include "base/check.hpp"
#include "base/ring_queue.hpp"
#include "base/slab.hpp"
#include "base/thread_id.hpp"
#include "poll/interest_table.hpp"
#include "sys/process.hpp"

/** @file
 * The backend over io_uring: docs/decisions/0007-io-uring.md says why it is made like this.
 *
 * - io_uring.cpp: the ring's life, waiting, next().
 * - io_uring_ports.cpp: descriptors that come and go, cancelling, what is kept.
 * - io_uring_in.cpp: receiving and accepting; io_uring_out.cpp: sending and connecting.
 * - io_uring_watch.cpp: watched descriptors and the wake descriptor.
 *
 * start() only lists the port; wait() prepares what its operations need and does it all in one
 * call. So what is started and cancelled within a turn never reaches the kernel, and nothing does
 * before the thread is known that runs the loop.
 */
namespace evix::detail {

/** Of an entry: with slot and generation of the port it makes the token of its completions. */
enum class Role : std::uint8_t {
  ignored,  ///< nobody waits for this completion
  receive,  ///< into a ring's buffer or the caller's memory
  accept,
  out,     ///< a send, or the poll of a connecting socket
  batch,   ///< bytes that try_send() copied
  poll,    ///< of a watched or the wake descriptor
  urgent,  ///< a poll for urgent data, beside a multishot receive
};

/** Neither a result nor an error: the entry is to be made again. */
inline bool is_to_be_repeated(std::int32_t error) noexcept {
  return error == -EINTR || error == -EAGAIN;
}

/** Bytes of try_send() that the kernel did not take at once. */
struct UnsentBytes {
  std::vector<std::byte> bytes;
  std::size_t done = 0;
};

/**
 * A stream that was closed with bytes that try_send() took and the kernel did not yet: a duplicate
 * of its descriptor sends them, as the kernel goes on with what it has of a closed socket.
 */
struct LingeringStream : Source {
  std::uint32_t slot = 0;
  std::int64_t until_ns = 0;
  bool ended = false;
};

struct RingPort;

/** Bytes that try_send() copied, for the next call. */
struct Batch {
  RingPort* port = nullptr;  ///< null: its end is known, or its descriptor is closed
  std::byte* bytes = nullptr;
  std::uint32_t entry = 0;  ///< position in the ring
  std::uint32_t size = 0;
};

/** All of a turn. More than that is handed over within the turn. */
struct Batches {
  static constexpr std::size_t count_max = 256;
  static constexpr std::size_t bytes_max = std::size_t{64} * 1024;

  std::size_t count = 0;
  std::size_t bytes_used = 0;
  std::array<Batch, count_max> list;
  std::array<std::byte, bytes_max> bytes;
};

/** What the backend keeps of an attached descriptor. */
struct RingPort {
  enum class Listed : std::uint8_t { no, pending, starved };

  Source* source = nullptr;
  BufferBlock* kept = nullptr;  ///< received, not given yet: the last of a circle
  std::uint32_t slot : 28 = 0;
  bool in_armed : 1 = false;  ///< the kernel has a receive, an accept or a poll
  bool out_armed : 1 = false;
  bool stop_due : 1 = false;  ///< the receive or poll is to be cancelled with the next call
  bool stopping : 1 = false;  ///< it has been told to
  std::uint8_t kept_errno = no_end;
  std::uint8_t send_errno = 0;
  Listed listed : 2 = Listed::no;
  bool multishot : 1 = false;  ///< the armed receive, accept or poll is
  bool urgent_armed : 1 = false;
  bool urgent : 1 = false;     ///< there was urgent data: no multishot any more
  bool into : 1 = false;       ///< the armed receive is into the caller's memory
  bool in_done : 1 = false;    ///< receive_into has its result
  bool out_done : 1 = false;   ///< the first send has its result, or the connect can be asked
  bool send_told : 1 = false;  ///< send_error() has been
  bool reset : 1 = false;      ///< a send was given the peer's reset, which receives are not then
  bool gone : 1 = false;       ///< its descriptor was closed by others
  bool unpollable : 1 = false;
  bool has_connections : 1 = false;  ///< accepted, not given yet
  bool batched : 1 = false;          ///< has one of the batches
  bool unsent : 1 = false;           ///< has bytes in RingBackend::unsent_
  bool full : 1 = false;             ///< took less than all the last time: ask, do not copy

  static constexpr std::uint8_t no_end = UINT8_MAX;
  bool has_end() const noexcept { return kept_errno != no_end; }
  /** What ends the receive or accept after all that is kept: 0 or -errno. */
  std::int32_t kept_end() const noexcept { return -std::int32_t{kept_errno}; }
  void keep_end(std::int32_t result) noexcept { kept_errno = to_byte(result); }
  bool has_kept() const noexcept { return kept != nullptr || has_end(); }
  /** Of bytes that try_send() took: 0 or -errno. */
  std::int32_t send_error() const noexcept { return -std::int32_t{send_errno}; }
  void fail_sends(std::int32_t error) noexcept { send_errno = to_byte(error); }
  bool sending() const noexcept { return batched || unsent; }

 private:
  /** Linux has none above 133. */
  static std::uint8_t to_byte(std::int32_t error) noexcept {
    return error > -std::int32_t{no_end} ? static_cast<std::uint8_t>(-error) : EIO;
  }
};
static_assert(sizeof(RingPort) == 24, "counts in the memory of an idle connection");

/** A watched descriptor, shared by all watch operations on its number. */
struct WatchedPort : Source {
  std::uint32_t slot = 0;
};

class RingBackend final : public Backend {
 public:
  RingBackend(Calls& calls, BufferPool& pool);
  ~RingBackend() override;

  /** A new ring. 0 or -errno. */
  int open();
  const std::string& why() const noexcept { return why_; }

  BackendKind kind() const noexcept override { return BackendKind::io_uring; }
  std::int64_t now() noexcept override { return calls_.clock_now(); }
  int attach(Source& source) override;
  void detach(Source& source) noexcept override;
  Started start(Op& op) override;
  void cancel(Op& op) noexcept override;
  [[gnu::hot]] std::int64_t try_send(Source& source,
                                     std::span<const std::byte> bytes) noexcept override;
  int settle(Source& source) noexcept override;
  int change_interest(WatchOp& op, Ready interest) override;
  int wait(std::int64_t timeout_ns) override;
  [[gnu::hot]] Op* next() override;
  bool has_leftovers() const noexcept override {
    return !ready_sources_.empty() || queue_overflowed_ || ring_.completions() != 0 ||
           ring_.overflowed();
  }
  bool is_busy() noexcept override;
  void end_run() noexcept override;
  int watch_wake(native_handle event) override;
  int after_fork() override;
  int rebuild() override;
  BufferPool& buffers() noexcept override { return pool_; }
  std::vector<std::string> fallbacks() const override { return ring_.fallbacks(); }

  /** What the runs of this thread have collected goes to the kernel. For exit(3). */
  static void flush_at_exit() noexcept;

 private:
  struct Connection {
    std::uint32_t slot;
    native_handle handle;
  };

  // ---- Tokens ----
  static constexpr std::uint32_t slot_bits = 28;
  static constexpr std::uint32_t slot_mask = (1U << slot_bits) - 1;
  static Role role_of(std::uint64_t token) noexcept {
    return static_cast<Role>(static_cast<std::uint32_t>(token) >> slot_bits);
  }
  static std::uint64_t token_of(const Source& source, Role role) noexcept {
    return std::uint64_t{source.interest.generation} << 32 |
           (static_cast<std::uint32_t>(role) << slot_bits | source.interest.slot);
  }
  static std::uint64_t token_of(const RingPort& port, Role role) noexcept {
    return token_of(*port.source, role);
  }
  RingPort* find(std::uint64_t token) noexcept {
    return ports_.find_issued(static_cast<std::uint32_t>(token) & slot_mask,
                              static_cast<std::uint32_t>(token >> 32));
  }
  RingPort& port_of(const Source& source) noexcept {
    check(source.interest.generation != 0, "an operation on a source that is not attached");
    return ports_.at(source.interest.slot);
  }
  RingPort* pop_listed(RingQueue<std::uint64_t>& list, RingPort::Listed as) noexcept;

  // ---- The ring ----
  bool forked() const noexcept { return fork_generation_ != fork_generation(); }
  void begin_run() noexcept;
  void leave_run() noexcept;
  int bind_to_this_thread();
  void drop_ring() noexcept;
  int enter(std::int64_t timeout_ns);
  int enter_ring(unsigned completion_count, std::int64_t timeout_ns) noexcept;
  int hand_over() noexcept;
  bool make_room(unsigned entries) noexcept;
  void arm_listed() noexcept;
  void arm_sends() noexcept;
  void arm_all() noexcept;
  void feed_starved() noexcept;
  void renew_leftovers() noexcept;
  [[gnu::noinline]] Op* take(const io_uring_cqe& completion);
  Source* absorb(const io_uring_cqe& completion) noexcept;
  void absorb_stale(const io_uring_cqe& completion) noexcept;
  void collect(const RingPort& port) noexcept;
  void absorb_everything() noexcept;

  // ---- Ports ----
  RingPort* make_port(Source& source) noexcept;
  void free_port(RingPort& port) noexcept;
  int evict(native_handle handle) noexcept;
  void list(RingPort& port) noexcept;
  void starve(RingPort& port) noexcept;
  void arm(RingPort& port) noexcept;
  static bool is_armed(const RingPort& port, Role role) noexcept;
  void disarm(RingPort& port, Role role) noexcept;
  void disarm_all(RingPort& port) noexcept;
  void stop(RingPort& port, Role role) noexcept;
  bool take_back(std::uint64_t token) noexcept;
  bool visit(Source& source) noexcept;
  bool has_something(Source& source) noexcept;
  void enqueue(Source& source) noexcept;
  void dequeue(Source& source) noexcept;
  void find_unqueued() noexcept;
  Op* give(Source& source);
  Op* next_leftover();
  void update_plain(RingPort& port) noexcept;

  // ---- In ----
  Started start_in(Op& op);
  void arm_in(RingPort& port) noexcept;
  Source* absorb_receive(RingPort& port, const io_uring_cqe& completion) noexcept;
  Source* absorb_urgent(RingPort& port, std::int32_t result) noexcept;
  Source* absorb_accept(RingPort& port, const io_uring_cqe& completion) noexcept;
  void keep(RingPort& port, BufferBlock* block, std::size_t size) noexcept;
  BufferBlock* take_kept(RingPort& port) noexcept;
  void keep_connection(RingPort& port, native_handle handle) noexcept;
  native_handle take_connection(RingPort& port) noexcept;
  void refuse_connection(native_handle handle) noexcept;
  void drop_kept(RingPort& port) noexcept;
  void throttle(RingPort& port) noexcept;
  Op* give_received(RingPort& port);
  Op* give_into(RingPort& port, ReceiveIntoOp& op);
  Op* give_connection(RingPort& port);
  Op* end_in(RingPort& port, std::int32_t result) noexcept;
  std::int32_t end_of(RingPort& port) noexcept;

  // ---- Out ----
  Started start_send(SendOp& op);
  Started start_connect(ConnectOp& op);
  void arm_out(RingPort& port) noexcept;
  Source* absorb_out(RingPort& port, std::int32_t result) noexcept;
  Source* absorb_batch(RingPort& port, std::int32_t result) noexcept;
  Source* absorb_unsent(RingPort& port, std::int32_t result) noexcept;
  static void note_failure(RingPort& port, std::int32_t error) noexcept;
  Op* give_out(RingPort& port);
  std::int64_t send_now(RingPort& port, std::span<const std::byte> bytes) noexcept;
  std::int64_t extend_batch(RingPort& port, std::span<const std::byte> bytes) noexcept;
  [[gnu::noinline]] std::int64_t try_send_otherwise(RingPort& port,
                                                    std::span<const std::byte> bytes) noexcept;
  bool has_batch_room(std::size_t size) const noexcept;
  [[gnu::noinline]] bool make_batch_room(std::size_t size) noexcept;
  bool has_batches() const noexcept { return batches_ != nullptr && batches_->count != 0; }
  Batch& batch_of(const RingPort& port) noexcept;
  void end_batch(Batch& batch) noexcept;
  void settle_batches() noexcept;
  void make_audible(const RingPort& port) noexcept;
  void keep_unsent_batches() noexcept;
  void cancel_out(RingPort& port, Op& op) noexcept;
  void drop_out(RingPort& port) noexcept;
  void end_handed_over(RingPort& port) noexcept;

  // ---- Closed and not sent yet ----
  void keep_sending(RingPort& port) noexcept;
  LingeringStream* make_lingering(native_handle handle) noexcept;
  bool is_to_be_reset(native_handle handle) noexcept;
  void end_lingering(LingeringStream& stream) noexcept;
  void end_all_lingering() noexcept;
  std::int64_t limit_lingering(std::int64_t timeout_ns) noexcept;
  void abandon_lingering() noexcept;

  // ---- Watched ----
  Started start_watch(WatchOp& op);
  void arm_poll(RingPort& port) noexcept;
  Source* absorb_poll(RingPort& port, std::int32_t result, bool more) noexcept;
  Op* give_watched(Source& source);
  void remove_watch(WatchOp& op) noexcept;
  void drop_watched(RingPort& port) noexcept;

  Calls& calls_;
  BufferPool& pool_;
  Ring ring_;
  ReceiveBuffers buffers_;
  Slab<RingPort> ports_;

  RingQueue<Source*> ready_sources_;  // have something that was not given yet
  std::size_t visits_left_ = 0;       // of them in this turn
  std::uint8_t turn_ = 0;
  bool queue_overflowed_ = false;  // some source found no room in ready_sources_
  bool list_overflowed_ = false;   // some port found no room in pending_ or starved_
  bool collecting_ = false;        // a wait() or end_run() will follow
  bool multishot_receive_ = true;
  bool multishot_accept_ = true;
  bool multishot_seen_ = false;  // of receives: the kernel knows it
  bool accept_seen_ = false;
  // Tokens, so that a port can go without being looked for here: what is not found is skipped.
  RingQueue<std::uint64_t> pending_;  // to be armed before the next wait
  RingQueue<std::uint64_t> starved_;  // found no buffer
  unsigned kept_count_ = 0;           // blocks of sources that are being received from

  std::unique_ptr<Batches> batches_;                       // what try_send() copied in this turn
  std::unordered_map<std::uint32_t, UnsentBytes> unsent_;  // by slot of the port; slow peers only
  Slab<LingeringStream> lingering_;
  std::int64_t lingering_next_ns_ = 0;  // when the first of them has lingered enough

  RingBackend* outer_run_ = nullptr;  // of this thread, around the one of this loop
  ThreadId owner_ = nullptr;          // the only one that may enter; null: nobody yet
  unsigned enters_ = 0;               // of this run
  std::uint32_t fork_generation_ = fork_generation();
  bool dropping_ = false;
  std::string why_;

  std::vector<Connection> connections_;  // accepted, not given yet
  Slab<WatchedPort> watched_;
  Source wake_;
  HandleIndex handles_;  // number → slot of the port
};

}  // namespace evix::detail
