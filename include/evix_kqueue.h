#ifndef EVIX_KQUEUE_H
#define EVIX_KQUEUE_H

/** @file
 * Forwards to evix.h, which declares evix_kqueue_backend(); for programs that include this name.
 */
#include "evix.h"

#endif /* EVIX_KQUEUE_H */
