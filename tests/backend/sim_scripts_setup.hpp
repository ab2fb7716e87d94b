#pragma once

#include "backend/sim_scripts.hpp"

/** @file
 * Connecting, binding, options and edges of Linux TCP over loopback, as scripts.
 */
namespace evix::detail {

inline constexpr Script connect_scripts[] = {
    {"refused", R"(
socket c = ok
connect c nobody = EINPROGRESS
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
peer c = ENOTCONN
error c = ECONNREFUSED
error c = ok
await c IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
recv c 1 = end
send c x = EPIPE)"},
    {"refused_seen_by_receive", R"(
socket c = ok
connect c nobody = EINPROGRESS
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
recv c 1 = ECONNREFUSED
recv c 1 = end
error c = ok)"},
    {"refused_seen_by_send", R"(
socket c = ok
connect c nobody = EINPROGRESS
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
send c x = ECONNREFUSED
send c x = EPIPE)"},
    {"refused_seen_by_connect", R"(
pair a b = ok
socket c = ok
connect c nobody = EINPROGRESS
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
connect c l = ECONNREFUSED
await c OUT|HUP = OUT|HUP
connect c l = EINPROGRESS
await c OUT = OUT
connect c l = ok
connect c l = EISCONN)"},
    {"refused_and_asked_then_connect", R"(
pair a b = ok
socket c = ok
connect c nobody = EINPROGRESS
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
error c = ECONNREFUSED
connect c l = ECONNABORTED
connect c l = EINPROGRESS
await c OUT = OUT
accept d l = ok)"},
    {"refused_ipv6", R"(
socket6 l = ok
bind l ::1 0 = ok
socket6 c = ok
connect c ::1 @l = EINPROGRESS
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
error c = ECONNREFUSED)"},
    {"connect_again_after_success", R"(
pair c s = ok
connect c l = ok
connect c l = EISCONN
connect s l = EISCONN
connect l l = EISCONN)"},
    {"connect_of_a_broken_connection", R"(
pair c s = ok
set s linger 0 = ok
close s = ok
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
connect c l = ECONNRESET
await c OUT|HUP = OUT|HUP
connect c l = EINPROGRESS
await c OUT = OUT)"},
    {"connect_of_a_finished_connection", R"(
pair c s = ok
connect c l = ok
shut c wr = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
close s = ok
await c IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
connect c l = EISCONN)"},
    {"connect_to_no_address_disconnects", R"(
pair c s = ok
send s abc = 3
await c IN|OUT = IN|OUT
connect c unspec = ok
await c OUT|ERR|HUP = OUT|ERR|HUP
error c = ECONNRESET
recv c 1 = ENOTCONN
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
recv s 1 = ECONNRESET
connect c l = EINPROGRESS
await c OUT = OUT)"},
    {"self_connect", R"(
socket c = ok
bind c 127.0.0.1 0 = ok
connect c 127.0.0.1 @c = EINPROGRESS
await c OUT = OUT
error c = ok
name c = 127.0.0.1:c.port
peer c = 127.0.0.1:c.port
send c echo = 4
await c IN|OUT = IN|OUT
recv c 9 = echo
shut c wr = ok
await c IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
recv c 1 = end)"},
    {"self_connect_closed_with_unread_input", R"(
socket c = ok
bind c 127.0.0.1 0 = ok
connect c 127.0.0.1 @c = EINPROGRESS
await c OUT = OUT
send c abc = 3
await c IN|OUT = IN|OUT
close c = ok)"},
    {"self_connect_of_an_open_address", R"(
socket c = ok
bind c 0.0.0.0 0 = ok
connect c 127.0.0.1 @c = EINPROGRESS
await c OUT = OUT
peer c = 127.0.0.1:c.port)"},
    {"connect_to_the_open_address", R"(
socket l = ok
bind l 0.0.0.0 0 = ok
listen l 5 = ok
name l = 0.0.0.0:l.port
socket c = ok
connect c 0.0.0.0 @l = EINPROGRESS
await c OUT = OUT
peer c = 127.0.0.1:l.port
accept s l = ok
name s = 127.0.0.1:l.port)"},
    {"connect_to_another_loopback_address", R"(
socket l = ok
bind l 127.0.0.7 free = ok
listen l 5 = ok
socket c = ok
connect c l = EINPROGRESS
await c OUT = OUT
name c = 127.0.0.1:c.port
peer c = 127.0.0.7:l.port
accept s l = ok
name s = 127.0.0.7:l.port
socket d = ok
connect d 127.0.0.9 @l = EINPROGRESS
await d IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
error d = ECONNREFUSED)"},
    {"ipv6", R"(
socket6 l = ok
bind l ::1 0 = ok
listen l 5 = ok
socket6 c = ok
name c = :::0
connect c l = EINPROGRESS
await c OUT = OUT
accept s l = ok
name s = ::1:l.port
peer s = ::1:c.port
send s six = 3
await c IN|OUT = IN|OUT
recv c 9 = six)"},
    {"ipv4_reaches_an_ipv6_listener", R"(
socket6 l = ok
bind l :: 0 = ok
listen l 5 = ok
socket c = ok
connect c 127.0.0.1 @l = EINPROGRESS
await c OUT = OUT
accept s l = ok
name s = ::ffff:127.0.0.1:l.port
peer s = ::ffff:127.0.0.1:c.port
socket6 d = ok
connect d ::ffff:127.0.0.1 @l = EINPROGRESS
await d OUT = OUT
name d = ::ffff:127.0.0.1:d.port
accept t l = ok
send d x = 1
await t IN|OUT = IN|OUT)"},
    {"ipv4_does_not_reach_an_ipv6_only_listener", R"(
socket6 l = ok
set l v6only 1 = ok
bind l :: free = ok
set l v6only 0 = EINVAL
listen l 5 = ok
socket c = ok
connect c 127.0.0.9 @l = EINPROGRESS
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
error c = ECONNREFUSED
socket6 d = ok
connect d :: @l = EINPROGRESS
await d OUT = OUT
peer d = ::1:l.port)"},
    {"wrong_family", R"(
socket a = ok
connect a ::1 80 = EAFNOSUPPORT
bind a ::1 0 = EAFNOSUPPORT
socket6 b = ok
connect b 127.0.0.1 80 = EINVAL
bind b 127.0.0.1 0 = EINVAL)"},
    {"closed_in_the_accept_queue", R"(
socket l = ok
bind l 127.0.0.1 0 = ok
listen l 5 = ok
socket c = ok
connect c l = EINPROGRESS
await c OUT = OUT
send c bye = 3
close c = ok
accept s l = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
recv s 9 = bye
recv s 9 = end)"},
    {"reset_in_the_accept_queue", R"(
socket l = ok
bind l 127.0.0.1 0 = ok
listen l 5 = ok
socket c = ok
connect c l = EINPROGRESS
await c OUT = OUT
await l IN = IN
set c linger 0 = ok
close c = ok
accept s l = ok
await s IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
peer s = ENOTCONN
recv s 1 = ECONNRESET
recv s 1 = end)"},
    {"listener_closed_with_a_queue", R"(
socket l = ok
bind l 127.0.0.1 0 = ok
listen l 5 = ok
socket c = ok
connect c l = EINPROGRESS
await c OUT = OUT
await l IN = IN
close l = ok
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
recv c 1 = ECONNRESET)"},
    {"listener_shut", R"(
socket l = ok
bind l 127.0.0.1 0 = ok
listen l 5 = ok
socket c = ok
connect c l = EINPROGRESS
await c OUT = OUT
await l IN = IN
shut l wr = ok
await l IN = IN
shut l rd = ok
await l OUT|HUP = OUT|HUP
await c IN|OUT|ERR|HUP|RDHUP = IN|OUT|ERR|HUP|RDHUP
accept s l = EINVAL
listen l 5 = ok
await l - = -
socket d = ok
connect d l = EINPROGRESS
await d OUT = OUT
accept s l = ok)"},
    {"backlog_full", R"(
socket l = ok
bind l 127.0.0.1 0 = ok
listen l 0 = ok
socket a = ok
connect a l = EINPROGRESS
await a OUT = OUT
await l IN = IN
socket b = ok
connect b l = EINPROGRESS
await b - = -
connect b l = EALREADY
send b x = EAGAIN
recv b 1 = EAGAIN
peer b = ENOTCONN
error b = ok
close b = ok
accept s l = ok
await l - = -)"},
    {"shutdown_while_connecting", R"(
socket l = ok
bind l 127.0.0.1 0 = ok
listen l 0 = ok
socket a = ok
connect a l = EINPROGRESS
await a OUT = OUT
socket b = ok
connect b l = EINPROGRESS
await b - = -
shut b wr = ok
await b OUT|ERR|HUP = OUT|ERR|HUP
error b = ECONNRESET
await b OUT|HUP = OUT|HUP)"},
    {"disconnect_while_connecting", R"(
socket l = ok
bind l 127.0.0.1 0 = ok
listen l 0 = ok
socket a = ok
connect a l = EINPROGRESS
await a OUT = OUT
socket b = ok
connect b l = EINPROGRESS
await b - = -
connect b unspec = ok
await b OUT|ERR|HUP = OUT|ERR|HUP
recv b 1 = ECONNRESET
accept s l = ok
connect b l = EINPROGRESS
await b OUT = OUT)"},
    {"listener_is_no_stream", R"(
socket l = ok
bind l 127.0.0.1 0 = ok
listen l 5 = ok
recv l 1 = ENOTCONN
send l x = EPIPE
peer l = ENOTCONN
accept s l = EAGAIN
error l = ok
get l listening = 1)"},
    {"listen_needs_an_unconnected_socket", R"(
pair c s = ok
listen c 5 = EINVAL
listen s 5 = EINVAL
socket d = ok
connect d l = EINPROGRESS
listen d 5 = EINVAL
await d OUT = OUT
listen l 9 = ok
accept t l = ok)"},
    {"listen_without_bind", R"(
socket l = ok
listen l 5 = ok
socket c = ok
connect c l = EINPROGRESS
await c OUT = OUT
accept s l = ok
peer s = 127.0.0.1:c.port)"},
};

inline constexpr Script bind_scripts[] = {
    {"bind_twice", R"(
socket a = ok
bind a 127.0.0.1 0 = ok
bind a 127.0.0.1 0 = EINVAL
name a = 127.0.0.1:a.port)"},
    {"bind_after_connect", R"(
pair c s = ok
bind c 127.0.0.1 0 = EINVAL
bind s 127.0.0.1 0 = EINVAL)"},
    {"same_port_bound", R"(
socket a = ok
bind a 127.0.0.1 0 = ok
socket b = ok
bind b 127.0.0.1 @a = EADDRINUSE
bind b 0.0.0.0 @a = EADDRINUSE
bind b 127.0.0.2 @a = ok)"},
    {"same_port_reused_until_one_listens", R"(
socket a = ok
set a reuseaddr 1 = ok
bind a 127.0.0.1 0 = ok
socket b = ok
bind b 127.0.0.1 @a = EADDRINUSE
set b reuseaddr 1 = ok
bind b 127.0.0.1 @a = ok
listen a 5 = ok
listen b 5 = EADDRINUSE
socket c = ok
set c reuseaddr 1 = ok
bind c 127.0.0.1 @a = EADDRINUSE
close a = ok
listen b 5 = ok)"},
    {"same_port_shared_by_listeners", R"(
socket a = ok
set a reuseport 1 = ok
bind a 127.0.0.1 0 = ok
listen a 5 = ok
socket b = ok
set b reuseport 1 = ok
bind b 127.0.0.1 @a = ok
listen b 5 = ok
socket c = ok
bind c 127.0.0.1 @a = EADDRINUSE)"},
    {"same_port_ipv6", R"(
socket6 a = ok
bind a :: 0 = ok
socket b = ok
bind b 127.0.0.1 @a = EADDRINUSE
socket6 c = ok
bind c ::1 @a = EADDRINUSE
close a = ok)"},
    {"same_port_ipv6_only", R"(
socket6 a = ok
set a v6only 1 = ok
bind a :: free = ok
socket b = ok
bind b 127.0.0.9 @a = ok
socket6 c = ok
set c v6only 1 = ok
bind c ::1 @a = EADDRINUSE
bind c ::ffff:127.0.0.1 @a = EINVAL)"},
    {"port_of_a_living_connection", R"(
pair c s = ok
socket a = ok
close l = ok
bind a 127.0.0.1 @s = EADDRINUSE
set a reuseaddr 1 = ok
bind a 127.0.0.1 @s = EADDRINUSE
close s = ok)"},
    {"port_of_a_living_connection_with_reuse", R"(
socket l = ok
set l reuseaddr 1 = ok
bind l 127.0.0.1 0 = ok
listen l 5 = ok
socket c = ok
connect c l = EINPROGRESS
await c OUT = OUT
accept s l = ok
get s reuseaddr = 1
close l = ok
socket a = ok
bind a 127.0.0.1 @s = EADDRINUSE
set a reuseaddr 1 = ok
bind a 127.0.0.1 @s = ok
listen a 5 = ok)"},
    {"port_of_the_first_closer", R"(
pair c s = ok
socket a = ok
shut s wr = ok
await c IN|OUT|RDHUP = IN|OUT|RDHUP
close c = ok
await s IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
close l = ok
bind a 127.0.0.1 @s = EADDRINUSE
close s = ok)"},
    {"port_of_the_second_closer", R"(
pair c s = ok
socket a = ok
shut c wr = ok
await s IN|OUT|RDHUP = IN|OUT|RDHUP
close l = ok
shut s wr = ok
await c IN|OUT|HUP|RDHUP = IN|OUT|HUP|RDHUP
bind a 127.0.0.1 @s = ok)"},
    {"foreign_address", R"(
socket a = ok
bind a 203.0.113.1 0 = EADDRNOTAVAIL
socket6 b = ok
bind b 2001:db8::1 0 = EADDRNOTAVAIL)"},
    {"connected_twice_from_one_port", R"(
pair c s = ok
socket a = ok
set a reuseaddr 1 = ok
bind a 127.0.0.1 0 = ok
socket b = ok
set b reuseaddr 1 = ok
bind b 127.0.0.1 @a = ok
connect a l = EINPROGRESS
await a OUT = OUT
connect b l = EADDRNOTAVAIL)"},
    {"options", R"(
socket a = ok
get a type = 1
get a domain = 2
get a listening = 0
get a reuseaddr = 0
set a reuseaddr 7 = ok
get a reuseaddr = 1
get a reuseport = 0
set a reuseport 1 = ok
get a reuseport = 1
get a nodelay = 0
set a nodelay 5 = ok
get a nodelay = 1
set a nodelay 0 = ok
get a nodelay = 0
get a keepalive = 0
set a keepalive 1 = ok
get a keepalive = 1
get a keepidle = 7200
set a keepidle 30 = ok
get a keepidle = 30
set a keepidle 0 = EINVAL
set a keepidle 32768 = EINVAL
get a linger = 0,0
set a linger 5 = ok
get a linger = 1,5
set a linger -1 = ok
get a linger = 0,5
get a v6only = EOPNOTSUPP
set a v6only 1 = ENOPROTOOPT
get a unknown = ENOPROTOOPT
set a unknown 1 = ENOPROTOOPT
get a unknown_level = EOPNOTSUPP
set a unknown_level 1 = ENOPROTOOPT)"},
    {"buffer_sizes", R"(
socket a = ok
get a sndbuf = 16384
get a rcvbuf = 131072
set a sndbuf 10000 = ok
get a sndbuf = 20000
set a sndbuf 1 = ok
get a sndbuf = 4608
set a rcvbuf 10000 = ok
get a rcvbuf = 20000
set a rcvbuf 1 = ok
get a rcvbuf = 2304)"},
    {"options_of_an_accepted_socket", R"(
socket l = ok
set l nodelay 1 = ok
set l keepalive 1 = ok
set l keepidle 44 = ok
set l linger 3 = ok
set l sndbuf 30000 = ok
bind l 127.0.0.1 0 = ok
listen l 5 = ok
socket c = ok
connect c l = EINPROGRESS
await c OUT = OUT
accept s l = ok
get s nodelay = 1
get s keepalive = 1
get s keepidle = 44
get s linger = 1,3
get s sndbuf = 60000
get c nodelay = 0
get s listening = 0)"},
    {"ipv6_only", R"(
socket6 a = ok
get a domain = 10
get a v6only = 0
set a v6only 1 = ok
get a v6only = 1
get a unknown_level = ENOPROTOOPT
set a unknown_level 1 = ENOPROTOOPT
get a unknown = ENOPROTOOPT)"},
};

inline constexpr Script edge_scripts[] = {
    {"edge_connected_pair", R"(
pair c s = ok
edge s = ok
edges = s:OUT
edges = -
send c a = 1
edges = s:IN|OUT
edges = -
send c b = 1
edges = s:IN|OUT
recv s 1 = a
edges = -
recv s 1 = b
edges = -)"},
    {"edge_end_and_close", R"(
pair c s = ok
edge s = ok
edges = s:OUT
shut c wr = ok
edges = s:IN|OUT|RDHUP
edges = -
recv s 1 = end
edges = -
shut s wr = ok
edges = s:IN|OUT|HUP|RDHUP
edges = -)"},
    {"edge_reset", R"(
pair c s = ok
edge s = ok
edges = s:OUT
set c linger 0 = ok
close c = ok
edges = s:IN|OUT|ERR|HUP|RDHUP
edges = -
recv s 1 = ECONNRESET
edges = -)"},
    {"edge_own_half_close", R"(
pair c s = ok
edge s = ok
edges = s:OUT
shut s wr = ok
edges = s:OUT
edge s = EEXIST)"},
    {"edge_room_again", R"(
pair c s = ok
edge c = ok
edges = c:OUT
fill c = EAGAIN
edges = -
drain s = all EAGAIN
edges = c:OUT
edges = -)"},
    {"edge_listener", R"(
socket l = ok
bind l 127.0.0.1 0 = ok
listen l 5 = ok
edge l = ok
edges = -
socket c = ok
connect c l = EINPROGRESS
edges = l:IN
edges = -
socket d = ok
connect d l = EINPROGRESS
edges = l:IN
edges = -
accept s l = ok
edges = -)"},
    {"edge_connect", R"(
pair a b = ok
socket c = ok
edge c = ok
edges = c:OUT|HUP
connect c l = EINPROGRESS
edges = c:OUT
edges = -)"},
    {"edge_refused", R"(
socket c = ok
edge c = ok
edges = c:OUT|HUP
connect c nobody = EINPROGRESS
edges = c:IN|OUT|ERR|HUP|RDHUP
edges = -)"},
    {"edge_closed_number_is_forgotten", R"(
pair c s = ok
edge s = ok
edges = s:OUT
close s = ok
edges = -
edge s = EBADF)"},
};

}  // namespace evix::detail
