#pragma once

#include <evix/native_handle.hpp>
#include <utility>

#include "base/check.hpp"
#include "base/mutation.hpp"
#include "sys/calls.hpp"

/** @file
 * A descriptor that closes itself.
 */
namespace evix::detail {

/** Owns a descriptor; closes it through the table of calls, which must outlive it. Move-only. */
class Fd {
 public:
  Fd() noexcept = default;
  Fd(Calls& calls, native_handle handle) noexcept : calls_(&calls), handle_(handle) {}
  Fd(Fd&& other) noexcept : calls_(other.calls_), handle_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      calls_ = other.calls_;
      handle_ = other.release();
    }
    return *this;
  }
  ~Fd() { reset(); }

  native_handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ >= 0; }

  /** The caller closes it. */
  native_handle release() noexcept { return std::exchange(handle_, no_handle); }

  /** Closes it now. close(2) is never repeated, not after EINTR either: Linux frees the number. */
  void reset() noexcept {
    if (handle_ < 0) return;
    const bool closed = calls_->close(release()) == 0;
    check(closed || !mutated("T031"), "a descriptor could not be closed");
  }

 private:
  Calls* calls_ = nullptr;
  native_handle handle_ = no_handle;
};

}  // namespace evix::detail
