#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "poll/driver.hpp"
#include "sys/calls.hpp"

/** @file
 * Runs scripts of socket calls in a world: the real kernel, or the simulated one.
 *
 * One step a line, "words = result". Sockets are named by letters, results are numbers, names of
 * errors, or text. A step's result is checked at once, and goes into the transcript.
 *
 *   socket a | socket6 a              = ok
 *   bind a HOST PORT|@b|0|free        = ok        @b: the port of b; free: in both families
 *   listen a BACKLOG                  = ok
 *   connect a b | connect a nobody | connect a unspec | connect a HOST PORT|@b
 *                                                 nobody: a port that is taken, but not listening
 *   accept b l                        = ok        b becomes the name of what l accepts
 *   pair c s                          = ok        listener l, connected c and accepted s
 *   send a TEXT                       = COUNT     "send a" sends nothing
 *   recv a COUNT                      = TEXT      "end" for 0
 *   fill a                            = EAGAIN    sends until something else than bytes comes back
 *   drain b                           = ...       receives all that was filled, and one more
 *   shut a rd|wr|rdwr, close a        = ok
 *   error a                           = ok        takes SO_ERROR
 *   set a OPTION VALUE                = ok
 *   get a OPTION                      = VALUE
 *   name a, peer a                    = HOST:PORT ports of known sockets read "a.port"
 *   await a BITS                      = BITS      waits until poll says exactly BITS; "-" for none
 *   edge a                            = ok        registers it, edge-triggered, read and write
 *   edges                             = a:BITS …  what the edge-triggered set gives now
 */
namespace evix::detail {

class World {
 public:
  virtual ~World() = default;
  virtual Calls& calls() = 0;
  /** Readiness of poll(2) now, in everything. */
  virtual Ready bits(int fd) = 0;
  /** Waits until something of `wanted` may have come. */
  virtual void wait_for(int fd, Ready wanted) = 0;
  virtual int add_edge(int fd) = 0;
  /** At most one event for each descriptor. */
  virtual std::vector<DriverEvent> edges() = 0;
};

std::unique_ptr<World> make_real_world();
std::unique_ptr<World> make_simulated_world(std::uint64_t seed);

std::string bits_text(Ready bits);

/** One line for each step: "words = result". Closes everything that the script left open. */
std::vector<std::string> run_script(World& world, std::string_view script);
/** The same lines as written in the script. */
std::vector<std::string> expected_lines(std::string_view script);

}  // namespace evix::detail
