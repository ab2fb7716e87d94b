#pragma once

#include <ostream>
#include <string_view>

/** @file
 * What a connection of Linux TCP does over loopback, as scripts; sim_script.hpp explains the
 * steps. sim_scripts_setup.hpp: how connections come about.
 */
namespace evix::detail {

struct Script {
  const char* name;
  std::string_view steps;
};

inline void PrintTo(const Script& script, std::ostream* stream) { *stream << script.name; }

inline constexpr Script socket_scripts[] = {
    {"fresh_socket", R"(
socket a = ok
await a OUT|HUP = OUT|HUP
recv a 1 = ENOTCONN
send a x = EPIPE
send a = EPIPE
shut a wr = ENOTCONN
await a OUT|HUP = OUT|HUP
error a = ok
name a = 0.0.0.0:0
peer a = ENOTCONN
accept b a = EINVAL
close a = ok)"},
    {"fresh_socket_after_refused_shutdown", R"(
socket a = ok
shut a rdwr = ENOTCONN
await a IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
recv a 1 = end
shut a odd = EINVAL)"},
    {"closed_number", R"(
close x = EBADF
recv x 1 = EBADF
send x y = EBADF
shut x wr = EBADF
listen x 1 = EBADF
bind x 127.0.0.1 0 = EBADF
connect x 127.0.0.1 80 = EBADF
accept b x = EBADF
name x = EBADF
peer x = EBADF
error x = EBADF
set x nodelay 1 = EBADF)"},
    {"bytes_both_ways", R"(
pair c s = ok
await c OUT = OUT
await s OUT = OUT
send c hello = 5
await s IN|OUT = IN|OUT
recv s 3 = hel
await s IN|OUT = IN|OUT
recv s 10 = lo
recv s 10 = EAGAIN
await s OUT = OUT
send s world = 5
await c IN|OUT = IN|OUT
recv c 5 = world
recv c 1 = EAGAIN
send c = 0
recv s 1 = EAGAIN)"},
    {"several_sends_are_one_stream", R"(
pair c s = ok
send c ab = 2
send c cd = 2
send c ef = 2
await s IN|OUT = IN|OUT
recv s 5 = abcde
recv s 5 = f)"},
    {"receive_of_no_bytes", R"(
pair c s = ok
recv s 0 = EAGAIN
send c x = 1
await s IN|OUT = IN|OUT
recv s 0 = end
recv s 1 = x
shut c wr = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
recv s 0 = end)"},
    {"bytes_before_the_accept", R"(
socket l = ok
bind l 127.0.0.1 0 = ok
listen l 5 = ok
await l - = -
socket c = ok
connect c l = EINPROGRESS
await c OUT = OUT
await l IN = IN
send c early = 5
accept s l = ok
await l - = -
await s IN|OUT = IN|OUT
recv s 9 = early
name s = 127.0.0.1:l.port
peer s = 127.0.0.1:c.port
name c = 127.0.0.1:c.port
peer c = 127.0.0.1:l.port)"},
    {"end_then_close_on_both_sides", R"(
pair c s = ok
close c = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
recv s 1 = end
recv s 1 = end
error s = ok
close s = ok)"},
    {"data_then_end", R"(
pair c s = ok
send c tail = 4
close c = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
recv s 2 = ta
await s IN|OUT|RDHUP = IN|OUT|RDHUP
recv s 9 = il
recv s 9 = end
await s IN|OUT|RDHUP = IN|OUT|RDHUP)"},
    {"half_close_keeps_the_other_direction", R"(
pair c s = ok
shut c wr = ok
await c OUT = OUT
await s IN|OUT|RDHUP = IN|OUT|RDHUP
send c x = EPIPE
recv s 1 = end
send s late = 4
await c IN|OUT = IN|OUT
recv c 9 = late
recv c 9 = EAGAIN
peer c = 127.0.0.1:l.port
close s = ok
await c IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
recv c 9 = end
peer c = ENOTCONN)"},
    {"both_halves_closed", R"(
pair c s = ok
shut c wr = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
shut s wr = ok
await s IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
await c IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
recv c 1 = end
recv s 1 = end
send c x = EPIPE
send s x = EPIPE
error c = ok
error s = ok
shut c rd = ENOTCONN
peer s = ENOTCONN)"},
    {"unread_bytes_survive_both_ends", R"(
pair c s = ok
send c abc = 3
send s xyz = 3
shut c wr = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
shut s wr = ok
await c IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
await s IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
recv c 9 = xyz
recv s 9 = abc
recv c 9 = end
recv s 9 = end)"},
    {"shutdown_of_reading", R"(
pair c s = ok
shut s rd = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
await c OUT = OUT
recv s 1 = end
send c still = 5
await c OUT = OUT
recv s 9 = still
recv s 9 = end
send s back = 4
await c IN|OUT = IN|OUT
recv c 9 = back)"},
    {"shutdown_of_reading_keeps_what_came", R"(
pair c s = ok
send c abc = 3
await s IN|OUT = IN|OUT
shut s rd = ok
recv s 2 = ab
recv s 2 = c
recv s 2 = end)"},
    {"shutdown_of_both", R"(
pair c s = ok
shut s rdwr = ok
await s IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
await c IN|OUT|RDHUP = IN|OUT|RDHUP
recv s 1 = end
send s x = EPIPE
recv c 1 = end
close c = ok
await s IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
peer s = ENOTCONN)"},
    {"bytes_to_a_socket_shut_in_both", R"(
pair c s = ok
shut s rdwr = ok
await c IN|OUT|RDHUP = IN|OUT|RDHUP
send c lost = 4
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
error c = EPIPE
error c = ok
error s = ECONNRESET
send c x = EPIPE
recv c 1 = end)"},
    {"shutdown_twice", R"(
pair c s = ok
shut c wr = ok
shut c wr = ok
shut c rd = ok
await c IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
shut c rdwr = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
shut s rdwr = ok
shut s rdwr = ENOTCONN)"},
    {"close_with_unread_input_resets", R"(
pair c s = ok
send c request = 7
await s IN|OUT = IN|OUT
close s = ok
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
recv c 1 = ECONNRESET
recv c 1 = end
send c x = EPIPE
await c IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP)"},
    {"reply_then_close_with_unread_input", R"(
pair c s = ok
send c request = 7
await s IN|OUT = IN|OUT
send s reply = 5
await c IN|OUT = IN|OUT
close s = ok
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
recv c 9 = reply
recv c 9 = ECONNRESET
recv c 9 = end)"},
    {"five_bytes_then_reset", R"(
pair c s = ok
send c 12345 = 5
await s IN|OUT = IN|OUT
set c linger 0 = ok
close c = ok
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
recv s 9 = 12345
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
recv s 9 = ECONNRESET
await s IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
recv s 9 = end
recv s 9 = end
send s x = EPIPE
peer s = ENOTCONN)"},
    {"reset_seen_by_a_send_first", R"(
pair c s = ok
set c linger 0 = ok
close c = ok
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
send s x = ECONNRESET
send s x = EPIPE
recv s 1 = end)"},
    {"reset_seen_by_so_error_first", R"(
pair c s = ok
send c abc = 3
await s IN|OUT = IN|OUT
set c linger 0 = ok
close c = ok
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
error s = ECONNRESET
error s = ok
recv s 9 = abc
recv s 9 = end
send s x = EPIPE)"},
    {"send_error_does_not_hide_bytes", R"(
pair c s = ok
send c tail = 4
await s IN|OUT = IN|OUT
set c linger 0 = ok
close c = ok
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
send s x = ECONNRESET
recv s 9 = tail
recv s 9 = end)"},
    {"half_close_then_reset", R"(
pair c s = ok
shut c wr = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
set c linger 0 = ok
close c = ok
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
recv s 1 = end
error s = EPIPE
send s x = EPIPE)"},
    {"half_close_then_reset_seen_by_send", R"(
pair c s = ok
shut c wr = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
set c linger 0 = ok
close c = ok
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
send s x = EPIPE
error s = ok
recv s 1 = end)"},
    {"send_after_the_peer_closed", R"(
pair c s = ok
close c = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
send s first = 5
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
send s second = EPIPE
send s third = EPIPE
recv s 1 = end
await s IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP)"},
    {"send_after_the_peer_closed_error_stays", R"(
pair c s = ok
send c abc = 3
close c = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
send s first = 5
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
recv s 9 = abc
recv s 9 = end
error s = EPIPE
recv s 9 = end)"},
    {"send_of_nothing_after_the_peer_closed", R"(
pair c s = ok
close c = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
send s = 0
await s IN|OUT|RDHUP = IN|OUT|RDHUP)"},
    {"close_of_a_half_closed_socket_with_unread_input", R"(
pair c s = ok
send s abc = 3
await c IN|OUT = IN|OUT
shut c wr = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
close c = ok
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
recv s 1 = end
error s = EPIPE)"},
    {"linger_with_time_is_an_orderly_close", R"(
pair c s = ok
set c linger 3 = ok
send c abc = 3
await s IN|OUT = IN|OUT
recv s 9 = abc
close c = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
recv s 9 = end)"},
    {"full_and_drained", R"(
pair c s = ok
fill c = EAGAIN
await c - = -
await s IN|OUT = IN|OUT
drain s = all EAGAIN
await c OUT = OUT
send c again = 5
await s IN|OUT = IN|OUT
recv s 9 = again)"},
    {"full_and_then_reset", R"(
pair c s = ok
fill c = EAGAIN
await c - = -
close s = ok
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
send c x = ECONNRESET
send c x = EPIPE)"},
    {"full_then_end_all_arrives", R"(
pair c s = ok
fill c = EAGAIN
shut c wr = ok
await c OUT = OUT
drain s = all end
await s IN|OUT|RDHUP = IN|OUT|RDHUP)"},
    {"full_with_a_set_buffer", R"(
pair c s = ok
set c sndbuf 20000 = ok
set s rcvbuf 20000 = ok
fill c = EAGAIN
await c - = -
drain s = all EAGAIN
await c OUT = OUT)"},
    {"full_both_ways", R"(
pair c s = ok
fill c = EAGAIN
await c - = -
await s IN|OUT = IN|OUT
send s back = 4
await c IN = IN
recv c 9 = back
drain s = all EAGAIN
await c OUT = OUT)"},
};

}  // namespace evix::detail
