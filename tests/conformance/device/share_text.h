// Slabs as text of the test's protocol.
#ifndef HOIST_TESTS_CONFORMANCE_DEVICE_SHARE_TEXT_H_
#define HOIST_TESTS_CONFORMANCE_DEVICE_SHARE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/types/device.h"

namespace hoistd::testing {

std::string ToHex(std::span<const uint8_t> bytes);
std::vector<uint8_t> FromHex(const std::string& text);

// "<id> <offset> <bytes> <backing> <handle in hex> <apart, 0 or 1> <node>".
std::string SlabText(const SlabSpec& spec, const SlabShare& share);

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_CONFORMANCE_DEVICE_SHARE_TEXT_H_
