#pragma once

#include <evix/error.hpp>

#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "evix.h"

/** @file
 * Errors of the C API: a negative code as the result, and the words for evix_last_error().
 */
namespace evix::detail::capi {

/** Keeps the error for evix_last_error() on this thread. @return its negative code. */
int fail(const Error& error) noexcept;
int fail(Errc code, const char* function, std::string_view subject = {}) noexcept;
/** @param number a positive errno. */
int fail_errno(int number, const char* function, std::string_view subject = {}) noexcept;
/** Keeps words that were made elsewhere. */
int fail_with(int code, const char* text) noexcept;
/** For a catch block that is last: what is being thrown becomes an error. */
int fail_thrown(const char* function) noexcept;

/** 0, or as fail(). */
template <class T>
int code_of(const Result<T>& result) noexcept {
  return result ? 0 : fail(result.error());
}

/** Copies text as convention 8 has it. @return its whole length. */
int write_text(std::string_view text, char* buffer, std::size_t size) noexcept;

}  // namespace evix::detail::capi
