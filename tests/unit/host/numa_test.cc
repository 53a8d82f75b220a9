#include "daemon/host/numa.h"

#include <vector>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace hoistd::numa_test {

TEST(Numa, SpreadingWorksOnThisHost) {
  std::vector<std::byte> memory(1 << 20);
  const auto start =
      (reinterpret_cast<uintptr_t>(memory.data()) + 4095) & ~uintptr_t{4095};
  EXPECT_OK(SpreadOverNodes({reinterpret_cast<std::byte*>(start), 4096 * 4}));
}

}  // namespace hoistd::numa_test
