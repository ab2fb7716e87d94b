#include "capi/error.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

#include "base/version.hpp"

namespace evix::detail::capi {
namespace {

// Not std::string: a failure must be reportable when there is no memory, and on a thread that ends.
thread_local char last_text[192];
thread_local int last_code = 0;
thread_local char code_text[96];

}  // namespace

int fail_with(int code, const char* text) noexcept {
  write_text(text, last_text, sizeof last_text);
  return last_code = code;
}

int fail(const Error& error) noexcept {
  const int code = -error.code().value();
  try {
    return fail_with(code, error.message().c_str());
  } catch (...) {
    return fail_with(code, error.operation());
  }
}

int fail(Errc code, const char* function, std::string_view subject) noexcept {
  const Subject about = subject.empty() ? Subject{} : Subject::text(subject);
  return fail(Error(make_error_code(code), function, about));
}

int fail_errno(int number, const char* function, std::string_view subject) noexcept {
  const Subject about = subject.empty() ? Subject{} : Subject::text(subject);
  return fail(Error({number, std::system_category()}, function, about));
}

int fail_thrown(const char* function) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return fail_errno(ENOMEM, function);
  } catch (const std::system_error& error) {
    return fail_with(-error.code().value(), error.what());
  } catch (const std::exception& error) {
    return fail_with(EVIX_ETHROWN, error.what());
  } catch (...) {
    return fail_with(EVIX_ETHROWN, "a callback threw an exception");
  }
}

int write_text(std::string_view text, char* buffer, std::size_t size) noexcept {
  if (buffer != nullptr && size != 0) {
    const std::size_t count = std::min(text.size(), size - 1);
    std::copy_n(text.data(), count, buffer);
    buffer[count] = '\0';
  }
  return static_cast<int>(text.size());
}

}  // namespace evix::detail::capi

using namespace evix::detail;

extern "C" {

int evix_version(void) { return EVIX_VERSION; }

const char* evix_version_text(void) { return version_text(); }

const char* evix_last_error(void) { return capi::last_text; }

int evix_last_error_code(void) { return capi::last_code; }

const char* evix_error_text(int code) {
  try {
    const int number = code == INT_MIN ? INT_MAX : -code;  // no code either
    const std::error_code known = code <= EVIX_ECLOSED
                                      ? std::error_code(number, evix::evix_category())
                                      : std::error_code(number, std::system_category());
    const std::string text = code == EVIX_ETHROWN ? "a callback threw an exception"
                             : code < 0           ? evix::Error(known, nullptr).message()
                                                  : "success";
    capi::write_text(text, capi::code_text, sizeof capi::code_text);
  } catch (...) {
    capi::write_text("out of memory", capi::code_text, sizeof capi::code_text);
  }
  return capi::code_text;
}

}  // extern "C"
