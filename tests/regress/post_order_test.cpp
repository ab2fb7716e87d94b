#include <string>

#include "backend/conformance.hpp"

// On the loop's own thread a task of a Poster ran behind tasks that Loop::post() had queued after
// it.
namespace evix::test {
namespace {

class PostOrder : public Conformance {};
EVIX_OVER_BACKENDS(PostOrder);

TEST_P(PostOrder, OfPosterAndLoopOnTheLoopsThread) {
  const Poster poster = loop.poster();
  std::string order;
  const auto through_poster = [&](char name) {
    ASSERT_TRUE(poster.post([&order, name] { order += name; }));
  };
  const auto through_loop = [&](char name) { loop.post([&order, name] { order += name; }); };
  loop.post([&] {
    through_poster('a');
    through_loop('b');
    through_poster('c');
    through_poster('d');
    through_loop('e');
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(order, "abcde");
}

TEST_P(PostOrder, OfPosterAndLoopBeforeRun) {
  const Poster poster = loop.poster();
  std::string order;
  ASSERT_TRUE(poster.post([&] { order += 'a'; }));
  loop.post([&] { order += 'b'; });
  ASSERT_TRUE(poster.post([&] { order += 'c'; }));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(order, "abc");
}

}  // namespace
}  // namespace evix::test
