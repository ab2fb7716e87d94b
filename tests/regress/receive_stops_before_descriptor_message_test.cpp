#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "backend/conformance.hpp"

// On an adopted Unix-domain stream a receive ends where a message with descriptors ends, though
// more has come: unix(7), SCM_RIGHTS. That short read was taken for the last one, and over an edge
// what came behind it was never read.
namespace evix::test {
namespace {

class ReceiveStopsBeforeDescriptorMessage : public Conformance {
 protected:
  void TearDown() override {
    if (ends[1] >= 0) close(ends[1]);
  }
  /** One byte that carries a copy of this end, or none. */
  void put(char byte, bool with_descriptor) {
    iovec part{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (with_descriptor) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &ends[1], sizeof(int));
    }
    ASSERT_EQ(sendmsg(ends[1], &message, MSG_NOSIGNAL), 1);
  }
  std::array<int, 2> ends{-1, -1};
};
EVIX_OVER_BACKENDS(ReceiveStopsBeforeDescriptorMessage);

TEST_P(ReceiveStopsBeforeDescriptorMessage, AndGoesOnBehindIt) {
  EVIX_SKIP_ON(BackendKind::sim, "real descriptors do not exist in the simulator");
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  auto stream = TcpStream::adopt(loop, ends[0]);
  ASSERT_TRUE(stream);
  std::string received;
  stream->receive_start([&](const Result<Buffer>& bytes) {
    ASSERT_TRUE(bytes);
    received += bytes->text();
  });
  put('A', true);
  put('B', false);
  ASSERT_TRUE(run_until([&] { return received.size() == 2; }));
  EXPECT_EQ(received, "AB");
  put('C', true);
  put('D', true);
  put('E', false);
  ASSERT_TRUE(run_until([&] { return received.size() == 5; }));
  EXPECT_EQ(received, "ABCDE");
  EXPECT_TRUE(rests());
}

}  // namespace
}  // namespace evix::test
