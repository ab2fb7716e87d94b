#ifndef EVIX_EPOLL_H
#define EVIX_EPOLL_H

/** @file
 * Forwards to evix.h, which declares evix_epoll_backend(); for programs that include this name.
 */
#include "evix.h"

#endif /* EVIX_EPOLL_H */
