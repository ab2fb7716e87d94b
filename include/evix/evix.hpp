#pragma once

/** @file
 * All of evix for C++.
 */
#include "evix/address.hpp"
#include "evix/backend.hpp"
#include "evix/buffer.hpp"
#include "evix/channel.hpp"
#include "evix/error.hpp"
#include "evix/handle.hpp"
#include "evix/loop.hpp"
#include "evix/loop_thread.hpp"
#include "evix/poller.hpp"
#include "evix/ready.hpp"
#include "evix/scope.hpp"
#include "evix/signal.hpp"
#include "evix/sync.hpp"
#include "evix/task.hpp"
#include "evix/tcp.hpp"
#include "evix/time.hpp"
#include "evix/timer.hpp"
#include "evix/timer_queue.hpp"
#include "evix/waker.hpp"
#include "evix/watcher.hpp"
