#pragma once

#include <algorithm>
#include <thread>
#include <vector>

#include "backend/tcp_support.hpp"

/** @file
 * Receives that were started by a thread that has ended.
 */
namespace evix::test {

class ThreadEnd : public TcpConformance {
 protected:
  struct Receivers {
    std::vector<Pair> pairs = std::vector<Pair>(100);
    std::vector<Inbox> inboxes = std::vector<Inbox>(100);

    void start() {
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        pairs[i].server.receive_start(inboxes[i].callback());
      }
    }
    void send() {
      for (Pair& pair : pairs) ASSERT_TRUE(pair.client.send_copy("here"));
    }
  };

  /** Connected, started and run by `run` in a thread that has ended. False: not connected. */
  template <class Run>
  static bool start_in_a_thread(Loop& own, Receivers& receivers, Run run) {
    bool made = true;
    std::thread([&] {
      for (Pair& pair : receivers.pairs) {
        pair = make_pair(own);
        made = made && pair.client && pair.server;
      }
      if (!made) return;
      receivers.start();
      run();
    }).join();
    return made;
  }

  /**
   * Each receives what was sent, by the calling thread: as if nothing were, or after a run that was
   * refused, a stop and a start. @return what the first run said.
   */
  int go_on(Loop& own, Receivers& receivers) {
    const int refused = own.run_ready();
    if (refused != 0) {
      EXPECT_EQ(own.error(), Errc::wrong_thread);
      for (Pair& pair : receivers.pairs) pair.server.receive_stop();
      EXPECT_EQ(own.run_ready(), 0);
      receivers.start();
    }
    EXPECT_TRUE(until(own, [&] {
      return std::ranges::all_of(receivers.inboxes,
                                 [](const Inbox& each) { return each.text == "here"; });
    }));
    settle(own, 3);
    EXPECT_TRUE(std::ranges::none_of(receivers.inboxes, &Inbox::over));
    receivers.pairs.clear();
    return refused;
  }
};

}  // namespace evix::test
