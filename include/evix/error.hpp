#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "evix/address.hpp"
#include "evix/export.hpp"
#include "evix/native_handle.hpp"

/** @file
 * Errors are values: what failed (a `std::error_code`), in which operation, on what.
 *
 * Codes that the operating system gives are in `std::system_category()` with the number of
 * errno(3); those that only evix can give are evix::Errc. Both compare with `std::errc` where there
 * is an equivalent: `error.code() == std::errc::connection_refused`.
 */
namespace evix {

/** What can go wrong that errno(3) has no number for. */
enum class Errc : int {
  closed = 5001,        ///< the handle, or the loop it belongs to, is closed
  wrong_thread,         ///< called from a thread that may not use the loop now
  forked,               ///< the process forked; call Loop::after_fork() in the child first
  queue_full,           ///< the send queue of the stream or of the loop has reached its hard cap
  invalid_address,      ///< the text is not ADDRESS:PORT
  backend_unknown,      ///< no backend has that name
  backend_unavailable,  ///< this backend cannot be used here; probe_backends() says why
  already_registered,   ///< the descriptor is registered already in a way that cannot be shared
  busy,                 ///< the same operation is already in flight on this handle
  not_connected,        ///< the stream is not connected: not yet, or no more
  stale_handle,         ///< C API: the handle was freed, has ended, or never existed
  connections_full,     ///< the loop has accepted as many connections as it may have open
};

/** Category of evix::Errc; name "evix". Its messages are lower case, without a full stop. */
EVIX_API const std::error_category& evix_category() noexcept;

/** Makes `std::error_code` from evix::Errc, as `std::is_error_code_enum` wants it. */
inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), evix_category()};
}

/** What an operation was applied to: nothing, a descriptor, an address, or a short text. */
class EVIX_API Subject {
 public:
  /** Text longer than this is cut. */
  static constexpr std::size_t text_size_max = 30;

  constexpr Subject() noexcept = default;
  /** A descriptor; shown as `descriptor 5`. */
  static Subject descriptor(native_handle handle) noexcept;
  /** An address; shown as `127.0.0.1:3000`. */
  static Subject address(const Address& address) noexcept;
  /** A path, a name or a number as the user wrote it; cut to `text_size_max` bytes. */
  static Subject text(std::string_view text) noexcept;

  /** The words for a message; empty when there is no subject. */
  std::string to_string() const;

 private:
  enum class Kind : std::uint8_t { none, descriptor, address, text };
  Kind kind_ = Kind::none;
  std::uint8_t size_ = 0;
  std::array<char, text_size_max> bytes_{};
};

/**
 * An error: code, operation and subject. Trivially copyable; making and copying one allocates
 * nothing, only message() does.
 */
class EVIX_API Error {
 public:
  /** @param operation a string literal such as "connect"; the pointer is kept. */
  Error(std::error_code code, const char* operation, Subject subject = {}) noexcept
      : code_(code), operation_(operation), subject_(subject) {}

  const std::error_code& code() const noexcept { return code_; }
  const char* operation() const noexcept { return operation_; }
  const Subject& subject() const noexcept { return subject_; }

  /** For people: `connect 127.0.0.1:3000: connection refused`. */
  std::string message() const;

  friend bool operator==(const Error& error, std::errc code) { return error.code_ == code; }
  friend bool operator==(const Error& error, Errc code) {
    return error.code_ == make_error_code(code);
  }

 private:
  std::error_code code_;
  const char* operation_;
  Subject subject_;
};

static_assert(std::is_trivially_copyable_v<Error>);

/** What every operation that can fail gives. */
template <class T = void>
using Result = std::expected<T, Error>;

/** Shorthand for `return std::unexpected(error)`. */
using Failure = std::unexpected<Error>;

/**
 * For `main`: prints the message of the error to the standard error stream.
 * @return 1, so that `return evix::complain(result.error());` ends a program.
 */
EVIX_API int complain(const Error& error) noexcept;

}  // namespace evix

template <>
struct std::is_error_code_enum<evix::Errc> : std::true_type {};
