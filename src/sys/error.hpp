#pragma once

#include <evix/error.hpp>

/** @file
 * The one place where an error number of the operating system becomes an evix::Error.
 *
 * Layers pass errors as negative ints (`-ECONNREFUSED`, `-static_cast<int>(Errc::closed)`) until
 * they reach a user; there they become an Error, once.
 */
namespace evix::detail {

/** The first value of evix::Errc; errno(3) stays far below it (Linux: MAX_ERRNO is 4095). */
inline constexpr int errc_first = static_cast<int>(Errc::closed);

/** @param code a positive errno, or a value of evix::Errc. */
std::error_code make_code(int code) noexcept;

/**
 * @param code as for make_code().
 * @param operation a string literal; the pointer is kept.
 */
Error make_error(int code, const char* operation, Subject subject = {}) noexcept;
inline Error make_error(Errc code, const char* operation, Subject subject = {}) noexcept {
  return make_error(static_cast<int>(code), operation, subject);
}

/** `return failure(ENOENT, "open", subject);` from a function that gives a Result. */
inline Failure failure(int code, const char* operation, Subject subject = {}) noexcept {
  return Failure(make_error(code, operation, subject));
}
inline Failure failure(Errc code, const char* operation, Subject subject = {}) noexcept {
  return Failure(make_error(code, operation, subject));
}

}  // namespace evix::detail
