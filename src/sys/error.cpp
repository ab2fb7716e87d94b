#include "sys/error.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace evix {
namespace {

const char* errc_message(Errc code) noexcept {
  switch (code) {
    case Errc::closed:
      return "the handle or its loop is closed";
    case Errc::wrong_thread:
      return "called from a thread that may not use the loop now";
    case Errc::forked:
      return "the process forked; call after_fork() in the child first";
    case Errc::queue_full:
      return "the send queue is full";
    case Errc::invalid_address:
      return "not an address; expected IPV4:PORT or [IPV6]:PORT";
    case Errc::backend_unknown:
      return "no backend has this name; there are automatic, io_uring, epoll, kqueue, poll, sim";
    case Errc::backend_unavailable:
      return "this backend cannot be used here";
    case Errc::already_registered:
      return "the descriptor is registered already";
    case Errc::busy:
      return "the same operation is already in flight";
    case Errc::not_connected:
      return "the stream is not connected";
    case Errc::stale_handle:
      return "the handle has ended or never existed";
    case Errc::connections_full:
      return "as many connections are open as the loop may have";
  }
  return "unknown error";
}

/**
 * No equivalent: wrong_thread and forked, for errno(3) knows no owner of an object; and
 * connections_full, a limit of the program's own and not that of a system that has no more.
 */
std::error_condition errc_condition(Errc code, const std::error_category& category) noexcept {
  switch (code) {
    case Errc::closed:
    case Errc::stale_handle:
      return std::errc::bad_file_descriptor;
    case Errc::queue_full:
      return std::errc::no_buffer_space;
    case Errc::invalid_address:
    case Errc::backend_unknown:
      return std::errc::invalid_argument;
    case Errc::backend_unavailable:
      return std::errc::not_supported;
    case Errc::already_registered:
      return std::errc::file_exists;
    case Errc::busy:
      return std::errc::device_or_resource_busy;
    case Errc::not_connected:
      return std::errc::not_connected;
    case Errc::wrong_thread:
    case Errc::forked:
    case Errc::connections_full:
      break;
  }
  return {static_cast<int>(code), category};
}

class EvixCategory final : public std::error_category {
 public:
  const char* name() const noexcept override { return "evix"; }
  std::string message(int code) const override { return errc_message(static_cast<Errc>(code)); }
  std::error_condition default_error_condition(int code) const noexcept override {
    return errc_condition(static_cast<Errc>(code), *this);
  }
};

bool is_upper(char c) noexcept { return c >= 'A' && c <= 'Z'; }

/** "Connection refused" reads on after a colon in lower case; "I/O error" and "SO_X" do not. */
std::string lower_first(std::string text) {
  const bool abbreviation = text.size() > 1 && (is_upper(text[1]) || text[1] == '/');
  if (!text.empty() && is_upper(text[0]) && !abbreviation) {
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  }
  return text;
}

bool continues_character(char c) noexcept { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/** Text of users goes to terminals and logs: no control characters from there. */
char printable(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f ? '?' : c;
}

}  // namespace

const std::error_category& evix_category() noexcept {
  static const EvixCategory category;
  return category;
}

Subject Subject::descriptor(native_handle handle) noexcept {
  Subject subject;
  subject.kind_ = Kind::descriptor;
  std::memcpy(subject.bytes_.data(), &handle, sizeof handle);
  return subject;
}

Subject Subject::address(const Address& address) noexcept {
  static_assert(sizeof address <= text_size_max && std::is_trivially_copyable_v<Address>);
  Subject subject;
  subject.kind_ = Kind::address;
  std::memcpy(subject.bytes_.data(), &address, sizeof address);
  return subject;
}

Subject Subject::text(std::string_view text) noexcept {
  std::size_t size = std::min(text.size(), text_size_max);
  while (size > 0 && size < text.size() && continues_character(text[size])) --size;
  Subject subject;
  subject.kind_ = Kind::text;
  subject.size_ = static_cast<std::uint8_t>(size);
  std::transform(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size),
                 subject.bytes_.begin(), printable);
  return subject;
}

std::string Subject::to_string() const {
  switch (kind_) {
    case Kind::none:
      break;
    case Kind::descriptor: {
      native_handle handle = no_handle;
      std::memcpy(&handle, bytes_.data(), sizeof handle);
      return "descriptor " + std::to_string(handle);
    }
    case Kind::address: {
      Address address;
      std::memcpy(&address, bytes_.data(), sizeof address);
      return address.to_string();
    }
    case Kind::text:
      return {bytes_.data(), size_};
  }
  return {};
}

std::string Error::message() const {
  std::string text = operation_ == nullptr ? "" : operation_;
  const std::string subject = subject_.to_string();
  if (!text.empty() && !subject.empty()) text += ' ';
  text += subject;
  if (!text.empty()) text += ": ";
  return text + lower_first(code_.message());
}

int complain(const Error& error) noexcept {
  try {
    const std::string line = error.message() + '\n';
    std::fputs(line.c_str(), stderr);
  } catch (const std::exception&) {
    std::fputs("out of memory\n", stderr);  // message() allocates, nothing else throws
  }
  return 1;
}

namespace detail {

std::error_code make_code(int code) noexcept {
  if (code >= errc_first) return {code, evix_category()};
  return {code, std::system_category()};
}

Error make_error(int code, const char* operation, Subject subject) noexcept {
  return {make_code(code), operation, subject};
}

}  // namespace detail
}  // namespace evix
