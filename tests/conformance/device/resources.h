// A process's resources, to detect leaks.
#ifndef HOIST_TESTS_CONFORMANCE_DEVICE_RESOURCES_H_
#define HOIST_TESTS_CONFORMANCE_DEVICE_RESOURCES_H_

#include <cstdint>

namespace hoistd::testing {

struct Resources {
  int64_t fds = 0;
  int64_t mappings = 0;  // Lines of /proc/self/maps.
};

Resources CountResources();

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_CONFORMANCE_DEVICE_RESOURCES_H_
