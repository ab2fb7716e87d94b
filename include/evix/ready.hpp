#pragma once

#include <cstdint>

/** @file
 * Readiness of a descriptor: bits, triggers, and the name of a registered interest.
 */
namespace evix {

/**
 * Bits of readiness. As an interest only `readable`, `writable` and `priority` count; the others
 * are always reported. The values are those of poll(2).
 */
enum class Ready : std::uint16_t {
  none = 0,
  readable = 0x001,      ///< bytes, a connection, or the end of the stream can be read
  priority = 0x002,      ///< urgent data (TCP), or another exceptional condition
  writable = 0x004,      ///< there is room to write, or a connect has finished
  error = 0x008,         ///< an error is pending (SO_ERROR), or the reader of a pipe is gone
  hangup = 0x010,        ///< both directions are shut
  invalid = 0x020,       ///< the descriptor is not open any more; the interest has been removed
  read_closed = 0x2000,  ///< the peer has shut its sending side; unread bytes may remain; only
                         ///< with an interest in `readable`
};

constexpr Ready operator|(Ready a, Ready b) noexcept {
  return static_cast<Ready>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr Ready operator&(Ready a, Ready b) noexcept {
  return static_cast<Ready>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
constexpr Ready operator~(Ready a) noexcept {
  return static_cast<Ready>(~static_cast<unsigned>(a) & 0x203fU);
}
constexpr Ready& operator|=(Ready& a, Ready b) noexcept { return a = a | b; }
constexpr Ready& operator&=(Ready& a, Ready b) noexcept { return a = a & b; }
/** Whether any of the bits of `b` is in `a`. */
constexpr bool any(Ready a, Ready b) noexcept { return (a & b) != Ready::none; }
constexpr bool any(Ready a) noexcept { return a != Ready::none; }

/** When a registered interest gives an event. */
enum class Trigger : std::uint8_t {
  level,     ///< at every wait, as long as it is ready
  edge,      ///< once each time it becomes ready; only where Poller::supports_edge()
  one_shot,  ///< once; the interest is then disabled until enable()
};

/** Names one registered interest; slot and generation, so a stale one reaches nobody. */
struct InterestId {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;  ///< 0: none
  friend bool operator==(const InterestId&, const InterestId&) noexcept = default;
};

}  // namespace evix
