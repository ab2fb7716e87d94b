#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <utility>

#include "base/prng.hpp"
#include "poll/poll_fixture.hpp"

namespace evix::detail {
namespace {

constexpr Ready both = Ready::readable | Ready::writable;

INSTANTIATE_TEST_SUITE_P(Kinds, PollerSuite, testing::Values(BackendKind::epoll, BackendKind::poll),
                         [](const auto& parameter) {
                           return parameter.param == BackendKind::epoll ? "epoll" : "poll";
                         });

INSTANTIATE_TEST_SUITE_P(Kinds, EpollSuite, testing::Values(BackendKind::epoll),
                         [](const auto&) { return "epoll"; });

// Interests and events

TEST_P(PollerSuite, GivesTokenIdHandleAndBits) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), both, Trigger::level, 42);
  ASSERT_TRUE(id);
  EXPECT_EQ(poller.size(), 1U);
  put(pair.b);
  EXPECT_EQ(poller.wait(forever), 1U);
  const auto event = poller.next();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->token, 42U);
  EXPECT_EQ(event->id, *id);
  EXPECT_EQ(event->handle, pair.a.get());
  EXPECT_EQ(event->ready, both);
  EXPECT_FALSE(poller.next());
}

TEST_P(PollerSuite, AllBitsOfAnyTokenComeBack) {
  Poller poller = make();
  const Pair pair = stream_pair();
  ASSERT_TRUE(poller.add(pair.a.get(), Ready::writable, Trigger::level, UINT64_MAX));
  EXPECT_EQ(tokens_now(poller), Tokens{UINT64_MAX});
}

TEST_P(PollerSuite, SetToken) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::level, 1);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_TRUE(poller.set_token(*id, 2));
  EXPECT_EQ(tokens_now(poller), Tokens{2});
}

TEST_P(PollerSuite, ModifyChangesTheInterest) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::readable, Trigger::level, 1);
  EXPECT_EQ(tokens_now(poller), Tokens{});
  ASSERT_TRUE(poller.modify(*id, Ready::writable, Trigger::level));
  const auto events = events_now(poller);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].ready, Ready::writable);
  ASSERT_TRUE(poller.modify(*id, Ready::none, Trigger::level));
  EXPECT_EQ(tokens_now(poller), Tokens{});
  ASSERT_TRUE(poller.modify(*id, both, Trigger::level));
  EXPECT_EQ(tokens_now(poller), Tokens{1});
}

TEST_P(PollerSuite, ModifyDuringTheWalkMasksTheRest) {
  Poller poller = make();
  const Pair first = stream_pair();
  const Pair second = stream_pair();
  const auto one = poller.add(first.a.get(), Ready::writable, Trigger::level, 1);
  const auto two = poller.add(second.a.get(), Ready::writable, Trigger::level, 2);
  EXPECT_EQ(poller.wait(Duration::zero()), 2U);
  const auto event = poller.next();
  ASSERT_TRUE(event);
  ASSERT_TRUE(poller.modify(event->token == 1 ? *two : *one, Ready::readable, Trigger::level));
  EXPECT_FALSE(poller.next());
}

TEST_P(PollerSuite, DisableAndEnable) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::level, 1, false);
  EXPECT_EQ(tokens_now(poller), Tokens{});
  EXPECT_TRUE(poller.enable(*id));
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_TRUE(poller.disable(*id));
  EXPECT_EQ(tokens_now(poller), Tokens{});
  EXPECT_TRUE(poller.disable(*id));
  EXPECT_TRUE(poller.modify(*id, both, Trigger::level));
  EXPECT_EQ(tokens_now(poller), Tokens{});
  EXPECT_TRUE(poller.enable(*id));
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(poller.size(), 1U);
}

TEST_P(PollerSuite, DisabledDuringTheWalkGivesNoMore) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::level, 1);
  EXPECT_EQ(poller.wait(Duration::zero()), 1U);
  EXPECT_TRUE(poller.disable(*id));
  EXPECT_FALSE(poller.next());
}

TEST_P(PollerSuite, LevelGivesEventsAsLongAsItIsReady) {
  Poller poller = make();
  const Pair pair = stream_pair();
  ASSERT_TRUE(poller.add(pair.a.get(), Ready::readable, Trigger::level, 1));
  put(pair.b);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(drain(pair.a.get()), 1U);
  EXPECT_EQ(tokens_now(poller), Tokens{});
}

TEST_P(PollerSuite, EdgeGivesOneEventAChangeOrIsNotSupported) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::readable, Trigger::edge, 1);
  EXPECT_EQ(poller.supports_edge(), is_epoll());
  if (!is_epoll()) {
    ASSERT_FALSE(id);
    EXPECT_EQ(id.error(), std::errc::operation_not_supported);
    const auto now = poller.add_now(pair.a.get(), Ready::readable, Trigger::edge, 1);
    ASSERT_FALSE(now);
    EXPECT_EQ(now.error(), std::errc::operation_not_supported);
    const auto level = poller.add(pair.a.get(), Ready::readable, Trigger::level, 1);
    ASSERT_TRUE(level);
    EXPECT_EQ(poller.modify(*level, Ready::readable, Trigger::edge).error(),
              std::errc::operation_not_supported);
    return;
  }
  EXPECT_EQ(tokens_now(poller), Tokens{});
  put(pair.b);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(tokens_now(poller), Tokens{});
  put(pair.b);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_TRUE(poller.enable(*id));
  EXPECT_EQ(tokens_now(poller), Tokens{1}) << "enabling the enabled re-arms";
  EXPECT_EQ(tokens_now(poller), Tokens{});
  EXPECT_TRUE(poller.disable(*id));
  EXPECT_TRUE(poller.enable(*id));
  EXPECT_EQ(tokens_now(poller), Tokens{1}) << "so does off and on between two waits";
}

TEST_P(PollerSuite, OneShotFiresOncePerEnable) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::readable, Trigger::one_shot, 1);
  put(pair.b);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(tokens_now(poller), Tokens{1});
    put(pair.b);
    EXPECT_EQ(tokens_now(poller), Tokens{});
    EXPECT_EQ(tokens_now(poller), Tokens{});
    EXPECT_TRUE(poller.enable(*id));
  }
  EXPECT_TRUE(poller.disable(*id));
  EXPECT_EQ(tokens_now(poller), Tokens{});
}

TEST_P(PollerSuite, OneShotThatFiredIsSilentAboutHangUps) {
  Poller poller = make();
  Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::one_shot, 1);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  pair.b.reset();
  EXPECT_EQ(tokens_now(poller), Tokens{});
  EXPECT_TRUE(poller.modify(*id, Ready::readable, Trigger::one_shot));
  EXPECT_EQ(tokens_now(poller), Tokens{}) << "a disabled interest stays disabled";
  EXPECT_TRUE(poller.enable(*id));
  const auto events = events_now(poller);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].ready, Ready::readable | Ready::hangup | Ready::read_closed);
}

TEST_P(PollerSuite, OneShotThatBecomesLevel) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::one_shot, 1);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_TRUE(poller.modify(*id, Ready::writable, Trigger::level));
  EXPECT_EQ(tokens_now(poller), Tokens{});
  EXPECT_TRUE(poller.enable(*id));
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(tokens_now(poller), Tokens{1});
}

TEST_P(PollerSuite, LevelThatBecomesOneShotDuringTheWalk) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::level, 1);
  EXPECT_EQ(poller.wait(Duration::zero()), 1U);
  EXPECT_TRUE(poller.modify(*id, Ready::writable, Trigger::one_shot));
  EXPECT_TRUE(poller.next());
  EXPECT_EQ(tokens_now(poller), Tokens{});
  EXPECT_EQ(tokens_now(poller), Tokens{});
}

TEST_P(PollerSuite, OneShotWhoseEventWasMaskedStaysArmed) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::one_shot, 1);
  EXPECT_EQ(poller.wait(Duration::zero()), 1U);
  EXPECT_TRUE(poller.modify(*id, Ready::readable, Trigger::one_shot));
  EXPECT_FALSE(poller.next());
  EXPECT_EQ(tokens_now(poller), Tokens{});
  put(pair.b);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
}

TEST_P(PollerSuite, EventsThatWereNotWalkedComeAgain) {
  Poller poller = make();
  const Pair level = stream_pair();
  const Pair one_shot = stream_pair();
  const Pair edge = stream_pair();
  ASSERT_TRUE(poller.add(level.a.get(), Ready::writable, Trigger::level, 1));
  ASSERT_TRUE(poller.add(one_shot.a.get(), Ready::writable, Trigger::one_shot, 2));
  Tokens expected{1, 2};
  if (is_epoll()) {
    ASSERT_TRUE(poller.add(edge.a.get(), Ready::writable, Trigger::edge, 3));
    expected.push_back(3);
  }
  EXPECT_EQ(poller.wait(Duration::zero()), expected.size());
  EXPECT_EQ(poller.wait(Duration::zero()), expected.size());
  EXPECT_EQ(tokens_now(poller), expected);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
}

TEST_P(PollerSuite, PeerHalfCloseBelongsToReading) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::readable, Trigger::level, 1);
  ASSERT_EQ(::shutdown(pair.b.get(), SHUT_WR), 0);
  auto events = events_now(poller);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].ready, Ready::readable | Ready::read_closed);
  EXPECT_TRUE(poller.modify(*id, Ready::priority, Trigger::level));
  EXPECT_EQ(tokens_now(poller), Tokens{}) << "or an interest in something else would spin";
}

TEST_P(PollerSuite, UrgentDataIsPriority) {
  const Fd listener = own(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage address{};
  address.ss_family = AF_INET;
  socklen_t size = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener.get(), name, 16), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), name, &size), 0);
  const Fd client = own(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), name, size), 0);
  const Fd server = own(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  Poller poller = make();
  ASSERT_TRUE(poller.add(server.get(), Ready::priority, Trigger::level, 1));
  ASSERT_EQ(::send(client.get(), "n", 1, 0), 1);
  EXPECT_EQ(tokens_now(poller), Tokens{});
  ASSERT_EQ(::send(client.get(), "u", 1, MSG_OOB), 1);
  EXPECT_EQ(poller.wait(std::chrono::seconds(10)), 1U);
  const auto event = poller.next();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->ready, Ready::priority);
}

// Identity

TEST_P(PollerSuite, RemovedInterestIsStale) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const InterestId id = *poller.add(pair.a.get(), Ready::writable, Trigger::level, 1);
  EXPECT_TRUE(poller.remove(id));
  EXPECT_EQ(poller.size(), 0U);
  EXPECT_EQ(poller.remove(id).error(), Errc::stale_handle);
  EXPECT_EQ(poller.forget(id).error(), Errc::stale_handle);
  EXPECT_EQ(poller.enable(id).error(), Errc::stale_handle);
  EXPECT_EQ(poller.disable(id).error(), Errc::stale_handle);
  EXPECT_EQ(poller.modify(id, both, Trigger::level).error(), Errc::stale_handle);
  EXPECT_EQ(poller.set_token(id, 1).error(), Errc::stale_handle);
  EXPECT_EQ(tokens_now(poller), Tokens{});
}

TEST_P(PollerSuite, InventedIdsAreStale) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const InterestId id = *poller.add(pair.a.get(), Ready::writable, Trigger::level, 1);
  for (const InterestId invented :
       {InterestId{}, InterestId{id.slot, id.generation + 1}, InterestId{id.slot + 1, 1},
        InterestId{UINT32_MAX, 1}, InterestId{id.slot, 0}, InterestId{id.slot + 1, 0}}) {
    EXPECT_EQ(poller.remove(invented).error(), Errc::stale_handle);
  }
  EXPECT_EQ(tokens_now(poller), Tokens{1});
}

TEST_P(PollerSuite, ReusedSlotHasAnotherId) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const InterestId first = *poller.add(pair.a.get(), Ready::writable, Trigger::level, 1);
  EXPECT_TRUE(poller.remove(first));
  const InterestId second = *poller.add(pair.a.get(), Ready::writable, Trigger::level, 2);
  EXPECT_EQ(first.slot, second.slot);
  EXPECT_NE(first, second);
  EXPECT_EQ(poller.remove(first).error(), Errc::stale_handle);
  EXPECT_EQ(tokens_now(poller), Tokens{2});
}

TEST_P(PollerSuite, SameDescriptorTwiceIsAlreadyRegistered) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::level, 1);
  EXPECT_EQ(poller.add(pair.a.get(), both, Trigger::level, 2).error(), Errc::already_registered);
  EXPECT_EQ(poller.add_now(pair.a.get(), both, Trigger::level, 2).error(),
            Errc::already_registered);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(poller.add(pair.a.get(), both, Trigger::level, 2).error(), Errc::already_registered);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_TRUE(poller.disable(*id));
  EXPECT_EQ(poller.add(pair.a.get(), both, Trigger::level, 2).error(), Errc::already_registered);
  EXPECT_TRUE(poller.remove(*id));
  EXPECT_TRUE(poller.add(pair.a.get(), both, Trigger::level, 2));
  EXPECT_EQ(tokens_now(poller), Tokens{2});
}

TEST_P(PollerSuite, ForgetMakesNoSystemCall) {
  Poller poller = make();
  Pair pair = stream_pair();
  const int number = pair.a.get();
  const auto id = poller.add_now(number, Ready::writable, Trigger::level, 1);
  calls.reset_counts();
  EXPECT_TRUE(poller.forget(*id));
  EXPECT_EQ(calls.total(), 0U);
  pair.a.reset();
  const Pair next = stream_pair();
  ASSERT_EQ(next.a.get(), number);
  EXPECT_TRUE(poller.add_now(number, Ready::writable, Trigger::level, 2));
  EXPECT_EQ(tokens_now(poller), Tokens{2});
}

TEST_P(PollerSuite, ForgottenButNotClosedCanBeAddedAgain) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add_now(pair.a.get(), Ready::writable, Trigger::level, 1);
  EXPECT_TRUE(poller.forget(*id));
  EXPECT_TRUE(poller.add_now(pair.a.get(), Ready::writable, Trigger::level, 2));
  EXPECT_EQ(tokens_now(poller), Tokens{2});
  EXPECT_EQ(poller.size(), 1U);
}

TEST_P(PollerSuite, ManyInterestsKeepTheirIdentity) {
  constexpr std::uint64_t count = 1'500;
  Poller poller = make(2 * count);
  std::vector<Pair> pairs;
  std::vector<InterestId> ids;
  Tokens all;
  for (std::uint64_t i = 0; i < count; ++i) {
    pairs.push_back(stream_pair());
    ids.push_back(*poller.add(pairs.back().a.get(), Ready::writable, Trigger::level, i));
    all.push_back(i);
  }
  EXPECT_EQ(tokens_now(poller), all);
  Tokens odd;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i % 2 == 1) {
      odd.push_back(i);
    } else {
      EXPECT_TRUE(poller.remove(ids[i]));
    }
  }
  EXPECT_EQ(tokens_now(poller), odd);
  EXPECT_EQ(poller.size(), odd.size());
}

// Batching

TEST_P(PollerSuite, ThousandTogglesAreAtMostOneControlCall) {
  Poller poller = make();
  calls.reset_counts();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::level, 1);
  EXPECT_EQ(control_calls(), 0U);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(control_calls(), is_epoll() ? 1U : 0U);
  calls.reset_counts();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(poller.disable(*id));
    EXPECT_TRUE(poller.enable(*id));
  }
  EXPECT_EQ(calls.total(), 0U);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(control_calls(), 0U) << "the end is as the beginning";
  for (int i = 0; i < 1001; ++i) {
    EXPECT_TRUE(poller.modify(*id, i % 2 == 0 ? both : Ready::writable, Trigger::level));
  }
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(control_calls(), is_epoll() ? 1U : 0U);
}

TEST_P(PollerSuite, AddAndRemoveBetweenTwoWaitsNeverReachTheKernel) {
  Poller poller = make();
  calls.reset_counts();
  const Pair pair = stream_pair();
  for (int i = 0; i < 100; ++i) {
    const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::level, 1);
    EXPECT_TRUE(poller.remove(*id));
  }
  EXPECT_EQ(tokens_now(poller), Tokens{});
  EXPECT_EQ(control_calls(), 0U);
}

TEST_P(PollerSuite, RemoveActsAtOnce) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::writable, Trigger::level, 1);
  EXPECT_EQ(poller.commit(), 0U);
  calls.reset_counts();
  EXPECT_TRUE(poller.remove(*id));
  EXPECT_EQ(control_calls(), is_epoll() ? 1U : 0U);
}

TEST_P(PollerSuite, AddNowAsksAtOnce) {
  Poller poller = make();
  calls.reset_counts();
  const Pair pair = stream_pair();
  ASSERT_TRUE(poller.add_now(pair.a.get(), Ready::writable, Trigger::level, 1));
  EXPECT_EQ(control_calls(), is_epoll() ? 1U : 0U);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(control_calls(), is_epoll() ? 1U : 0U);
}

TEST_P(PollerSuite, AddNowOfNoInterestIsAsIfDisabled) {
  Poller poller = make();
  const Pair pair = stream_pair();
  const auto id = poller.add_now(pair.a.get(), Ready::none, Trigger::level, 1);
  ASSERT_TRUE(id);
  EXPECT_EQ(tokens_now(poller), Tokens{});
  EXPECT_TRUE(poller.modify(*id, Ready::writable, Trigger::level));
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(poller.add_now(-1, Ready::none, Trigger::level, 1).error(),
            std::errc::bad_file_descriptor);
}

TEST_P(PollerSuite, RefusedChangesAreListedEachWithItsError) {
  Poller poller = make();
  Pair closed = stream_pair();
  const Pair open = stream_pair();
  const auto refused = poller.add(closed.a.get(), Ready::writable, Trigger::level, 7);
  ASSERT_TRUE(refused);
  ASSERT_TRUE(poller.add(open.a.get(), Ready::writable, Trigger::level, 8));
  const int number = closed.a.get();
  closed.a.reset();
  EXPECT_EQ(poller.commit(), 1U);
  ASSERT_EQ(poller.failures().size(), 1U);
  const ChangeFailure& failure = poller.failures()[0];
  EXPECT_EQ(failure.id, *refused);
  EXPECT_EQ(failure.token, 7U);
  EXPECT_EQ(failure.handle, number);
  EXPECT_EQ(failure.error, std::errc::bad_file_descriptor);
  EXPECT_EQ(failure.error.message(),
            "register descriptor " + std::to_string(number) + ": bad file descriptor");
  EXPECT_EQ(poller.size(), 1U);
  EXPECT_EQ(poller.remove(*refused).error(), Errc::stale_handle);
  EXPECT_EQ(tokens_now(poller), Tokens{8});
  EXPECT_TRUE(poller.failures().empty());
}

TEST_P(PollerSuite, WaitWithNewFailuresDoesNotBlock) {
  Poller poller = make();
  Pair closed = stream_pair();
  ASSERT_TRUE(poller.add(closed.a.get(), Ready::writable, Trigger::level, 7));
  closed.a.reset();
  EXPECT_EQ(poller.wait(forever), 0U);
  EXPECT_EQ(poller.failures().size(), 1U);
}

TEST_P(EpollSuite, KernelOutOfWatchesIsAFailureOfThatInterest) {
  Poller poller = make();
  const Pair pair = stream_pair();
  calls.fail(CallId::epoll_control, 1, ENOSPC);
  EXPECT_EQ(poller.add_now(pair.a.get(), both, Trigger::level, 1).error(),
            std::errc::no_space_on_device);
  EXPECT_EQ(poller.size(), 0U);
  calls.fail(CallId::epoll_control, 1, ENOMEM);
  ASSERT_TRUE(poller.add(pair.a.get(), both, Trigger::level, 1));
  EXPECT_EQ(poller.commit(), 1U);
  EXPECT_EQ(poller.failures()[0].error, std::errc::not_enough_memory);
  ASSERT_TRUE(poller.add(pair.a.get(), both, Trigger::level, 1));
  EXPECT_EQ(tokens_now(poller), Tokens{1});
}

// Descriptors that cannot be polled

TEST_P(PollerSuite, ClosedAndWrongDescriptorsAreRefusedAtOnce) {
  Poller poller = make();
  const Fd path = own(::open("/", O_PATH | O_CLOEXEC));
  for (const int fd : {-1, -2147483647 - 1, 2147483647, 19'999, path.get()}) {
    for (const bool now : {false, true}) {
      const auto id = now ? poller.add_now(fd, both, Trigger::level, 1)
                          : poller.add(fd, both, Trigger::level, 1);
      ASSERT_FALSE(id) << fd;
      EXPECT_EQ(id.error(), std::errc::bad_file_descriptor) << fd;
      EXPECT_EQ(id.error().subject().to_string(), "descriptor " + std::to_string(fd));
    }
  }
  EXPECT_EQ(poller.size(), 0U);
  EXPECT_EQ(tokens_now(poller), Tokens{});
}

TEST_P(PollerSuite, AlwaysReadyOneShotAndDisabled) {
  Poller poller = make();
  const Fd null = own(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto id = poller.add(null.get(), both, Trigger::one_shot, 1);
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_EQ(tokens_now(poller), Tokens{});
  EXPECT_TRUE(poller.enable(*id));
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  EXPECT_TRUE(poller.modify(*id, Ready::readable, Trigger::level));
  EXPECT_TRUE(poller.enable(*id));
  EXPECT_EQ(events_now(poller).at(0).ready, Ready::readable);
  EXPECT_EQ(poller.wait(Duration::zero()), 1U);
  EXPECT_TRUE(poller.disable(*id));
  EXPECT_FALSE(poller.next());
  EXPECT_TRUE(poller.enable(*id));
  EXPECT_TRUE(poller.modify(*id, Ready::priority, Trigger::level));
  EXPECT_EQ(tokens_now(poller), Tokens{});
}

TEST_P(EpollSuite, AlwaysReadyEdgeFiresOncePerEnable) {
  Poller poller = make();
  const Fd null = own(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto id = poller.add(null.get(), both, Trigger::edge, 1);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(tokens_now(poller), Tokens{1});
    EXPECT_EQ(tokens_now(poller), Tokens{});
    EXPECT_TRUE(poller.enable(*id));
  }
}

TEST_P(PollerSuite, AlwaysReadyThatIsClosedByOthersIsInvalid) {
  Poller poller = make();
  Fd null = own(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(poller.add(null.get(), both, Trigger::level, 1));
  EXPECT_EQ(tokens_now(poller), Tokens{1});
  null.reset();
  const auto events = events_now(poller);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].ready, Ready::invalid);
  EXPECT_EQ(poller.size(), 0U);
  EXPECT_EQ(tokens_now(poller), Tokens{});
}

TEST_P(PollerSuite, AlwaysReadyAndOthersShareASmallList) {
  for (const std::size_t events_max : {1U, 2U, 3U}) {
    Poller poller = make(events_max);
    const Fd null = own(::open("/dev/null", O_RDWR | O_CLOEXEC));
    const Fd zero = own(::open("/dev/zero", O_RDWR | O_CLOEXEC));
    const Pair first = stream_pair();
    const Pair second = stream_pair();
    ASSERT_TRUE(poller.add(null.get(), Ready::readable, Trigger::level, 0));
    ASSERT_TRUE(poller.add(zero.get(), Ready::readable, Trigger::level, 1));
    ASSERT_TRUE(poller.add(first.a.get(), Ready::writable, Trigger::level, 2));
    ASSERT_TRUE(poller.add(second.a.get(), Ready::writable, Trigger::level, 3));
    int counts[4] = {};
    for (int i = 0; i < 120; ++i) {
      const auto events = events_now(poller);
      EXPECT_LE(events.size(), events_max);
      for (const PollEvent& event : events) ++counts[event.token];
    }
    for (const int count : counts) EXPECT_GE(count, 25) << events_max;
  }
}

// Construction

TEST(PollerCreate, AutomaticTakesEpollAndFallsBackToPoll) {
  FaultCalls calls;
  EXPECT_EQ(make_over(calls, BackendKind::automatic).kind(), BackendKind::epoll);
  calls.refuse(CallId::epoll_create, ENOSYS);
  Poller poller = make_over(calls, BackendKind::automatic);
  EXPECT_EQ(poller.kind(), BackendKind::poll);
  const Pair pair = stream_pair();
  ASSERT_TRUE(poller.add(pair.a.get(), Ready::writable, Trigger::level, 1));
  EXPECT_EQ(tokens_now(poller), Tokens{1});
}

TEST(PollerCreate, ExplicitKindFailsWithTheKernelsError) {
  FaultCalls calls;
  calls.refuse(CallId::epoll_create, EMFILE);
  PollerOptions options;
  options.kind = BackendKind::epoll;
  options.system_calls = &calls;
  const auto poller = Poller::create(std::move(options));
  ASSERT_FALSE(poller);
  EXPECT_EQ(poller.error(), std::errc::too_many_files_open);
}

TEST(PollerCreate, OtherKindsAreUnavailable) {
  for (const BackendKind kind :
       {BackendKind::sim, BackendKind::io_uring, BackendKind::kqueue, BackendKind::custom}) {
    PollerOptions options;
    options.kind = kind;
    const auto poller = Poller::create(std::move(options));
    ASSERT_FALSE(poller);
    EXPECT_EQ(poller.error(), Errc::backend_unavailable);
  }
}

TEST_P(PollerSuite, EventsMaxIsAtLeastOneAndBounded) {
  for (const std::size_t events_max : {std::size_t{0}, SIZE_MAX}) {
    Poller poller = make(events_max);
    const Pair first = stream_pair();
    const Pair second = stream_pair();
    ASSERT_TRUE(poller.add(first.a.get(), Ready::writable, Trigger::level, 1));
    ASSERT_TRUE(poller.add(second.a.get(), Ready::writable, Trigger::level, 2));
    EXPECT_EQ(poller.wait(Duration::zero()), events_max == 0 ? 1U : 2U);
  }
}

TEST_P(PollerSuite, ClosesItsDescriptors) {
  const auto open_count = [] {
    int count = 0;
    for (int fd = 0; fd < 1'000; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  };
  const int before = open_count();
  {
    Poller poller = make();
    EXPECT_EQ(open_count(), is_epoll() ? before + 1 : before);
    Poller moved = std::move(poller);
    EXPECT_TRUE(moved.after_fork());
    EXPECT_EQ(open_count(), is_epoll() ? before + 1 : before);
  }
  EXPECT_EQ(open_count(), before);
}

// Everything at once

/** What the poller should know about one descriptor. */
struct Model {
  Pair pair;
  std::optional<InterestId> id;
  Ready interest = Ready::none;
  bool enabled = false;
  bool filled = false;  // something to read
};

Ready expected_ready(const Model& model) {
  if (!model.id || !model.enabled) return Ready::none;
  Ready ready = model.interest & Ready::writable;
  if (model.filled) ready |= model.interest & Ready::readable;
  return ready;
}

void random_step(Prng& random, Poller& poller, Model& model, std::uint64_t token) {
  const Ready interests[] = {Ready::none, Ready::readable, Ready::writable, both};
  const Ready interest = interests[random.below(4)];
  const auto action = random.below(8);
  if (action == 0 && !model.id) {
    model.enabled = random.below(4) != 0;
    model.interest = interest;
    const auto id = poller.add(model.pair.a.get(), interest, Trigger::level, token, model.enabled);
    ASSERT_TRUE(id);
    model.id = *id;
  } else if (action == 1 && model.id) {
    ASSERT_TRUE(poller.remove(*model.id));
    model.id.reset();
  } else if (action == 2 && model.id) {
    ASSERT_TRUE(poller.enable(*model.id));
    model.enabled = true;
  } else if (action == 3 && model.id) {
    ASSERT_TRUE(poller.disable(*model.id));
    model.enabled = false;
  } else if (action == 4 && model.id) {
    ASSERT_TRUE(poller.modify(*model.id, interest, Trigger::level));
    model.interest = interest;
  } else if (action == 5 && !model.filled) {
    put(model.pair.b);
    model.filled = true;
  } else if (action == 6 && model.filled) {
    ASSERT_EQ(drain(model.pair.a.get()), 1U);
    model.filled = false;
  } else if (action == 7 && model.id) {  // the descriptor is closed and its number comes back
    ASSERT_TRUE(poller.remove(*model.id));
    model.id.reset();
    model.pair = {};
    model.pair = stream_pair();
    model.filled = false;
  }
}

TEST_P(PollerSuite, RandomChangesAgreeWithAModel) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Poller poller = make();
    std::vector<Model> models(20);
    for (Model& model : models) model.pair = stream_pair();
    for (int wait = 0; wait < 100; ++wait) {
      for (std::uint64_t step = random.below(30); step > 0; --step) {
        const std::uint64_t index = random.below(models.size());
        ASSERT_NO_FATAL_FAILURE(random_step(random, poller, models[index], index));
      }
      std::vector<Ready> seen(models.size(), Ready::none);
      for (const PollEvent& event : events_now(poller)) {
        EXPECT_EQ(event.id, models[event.token].id);
        EXPECT_EQ(seen[event.token], Ready::none) << "one event an interest";
        seen[event.token] = event.ready;
      }
      for (std::size_t i = 0; i < models.size(); ++i) {
        ASSERT_EQ(seen[i], expected_ready(models[i])) << "wait " << wait << " interest " << i;
      }
    }
  }
}

}  // namespace
}  // namespace evix::detail
