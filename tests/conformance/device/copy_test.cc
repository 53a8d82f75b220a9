// Copies, their order, and what another process sees of them.
#include <atomic>
#include <cstring>
#include <future>
#include <new>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"
#include "tests/conformance/device/rig.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"
#include "tests/support/until.h"

namespace hoistd::testing::copy_test {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Like the host pool's: shared memory.
hoist::Mapping HostMemory(uint64_t bytes) {
  const auto memfd = hoist::CreateMemfd("test-host", bytes);
  auto mapping = hoist::Mapping::OfFd(memfd.value().get(), bytes,
                                      hoist::Mapping::Access::kReadWrite);
  return std::move(mapping).value();
}

TEST_P(DeviceConformance, AnotherProcessReadsTheBytesThatWereCopiedIn) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
  ASSERT_OK(Import(*worker, slab));
  std::vector<std::byte> expected = Pattern(slab.bytes, 1);
  ASSERT_OK(CopyIn(slab.offset, expected));
  uint64_t seed = 2;
  for (const uint64_t bytes :
       {uint64_t{1}, uint64_t{3}, uint64_t{255}, uint64_t{256}, uint64_t{4095},
        uint64_t{4096}, uint64_t{65'537}, kMiB + 1, 3 * kMiB}) {
    for (const uint64_t offset :
         {uint64_t{0}, uint64_t{1}, uint64_t{255}, uint64_t{4096}, kMiB - 1}) {
      const std::vector<std::byte> from = Pattern(bytes, ++seed);
      ASSERT_OK(CopyIn(slab.offset + offset, from));
      std::ranges::copy(from, expected.begin() + offset);
    }
    // The whole slab, so that a byte too many or too few is seen as well.
    ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> seen,
                         worker->Read(slab.offset, slab.bytes));
    ASSERT_TRUE(seen == expected) << "after copies of " << bytes << " bytes";
  }
}

TEST_P(DeviceConformance, CopiesCrossNeighbouringSlabs) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec a, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(const SlabSpec b, MakeSlab(kSlabBytes));
  ASSERT_OK_AND_ASSIGN(const SlabSpec c, MakeSlab(2 * kSlabBytes));
  const std::vector<std::byte> from = Pattern(2 * kSlabBytes, 7);
  const uint64_t offset = kSlabBytes / 2;
  if (backing() == Backing::kIpc) {
    EXPECT_THAT(CopyIn(offset, from),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("not side by side")));
    return;
  }
  ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
  // In another order than they lie in.
  for (const SlabSpec& slab : {b, c, a}) ASSERT_OK(Import(*worker, slab));
  ASSERT_OK(CopyIn(offset, from));
  EXPECT_TRUE(worker->Read(offset, from.size()).value() == from);
  EXPECT_TRUE(CopyOut(offset, from.size()).value() == from);

  ASSERT_OK_AND_ASSIGN(const auto first, worker->Call("address 0"));
  ASSERT_OK_AND_ASSIGN(
      const auto last,
      worker->Call("address " + std::to_string(3 * kSlabBytes - 1)));
  EXPECT_EQ(std::stoull(last.body) - std::stoull(first.body),
            3 * kSlabBytes - 1);
}

TEST_P(DeviceConformance, CopyOutGivesBackWhatWasCopiedIn) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(6 * kMiB));
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4097}, 2 * kMiB + 5}) {
    const std::vector<std::byte> from = Pattern(bytes, bytes);
    ASSERT_OK(CopyIn(slab.offset + 11, from));
    ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> to,
                         CopyOut(slab.offset + 11, bytes));
    EXPECT_TRUE(to == from) << bytes;
  }
}

// As the link learns that what it reads back is there.
TEST_P(DeviceConformance, AWordBehindACopyOutSaysThatItsBytesAreThere) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  constexpr uint64_t kBytes = 2 * kMiB;
  auto memfd = hoist::CreateMemfd("test-host", 2 * kBytes);
  ASSERT_TRUE(memfd.ok());
  auto mapping = hoist::Mapping::OfFd(memfd->get(), 2 * kBytes,
                                      hoist::Mapping::Access::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  ASSERT_OK(device().RegisterHost(mapping->span()));
  const std::span<std::byte> to = mapping->span().first(kBytes);
  auto* word = new (mapping->data() + kBytes) std::atomic<uint32_t>(0);
  for (uint32_t round = 1; round <= 20; ++round) {
    const std::vector<std::byte> from = Pattern(kBytes, round);
    ASSERT_OK(CopyIn(slab.offset, from));
    ASSERT_OK(stream->CopyOut(to, slab.offset));
    const WordWrite write = {word, round};
    ASSERT_OK(stream->WriteWords({&write, 1}));
    ASSERT_TRUE(Until([&] { return word->load() == round; }));
    ASSERT_EQ(std::memcmp(to.data(), from.data(), kBytes), 0) << round;
  }
  stream.reset();
  EXPECT_OK(device().UnregisterHost(mapping->span()));
}

TEST_P(DeviceConformance, AStreamWorksInOrder) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  constexpr int kRounds = 50;
  constexpr uint64_t kBytes = 128 * 1024;
  std::vector<std::vector<std::byte>> from, to(kRounds);
  for (int i = 0; i < kRounds; ++i) from.push_back(Pattern(kBytes, i));
  // Each overwrites what the one before reads back.
  for (int i = 0; i < kRounds; ++i) {
    to[i].resize(kBytes);
    ASSERT_OK(stream->CopyIn(slab.offset, from[i]));
    ASSERT_OK(stream->CopyOut(to[i], slab.offset));
  }
  ASSERT_OK(WaitFor(*stream));
  for (int i = 0; i < kRounds; ++i) ASSERT_TRUE(to[i] == from[i]) << i;
}

TEST_P(DeviceConformance, ThenIsCalledOnceAndInOrder) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  const std::vector<std::byte> from = Pattern(64 * 1024, 3);
  absl::Mutex mu;
  std::vector<int> order;
  std::vector<int> expected;
  for (int i = 0; i < 200; ++i) {
    if (i % 3 != 0) {
      ASSERT_OK(stream->CopyIn(slab.offset, from));
    }
    stream->Then([&, i](const absl::Status& status) {
      EXPECT_OK(status);
      const absl::MutexLock lock(&mu);
      order.push_back(i);
    });
    expected.push_back(i);
  }
  ASSERT_OK(WaitFor(*stream));
  stream.reset();
  const absl::MutexLock lock(&mu);
  EXPECT_THAT(order, ElementsAreArray(expected));
}

TEST_P(DeviceConformance, BytesAreThereWhenThenIsCalled) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
  ASSERT_OK(Import(*worker, slab));
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  for (uint64_t i = 0; i < 20; ++i) {
    const std::vector<std::byte> from = Pattern(slab.bytes, 100 + i);
    ASSERT_OK(stream->CopyIn(slab.offset, from));
    ASSERT_OK(WaitFor(*stream));
    ASSERT_TRUE(worker->Read(slab.offset, slab.bytes).value() == from) << i;
  }
}

TEST_P(DeviceConformance, DestroyingAStreamWaitsForItsWork) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  const std::vector<std::byte> from = Pattern(slab.bytes, 4);
  std::atomic<int> calls = 0;
  {
    ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
    for (int i = 0; i < 8; ++i) {
      ASSERT_OK(stream->CopyIn(slab.offset, from));
      stream->Then([&](const absl::Status&) { ++calls; });
    }
  }
  EXPECT_EQ(calls, 8);
  EXPECT_TRUE(CopyOut(slab.offset, slab.bytes).value() == from);
}

TEST_P(DeviceConformance, StreamsWorkBesideEachOther) {
  constexpr int kStreams = 4;
  ASSERT_OK(MakeSlab(0, 8 * kMiB));
  std::vector<std::unique_ptr<CopyStream>> streams(kStreams);
  std::vector<std::vector<std::byte>> from, to(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_OK_AND_ASSIGN(streams[i], device().CreateStream());
    from.push_back(Pattern(kMiB, i));
    to[i].resize(kMiB);
  }
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kStreams; ++i) {
      ASSERT_OK(streams[i]->CopyIn(2 * kMiB * i, from[i]));
      ASSERT_OK(streams[i]->CopyOut(to[i], 2 * kMiB * i));
    }
  }
  for (auto& stream : streams) ASSERT_OK(WaitFor(*stream));
  for (int i = 0; i < kStreams; ++i) EXPECT_TRUE(to[i] == from[i]) << i;
}

TEST_P(DeviceConformance, HostMemoryMayBeRegisteredInPieces) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  const hoist::Mapping memory = HostMemory(4 * kMiB);
  const std::span<std::byte> host = memory.span();
  // Two pieces side by side, and a third that is not registered.
  const auto first = host.first(kMiB);
  const auto second = host.subspan(kMiB, kMiB);
  FillPattern(host, 9);
  ASSERT_OK(device().RegisterHost(first));
  ASSERT_OK(device().RegisterHost(second));
  ASSERT_OK(CopyIn(slab.offset, host));
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  EXPECT_TRUE(std::ranges::equal(CopyOut(slab.offset, 4 * kMiB).value(), host));
  std::ranges::fill(host, std::byte{0});
  ASSERT_OK(stream->CopyOut(host, slab.offset));
  ASSERT_OK(WaitFor(*stream));
  EXPECT_TRUE(std::ranges::equal(Pattern(4 * kMiB, 9), host));
  EXPECT_OK(device().UnregisterHost(second));
  EXPECT_OK(device().UnregisterHost(first));
}

TEST_P(DeviceConformance, RowsLieEndToEndWhateverIsRegistered) {
  constexpr uint64_t kRow = 3000;
  constexpr uint64_t kPitch = 8700;
  ASSERT_OK(MakeSlab(0).status());
  ASSERT_OK(MakeSlab(kSlabBytes).status());
  const hoist::Mapping memory = HostMemory(4 * kMiB);
  const std::span<std::byte> host = memory.span();
  FillPattern(host, 9);
  // Two pieces side by side, an edge in a row, and a third that is not
  // registered.
  const auto first = host.first(kMiB / 2);
  const auto second = host.subspan(kMiB / 2, kMiB);
  static_assert(kMiB / 2 % kPitch < kRow);
  ASSERT_OK(device().RegisterHost(first));
  ASSERT_OK(device().RegisterHost(second));
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  // From one slab into the next: in a row, where they are side by side.
  const uint64_t offset =
      kSlabBytes - kRow / (backing() == Backing::kIpc ? 1 : 2);
  const std::vector<std::byte> empty(kSlabBytes);
  for (const uint64_t count : {1, 2, 400}) {
    for (const uint64_t slab : {uint64_t{0}, kSlabBytes}) {
      ASSERT_OK(CopyIn(slab, empty));
    }
    ASSERT_OK(stream->CopyRowsIn({.to_offset = offset,
                                  .first = host.first(kRow),
                                  .count = count,
                                  .pitch = kPitch}));
    ASSERT_OK(WaitFor(*stream));
    std::vector<std::byte> expected(2 * kSlabBytes);
    for (uint64_t i = 0; i < count; ++i) {
      std::ranges::copy(
          host.subspan(i * kPitch, kRow),
          expected.begin() + static_cast<ptrdiff_t>(offset + i * kRow));
    }
    for (const uint64_t slab : {uint64_t{0}, kSlabBytes}) {
      EXPECT_TRUE(
          std::ranges::equal(CopyOut(slab, kSlabBytes).value(),
                             std::span(expected).subspan(slab, kSlabBytes)))
          << count;
    }
  }
  EXPECT_OK(device().UnregisterHost(second));
  EXPECT_OK(device().UnregisterHost(first));
}

// As the host pool is, while copies from it are under way.
TEST_P(DeviceConformance, CopiesGoOnWhileTheirHostMemoryIsRegistered) {
  constexpr uint64_t kPiece = 4096;
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  const uint64_t bytes = std::min<uint64_t>(slab.bytes, 256 * kPiece);
  const hoist::Mapping memory = HostMemory(bytes);
  const std::span<std::byte> host = memory.span();
  FillPattern(host, 3);
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> done = false;
    std::thread registers([&] {
      for (uint64_t at = 0; at < bytes; at += kPiece) {
        EXPECT_OK(device().RegisterHost(host.subspan(at, kPiece)));
      }
      done = true;
    });
    do {
      EXPECT_OK(stream->CopyIn(slab.offset, host));
      EXPECT_OK(WaitFor(*stream));
    } while (!done);
    registers.join();
    for (uint64_t at = 0; at < bytes; at += kPiece) {
      EXPECT_OK(device().UnregisterHost(host.subspan(at, kPiece)));
    }
  }
  EXPECT_TRUE(std::ranges::equal(CopyOut(slab.offset, bytes).value(), host));
}

TEST_P(DeviceConformance, CopiesOutsideSlabsAreRefused) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(2 * kSlabBytes));
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  std::vector<std::byte> host(8192);
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  const uint64_t end = slab.offset + slab.bytes;
  const uint64_t span = device().info().span_bytes;
  for (const uint64_t offset : {uint64_t{0}, slab.offset - 1, end - 8191, end,
                                span - 1, span, UINT64_MAX - 4096}) {
    EXPECT_THAT(stream->CopyIn(offset, host), StatusIs(kRefused)) << offset;
    EXPECT_THAT(stream->CopyOut(host, offset), StatusIs(kRefused)) << offset;
  }
  EXPECT_OK(WaitFor(*stream));
}

}  // namespace hoistd::testing::copy_test
