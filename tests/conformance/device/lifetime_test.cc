// Death on either side, and what is left after many rounds.
#include <fcntl.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/conformance/device/resources.h"
#include "tests/conformance/device/rig.h"
#include "tests/conformance/device/share_text.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing::lifetime_test {

constexpr int kWarmUp = 20;
constexpr int kRounds = 1000;
// For what libraries keep; a leak would be kRounds of each.
constexpr int64_t kSlack = 16;

Resources Of(Peer& peer) {
  Resources resources;
  std::istringstream(peer.Call("resources")->body) >> resources.fds >>
      resources.mappings;
  return resources;
}

TEST_P(DeviceConformance, AKilledWorkerLeavesTheDeviceServing) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  ASSERT_OK_AND_ASSIGN(auto other, SpawnWorker());
  ASSERT_OK(Import(*other, slab));
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
    ASSERT_OK(Import(*worker, slab));
    const std::vector<std::byte> from = Pattern(slab.bytes, i);
    ASSERT_OK(stream->CopyIn(slab.offset, from));
    worker->Kill();  // While the copy is in flight, or just after.
    ASSERT_OK(WaitFor(*stream));
    EXPECT_TRUE(other->Read(slab.offset, slab.bytes).value() == from);
  }
  stream.reset();
  ASSERT_OK(other->Call(absl::StrCat("drop ", slab.id.number())));
  EXPECT_OK(device().DestroySlab(slab.id));
}

TEST_P(DeviceConformance, AKilledDaemonLeavesTheWorkersBytes) {
  if (backing() == Backing::kIpc) {
    GTEST_SKIP() << "legacy IPC memory belongs to its daemon's context; that "
                    "it outlives it is not promised";
  }
  ASSERT_OK_AND_ASSIGN(auto daemon, Peer::Spawn());
  ASSERT_OK(daemon->Call(DeviceCommand()));
  ASSERT_OK(daemon->Call(
      absl::StrCat("slab 1 0 ", kSlabBytes, " ", static_cast<int>(backing()))));
  ASSERT_OK(daemon->Call(absl::StrCat("fill 0 ", kSlabBytes, " 77")));
  ASSERT_OK_AND_ASSIGN(const hoist::Packet share, daemon->Call("share 1"));
  ASSERT_EQ(share.fds.size(), 1u);
  ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
  ASSERT_OK(worker->Call("import " + share.body, {share.fds[0].get()}));

  daemon->Kill();
  const std::vector<std::byte> expected = Pattern(kSlabBytes, 77);
  EXPECT_TRUE(worker->Read(0, kSlabBytes).value() == expected);
  // The descriptor alone keeps the memory, too: that is how a next daemon, and
  // a worker that comes later, find it.
  worker->Kill();
  ASSERT_OK_AND_ASSIGN(auto later, SpawnWorker());
  ASSERT_OK(later->Call("import " + share.body, {share.fds[0].get()}));
  EXPECT_TRUE(later->Read(0, kSlabBytes).value() == expected);
}

TEST_P(DeviceConformance, AKilledDaemonsSlabIsAdopted) {
  if (backing() == Backing::kIpc) {
    EXPECT_THAT(device().AdoptSlab(Spec(0), hoist::UniqueFd()),
                StatusIs(absl::StatusCode::kUnimplemented));
    return;
  }
  ASSERT_OK_AND_ASSIGN(auto daemon, Peer::Spawn());
  ASSERT_OK(daemon->Call(DeviceCommand()));
  ASSERT_OK(daemon->Call(
      absl::StrCat("slab 1 0 ", kSlabBytes, " ", static_cast<int>(backing()))));
  ASSERT_OK(daemon->Call(absl::StrCat("fill 0 ", kSlabBytes, " 78")));
  ASSERT_OK_AND_ASSIGN(const hoist::Packet share, daemon->Call("share 1"));
  ASSERT_OK_AND_ASSIGN(hoist::Packet kept, daemon->Call("keep 1"));
  ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
  ASSERT_OK(worker->Call("import " + share.body, {share.fds[0].get()}));
  daemon->Kill();

  const std::vector<std::byte> expected = Pattern(kSlabBytes, 78);
  const SlabSpec slab = Spec(0);
  ASSERT_OK(device().AdoptSlab(slab, std::move(kept.fds.at(0))));
  EXPECT_TRUE(CopyOut(0, kSlabBytes).value() == expected);
  // It is the same memory: what is copied in, the worker sees where it was.
  const std::vector<std::byte> other = Pattern(kSlabBytes, 79);
  ASSERT_OK(CopyIn(0, other));
  EXPECT_TRUE(worker->Read(0, kSlabBytes).value() == other);
  // Others get it as any slab, and so does who adopts it next.
  ASSERT_OK_AND_ASSIGN(auto later, SpawnWorker());
  ASSERT_OK(Import(*later, slab));
  EXPECT_TRUE(later->Read(0, kSlabBytes).value() == other);
  ASSERT_OK_AND_ASSIGN(const SlabShare again, device().Share(slab.id));
  hoist::UniqueFd next(fcntl(again.keep_fd, F_DUPFD_CLOEXEC, 0));
  ASSERT_TRUE(next.valid());
  ASSERT_OK(device().DestroySlab(slab.id));
  ASSERT_OK(device().AdoptSlab(slab, std::move(next)));
  EXPECT_TRUE(CopyOut(0, kSlabBytes).value() == other);
  ASSERT_OK(device().DestroySlab(slab.id));
}

TEST_P(DeviceConformance, WhatIsNoSlabIsNotAdopted) {
  if (backing() == Backing::kIpc) GTEST_SKIP() << "it adopts none";
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(const SlabShare share, device().Share(slab.id));
  const auto copy = [&] {
    return hoist::UniqueFd(fcntl(share.keep_fd, F_DUPFD_CLOEXEC, 0));
  };
  // Where one is, of another size, of nothing.
  EXPECT_FALSE(device().AdoptSlab(Spec(0), copy()).ok());
  EXPECT_FALSE(
      device().AdoptSlab(Spec(kSlabBytes, 2 * kSlabBytes), copy()).ok());
  EXPECT_FALSE(device()
                   .AdoptSlab(Spec(kSlabBytes),
                              hoist::UniqueFd(open("/dev/null", O_RDWR)))
                   .ok());
  ASSERT_OK(MakeSlab(kSlabBytes));
}

TEST_P(DeviceConformance, AThousandSlabsOpenedAndClosedLeakNothing) {
  ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
  const uint64_t bytes = device().info().granularity;
  const auto round = [&](uint64_t i) {
    ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab((i % 7) * bytes, bytes));
    ASSERT_OK(Import(*worker, slab));
    ASSERT_OK(worker->Call(absl::StrCat("drop ", slab.id.number())));
    ASSERT_OK(device().DestroySlab(slab.id));
  };
  for (uint64_t i = 0; i < kWarmUp; ++i) ASSERT_NO_FATAL_FAILURE(round(i));
  const Resources mine = CountResources();
  const Resources theirs = Of(*worker);
  const uint64_t free = FreeDeviceBytes();
  for (uint64_t i = 0; i < kRounds; ++i) ASSERT_NO_FATAL_FAILURE(round(i));
  // The CUDA driver keeps some for itself; we keep none.
  const int64_t fd_slack = backing() == Backing::kMemfd ? 0 : kSlack;
  EXPECT_LE(CountResources().fds, mine.fds + fd_slack);
  EXPECT_LE(CountResources().mappings, mine.mappings + kSlack);
  EXPECT_LE(Of(*worker).fds, theirs.fds + fd_slack);
  EXPECT_LE(Of(*worker).mappings, theirs.mappings + kSlack);
  EXPECT_GE(FreeDeviceBytes() + kSlack * bytes, free);
  RecordProperty("device_bytes_lost",
                 static_cast<int>(free - FreeDeviceBytes()));
  if (backing() == Backing::kMemfd) {
    EXPECT_OK(MakeSlab(0, device().info().total_bytes));
  }
}

TEST_P(DeviceConformance, OneSlabOpenedAThousandTimesLeaksNothing) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(const SlabShare share, device().Share(slab.id));
  ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
  std::vector<int> fds;
  if (share.fd >= 0) fds.push_back(share.fd);
  const auto rounds = [&](int count) {
    return worker->Call(
        absl::StrCat("rounds ", count, " ", SlabText(slab, share)), fds);
  };
  ASSERT_OK(rounds(kWarmUp));
  const Resources before = Of(*worker);
  const uint64_t free = FreeDeviceBytes();
  ASSERT_OK(rounds(kRounds));
  EXPECT_LE(Of(*worker).fds,
            before.fds + (backing() == Backing::kMemfd ? 0 : kSlack));
  EXPECT_LE(Of(*worker).mappings, before.mappings + kSlack);
  EXPECT_GE(FreeDeviceBytes() + kSlack * kMiB, free);
}

}  // namespace hoistd::testing::lifetime_test
