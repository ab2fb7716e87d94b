#pragma once

#include <evix/loop.hpp>

#include "base/work.hpp"

/** @file
 * A posted task in a queue.
 */
namespace evix::detail {

class LoopCore;

/** Made by whoever posts; freed, or kept for the next post, by the loop. */
struct PostNode : Work {
  PostCallback task;
  LoopCore* core = nullptr;  ///< set by the loop when it takes the node in

  explicit PostNode(PostCallback&& posted) noexcept;
};

}  // namespace evix::detail
