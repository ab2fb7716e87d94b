// A chat room: what one says goes to all others. Whoever reads too slowly is sent away, so that
// nobody's queue grows without bound.
#include <cstdio>
#include <evix/evix.hpp>
#include <list>
#include <string>
#include <string_view>

namespace {

class Room {
 public:
  void join(evix::TcpStream stream) {
    // A member's callbacks hold its place in the list, which is valid until it leaves.
    const auto member = members_.insert(members_.end(), std::move(stream));
    member->set_water_marks({.hard_bytes_max = 64 * 1024});
    member->receive_start([this, member](evix::Result<evix::Buffer> said) {
      if (!said || said->empty()) {
        members_.erase(member);  // a handle may go in its own callback
        return;
      }
      tell_others(member, said->text());
    });
  }
  std::size_t size() const { return members_.size(); }

 private:
  using Members = std::list<evix::TcpStream>;

  void tell_others(Members::iterator speaker, std::string_view text) {
    for (auto each = members_.begin(); each != members_.end();) {
      const auto member = each++;
      if (member == speaker) continue;
      if (auto sent = member->send_copy(text); !sent) members_.erase(member);
    }
  }

  Members members_;
};

struct Guest {
  evix::TcpStream stream;
  std::string heard;
};

}  // namespace

int main() {
  evix::Loop loop;
  Room room;
  evix::TcpListener door(loop);
  if (auto listening = door.listen("127.0.0.1:0"); !listening) {
    return evix::complain(listening.error());
  }

  Guest ann{evix::TcpStream(loop), ""};
  Guest bob{evix::TcpStream(loop), ""};
  Guest eve{evix::TcpStream(loop), ""};
  for (Guest* guest : {&ann, &bob, &eve}) {
    guest->stream.connect(*door.local_address(), [&, guest](evix::Result<void> connected) {
      if (!connected) return;
      guest->stream.receive_start([&, guest](evix::Result<evix::Buffer> text) {
        if (!text || text->empty()) return guest->stream.close();
        guest->heard += text->text();
        if (guest == &bob && bob.heard == "hello\n") (void)bob.stream.send_copy("hello ann\n");
        if (eve.heard != "hello\nhello ann\n" || ann.heard != "hello ann\n") return;
        for (Guest* leaving : {&ann, &bob, &eve}) leaving->stream.close();
      });
    });
  }
  door.accept_start([&](evix::Result<evix::TcpStream> peer) {
    if (!peer) return;
    room.join(std::move(*peer));
    if (room.size() < 3) return;
    door.close();
    (void)ann.stream.send_copy("hello\n");
  });
  loop.run();  // ends when the last stream is closed, on both sides

  std::printf("ann heard: %s", ann.heard.c_str());
  std::printf("bob heard: %s", bob.heard.c_str());
  std::printf("eve heard: %s", eve.heard.c_str());
  std::printf("left in the room: %zu\n", room.size());
}
