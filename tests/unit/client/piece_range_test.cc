// The emulated range: pages of slabs, side by side at one address. What workers
// see of it is the device conformance suite's.
#include "client/src/device/piece_range.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "client/src/device/device_map.h"
#include "gtest/gtest.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"

namespace hoist::piece_range_test {

constexpr uint64_t kPiece = uint64_t{2} << 20;

class EmulatedRange : public ::testing::Test {
 protected:
  void SetUp() override {
    map_ = CreateEmulatedDeviceMap(8 * kPiece).value();
    range_ = CreateEmulatedRange(2 * kPiece).value();
  }
  // A slab apart whose bytes are these.
  SlabHandle Slab(uint64_t id, char bytes) {
    SlabImport slab;
    slab.id = id;
    slab.offset = id * kPiece;
    slab.bytes = kPiece;
    slab.fd = CreateMemfd("slab", kPiece).value();
    slab.apart = true;
    Mapping all =
        Mapping::OfFd(slab.fd.get(), kPiece, Mapping::Access::kReadWrite)
            .value();
    std::memset(all.data(), bytes, kPiece);
    EXPECT_TRUE(map_->Import(std::move(slab)).ok());
    Result<SlabHandle> handle = map_->Handle(id * kPiece);
    EXPECT_TRUE(handle.ok()) << handle.status().ToString();
    return handle.ok() ? *handle : SlabHandle();
  }
  bool Shows(uint64_t at, char bytes) {
    const auto* from = static_cast<const char*>(range_->address()) + at;
    return std::all_of(from, from + kPiece,
                       [&](char byte) { return byte == bytes; });
  }

  std::unique_ptr<DeviceMap> map_;
  std::unique_ptr<PieceRange> range_;
};

TEST_F(EmulatedRange, OneSlabMayLieInTwoPlacesAndChange) {
  const SlabHandle one = Slab(1, 'a'), other = Slab(2, 'b');
  ASSERT_TRUE(range_->Place(0, one).ok());
  ASSERT_TRUE(range_->Place(kPiece, one).ok());
  EXPECT_TRUE(Shows(0, 'a') && Shows(kPiece, 'a'));
  ASSERT_TRUE(range_->Place(0, other).ok());
  EXPECT_TRUE(Shows(0, 'b') && Shows(kPiece, 'a'));
}

TEST_F(EmulatedRange, WhoReadsMeanwhileReadsEither) {
  const SlabHandle one = Slab(1, 'a'), other = Slab(2, 'b');
  ASSERT_TRUE(range_->Place(0, one).ok());
  std::atomic<bool> over{false};
  std::thread reader([&] {
    const auto* bytes = static_cast<const volatile char*>(range_->address());
    while (!over) {
      for (uint64_t at = 0; at < kPiece; at += 4096) {
        const char seen = bytes[at];
        ASSERT_TRUE(seen == 'a' || seen == 'b');
      }
    }
  });
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(range_->Place(0, i % 2 == 0 ? other : one).ok());
  }
  over = true;
  reader.join();
}

TEST_F(EmulatedRange, WhatIsNotMappedIsRefusedAndWhatWasThereStays) {
  ASSERT_TRUE(range_->Place(0, Slab(1, 'a')).ok());
  const SlabHandle nothing = {kPiece, nullptr, 0};
  EXPECT_FALSE(range_->Place(0, nothing).ok());
  EXPECT_TRUE(Shows(0, 'a'));
}

TEST_F(EmulatedRange, OnlySlabsApartHaveHandles) {
  Slab(1, 'a');
  SlabImport shared;
  shared.id = 3;
  shared.offset = 3 * kPiece;
  shared.bytes = kPiece;
  shared.fd = CreateMemfd("slab", kPiece).value();
  ASSERT_TRUE(map_->Import(std::move(shared)).ok());
  EXPECT_EQ(map_->Handle(3 * kPiece).status().code(), Code::kNotFound);
  EXPECT_EQ(map_->Handle(kPiece + 4096).status().code(), Code::kNotFound);
  EXPECT_EQ(map_->Handle(7 * kPiece).status().code(), Code::kNotFound);
  EXPECT_TRUE(map_->Handle(kPiece).ok());
}

}  // namespace hoist::piece_range_test
