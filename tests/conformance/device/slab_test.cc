// Slabs: what is refused, and what a worker may do with them.
#include <csignal>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "hoist/shared/packet_socket.h"
#include "tests/conformance/device/rig.h"
#include "tests/conformance/device/share_text.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing::slab_test {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST_P(DeviceConformance, SlabErrorsAreTyped) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(kSlabBytes));
  const uint64_t span = device().info().span_bytes;

  SlabSpec same_id = Spec(0);
  same_id.id = slab.id;
  EXPECT_THAT(device().CreateSlab(same_id), StatusIs(kInvalid));
  for (const SlabSpec& bad :
       {Spec(kSlabBytes), Spec(kSlabBytes + 2 * kMiB), Spec(2 * kMiB), Spec(1),
        Spec(0, 1), Spec(0, 0), Spec(0, 3 * kMiB), Spec(span),
        Spec(span - 2 * kMiB, kSlabBytes), Spec(0, span + 2 * kMiB)}) {
    EXPECT_THAT(device().CreateSlab(bad), StatusIs(kInvalid))
        << bad.offset << " + " << bad.bytes;
  }
  const SlabId unknown(UINT64_MAX);
  EXPECT_THAT(device().DestroySlab(unknown),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(device().Share(unknown), StatusIs(absl::StatusCode::kNotFound));

  SlabSpec foreign = Spec(0);
  foreign.backing =
      backing() == Backing::kMemfd ? Backing::kVmm : Backing::kMemfd;
  EXPECT_THAT(device().CreateSlab(foreign),
              StatusIs(absl::StatusCode::kUnimplemented));
  // None of all that left anything behind.
  ASSERT_OK(MakeSlab(0));
}

TEST_P(DeviceConformance, MoreThanTheDeviceHasIsResourceExhausted) {
  const uint64_t total = device().info().total_bytes;
  const uint64_t step = device().info().granularity;
  const uint64_t bytes = (total / step + 1) * step;
  ASSERT_LE(bytes, device().info().span_bytes);
  EXPECT_THAT(MakeSlab(0, bytes),
              StatusIs(absl::StatusCode::kResourceExhausted));
  // The device goes on.
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  const std::vector<std::byte> from = Pattern(slab.bytes, 1);
  ASSERT_OK(CopyIn(0, from));
  EXPECT_TRUE(CopyOut(0, slab.bytes).value() == from);
}

TEST_P(DeviceConformance, ASlabsPlaceCanBeUsedAgain) {
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(kSlabBytes));
    const std::vector<std::byte> from = Pattern(slab.bytes, i);
    ASSERT_OK(CopyIn(slab.offset, from));
    EXPECT_TRUE(CopyOut(slab.offset, slab.bytes).value() == from);
    ASSERT_OK(device().DestroySlab(slab.id));
    EXPECT_THAT(CopyIn(slab.offset, from), StatusIs(kInvalid));
  }
}

TEST_P(DeviceConformance, AWorkerCannotWrite) {
  if (backing() == Backing::kIpc) {
    GTEST_SKIP() << "legacy IPC memory is writable: CUDA has no other kind";
  }
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  const std::vector<std::byte> from = Pattern(slab.bytes, 6);
  ASSERT_OK(CopyIn(slab.offset, from));
  ASSERT_OK_AND_ASSIGN(auto bystander, SpawnWorker());
  ASSERT_OK(Import(*bystander, slab));
  ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
  ASSERT_OK(Import(*worker, slab));

  if (backing() == Backing::kMemfd) {
    EXPECT_THAT(worker->Call("writable 0 4096"),
                StatusIs(absl::StatusCode::kPermissionDenied));
    EXPECT_THAT(worker->Call("write 0 4096"),
                StatusIs(absl::StatusCode::kAborted));
    EXPECT_EQ(worker->DeathSignal(), SIGSEGV);
  } else {
    // The driver refuses, or the worker's own context dies.
    EXPECT_FALSE(worker->Call("write 0 4096").ok());
  }
  EXPECT_TRUE(bystander->Read(slab.offset, slab.bytes).value() == from);
  EXPECT_TRUE(CopyOut(slab.offset, slab.bytes).value() == from);
}

TEST_P(DeviceConformance, AnotherUidCannotOpenTheSlabForWriting) {
  if (backing() != Backing::kMemfd) {
    GTEST_SKIP() << "CUDA's descriptors are no files to be opened anew";
  }
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(auto worker, Peer::Spawn());
  ASSERT_OK_AND_ASSIGN(const SlabShare share, device().Share(slab.id));
  const auto opened = worker->Call("reopen", {share.fd});
  if (opened.status().code() == absl::StatusCode::kFailedPrecondition) {
    GTEST_SKIP() << opened.status().message();
  }
  EXPECT_THAT(opened, StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_P(DeviceConformance, ASlabIsOpenedOnce) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(kSlabBytes));
  const std::vector<std::byte> from = Pattern(slab.bytes, 8);
  ASSERT_OK(CopyIn(slab.offset, from));
  ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
  const std::string address = absl::StrCat("address ", slab.offset);
  EXPECT_EQ(worker->Call(address)->body, "0");

  ASSERT_OK(Import(*worker, slab));
  const std::string first = worker->Call(address)->body;
  EXPECT_NE(first, "0");
  ASSERT_OK(Import(*worker, slab));
  ASSERT_OK(Import(*worker, slab));
  EXPECT_EQ(worker->Call(address)->body, first);
  EXPECT_TRUE(worker->Read(slab.offset, slab.bytes).value() == from);
  // The edges are those of the slab.
  EXPECT_EQ(worker->Call(absl::StrCat("address ", slab.offset - 1))->body, "0");
  EXPECT_EQ(worker->Call(absl::StrCat("address ", 2 * kSlabBytes))->body, "0");

  const std::string drop = absl::StrCat("drop ", slab.id.number());
  ASSERT_OK(worker->Call(drop));
  EXPECT_EQ(worker->Call(address)->body, "0");
  EXPECT_THAT(worker->Call(drop), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(Import(*worker, slab));
  EXPECT_TRUE(worker->Read(slab.offset, slab.bytes).value() == from);
}

TEST_P(DeviceConformance, BadImportsAreRefusedAndTheMapGoesOn) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  const std::vector<std::byte> from = Pattern(slab.bytes, 8);
  ASSERT_OK(CopyIn(slab.offset, from));
  ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
  ASSERT_OK(Import(*worker, slab));
  ASSERT_OK_AND_ASSIGN(const SlabShare share, device().Share(slab.id));
  const auto import = [&](SlabSpec spec, std::vector<int> fds) {
    return worker->Call("import " + SlabText(spec, share), std::move(fds));
  };
  std::vector<int> fds;
  if (share.fd >= 0) fds.push_back(share.fd);

  EXPECT_THAT(import(Spec(2 * kMiB), fds),
              StatusIs(kInvalid, HasSubstr("lies over slab")));
  EXPECT_THAT(import(Spec(device().info().span_bytes), fds),
              StatusIs(kInvalid, HasSubstr("outside the device's span")));
  SlabSpec foreign = Spec(kSlabBytes);
  foreign.backing =
      backing() == Backing::kMemfd ? Backing::kVmm : Backing::kMemfd;
  EXPECT_THAT(import(foreign, fds), StatusIs(kInvalid));
  if (!fds.empty()) {
    // No descriptor, one of something else, and more than there is.
    EXPECT_FALSE(import(Spec(kSlabBytes), {}).ok());
    auto other = hoist::CreateMemfd("test-other", kMiB);
    ASSERT_TRUE(other.ok());
    EXPECT_FALSE(import(Spec(kSlabBytes), {other->get()}).ok());
    EXPECT_FALSE(import(Spec(kSlabBytes, 2 * kSlabBytes), fds).ok());
  }
  EXPECT_TRUE(worker->Read(slab.offset, slab.bytes).value() == from);
}

}  // namespace hoistd::testing::slab_test
