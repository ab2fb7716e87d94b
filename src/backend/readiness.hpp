#pragma once

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <unordered_map>

#include "backend/contract.hpp"
#include "base/ring_queue.hpp"
#include "base/slab.hpp"
#include "poll/poller_state.hpp"
#include "sys/calls.hpp"

/** @file
 * The backend over any poll driver: try, wait until ready, try again.
 */
namespace evix::detail {

class ReadinessBackend final : public Backend {
 public:
  ReadinessBackend(std::unique_ptr<PollDriver> driver, Calls& calls, BufferPool& pool);
  ~ReadinessBackend() override;

  BackendKind kind() const noexcept override { return poller_.driver().kind(); }
  std::int64_t now() noexcept override { return calls_.clock_now(); }
  int attach(Source& source) override;
  void detach(Source& source) noexcept override;
  Started start(Op& op) override;
  void cancel(Op& op) noexcept override;
  std::int64_t try_send(Source& source, std::span<const std::byte> bytes) noexcept override;
  int change_interest(WatchOp& op, Ready interest) override;
  int wait(std::int64_t timeout_ns) override;
  Op* next() override;
  bool has_leftovers() const noexcept override { return !ready_sources_.empty(); }
  int watch_wake(native_handle event) override;
  int after_fork() override;
  BufferPool& buffers() noexcept override { return pool_; }
  std::vector<std::string> fallbacks() const override;

 private:
  /** A watched descriptor, shared by all watch operations on its number. */
  struct WatchedSource : Source {
    std::uint32_t slot = 0;
  };

  int sync(Source& source);
  Ready wanted(const Source& source) const noexcept;
  Trigger trigger_of(const Source& source) const noexcept;
  void enqueue(Source& source);
  void dequeue(Source& source) noexcept;
  void collect_events();
  void take_event(const PollEvent& event);

  Op* next_of(Source& source);
  Op* next_of_stream(Source& source);
  Op* next_of_watched(WatchedSource& source);
  Op* next_of_listener(Source& source);
  // Each tries the system call for a parked op; true: the op has a result.
  bool receive(Source& source, ReceiveOp& op);
  bool receive_into(Source& source, ReceiveIntoOp& op);
  bool send(Source& source, SendOp& op);
  bool finish_connect(Source& source, ConnectOp& op);
  void note_received(Source& source, std::size_t count, std::size_t capacity) noexcept;
  void continue_later(Source& source);

  Started start_connect(ConnectOp& op);
  Started start_watch(WatchOp& op);
  Started park_in(Op& op);
  Started park_out(Op& op);
  void unpark(Op& op) noexcept;
  void unpark_send(SendOp& op) noexcept;
  void unpark_watch(WatchOp& op) noexcept;
  WatchedSource* watched_source(const WatchOp& op, int& error);
  int sync_watched(WatchedSource& source);
  void drop_watched(WatchedSource& source) noexcept;

  PollerState poller_;
  Calls& calls_;
  BufferPool& pool_;
  const bool edge_;
  Source wake_;
  RingQueue<Source> ready_sources_;
  std::size_t visits_left_ = 0;  // of ready sources in this turn
  std::uint8_t turn_ = 0;
  Slab<WatchedSource> watched_sources_;
  // The pool keeps the nodes, so that watching again and again allocates nothing.
  std::pmr::unsynchronized_pool_resource map_memory_;
  std::pmr::unordered_map<native_handle, WatchedSource*> watched_by_handle_{&map_memory_};
};

}  // namespace evix::detail
