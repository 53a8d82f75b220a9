#include "daemon/core/device_names.h"

#include <vector>

#include "gtest/gtest.h"

namespace hoistd::device_names_test {

DeviceNames TwoAndInPlace() {
  std::vector<DeviceInfo> devices(3);
  devices[2].kind = DeviceKind::kInPlace;
  return DeviceNames(devices);
}

TEST(DeviceNames, WhatIsReadInPlaceHasNoNumber) {
  const DeviceNames names = TwoAndInPlace();
  const TierAt in_place = OnDevice(DeviceIndex(2));
  EXPECT_TRUE(names.IsInPlace(in_place));
  EXPECT_EQ(names.Of(in_place), "the memory in place");
  EXPECT_EQ(names.On(in_place), "in place");
  EXPECT_STREQ(names.KeyOf(in_place), "host.in_place");
  EXPECT_EQ(names.count(), 2u);
}

TEST(DeviceNames, OthersHaveTheirTiersNames) {
  const DeviceNames names = TwoAndInPlace();
  const TierAt device = OnDevice(DeviceIndex(1));
  EXPECT_FALSE(names.IsInPlace(device));
  EXPECT_EQ(names.Of(device), "device 1");
  EXPECT_EQ(names.On(device), "on device 1");
  EXPECT_STREQ(names.KeyOf(device), "device.pool");
  EXPECT_EQ(names.On(OnHost()), "on host");
  EXPECT_STREQ(names.KeyOf(OnHost()), "host.pool");
  EXPECT_FALSE(names.IsInPlace(OnDevice(DeviceIndex(9))));
  EXPECT_EQ(DeviceNames().count(), 0u);
}

}  // namespace hoistd::device_names_test
