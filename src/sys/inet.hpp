#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

/** @file
 * The system's names of Internet addresses and of TCP options, for layers that may not include a
 * header of the operating system themselves; see ip(7), ipv6(7), tcp(7).
 */
