#pragma once

#include <memory>
#include <unordered_map>

#include "backend/contract.hpp"

/** @file
 * A backend around the real one: has an entry for each operation in flight, and looks whether the
 * loop sleeps, spins or ends as the contract says.
 */
namespace evix::test {

class LedgerBackend final : public detail::Backend {
 public:
  explicit LedgerBackend(std::unique_ptr<detail::Backend> inner) : inner_(std::move(inner)) {}
  ~LedgerBackend() override;

  BackendKind kind() const noexcept override { return inner_->kind(); }
  std::int64_t now() noexcept override;
  int attach(detail::Source& source) override;
  void detach(detail::Source& source) noexcept override;
  detail::Started start(detail::Op& op) override;
  void cancel(detail::Op& op) noexcept override;
  std::int64_t try_send(detail::Source& source,
                        std::span<const std::byte> bytes) noexcept override {
    return inner_->try_send(source, bytes);
  }
  int settle(detail::Source& source) noexcept override { return inner_->settle(source); }
  int change_interest(detail::WatchOp& op, Ready interest) override {
    return inner_->change_interest(op, interest);
  }
  int wait(std::int64_t timeout_ns) override;
  detail::Op* next() override;
  bool has_leftovers() const noexcept override;
  bool is_busy() noexcept override { return inner_->is_busy(); }
  void end_run() noexcept override { inner_->end_run(); }
  int watch_wake(native_handle event) override { return inner_->watch_wake(event); }
  int after_fork() override { return inner_->after_fork(); }
  int rebuild() override { return inner_->rebuild(); }
  detail::BufferPool& buffers() noexcept override { return inner_->buffers(); }
  std::vector<std::string> fallbacks() const override { return inner_->fallbacks(); }

 private:
  struct Entry {
    detail::OpKind kind;
    detail::Source* source;
    native_handle handle;
    int ready_waits = 0;  ///< idle waits in a row in which its descriptor was ready
  };

  int wait_a_while(std::int64_t timeout_ns, std::int64_t& passed_ns);
  void ended(detail::Op& op, const char* how);
  void look_idle();
  void look_for_lost_handles();
  void look_whether_it_spins(bool blocks, bool idle);

  std::unique_ptr<detail::Backend> inner_;
  std::unordered_map<detail::Op*, Entry> in_flight_;
  mutable bool said_leftovers_ = false;
  std::uint64_t callbacks_seen_ = 0;
  int fruitless_ = 0;  ///< waits that ended early, with nothing that came of it
  int lost_waits_ = 0;
  int idle_waits_ = 0;
  int failed_waits_ = 0;
};

}  // namespace evix::test
