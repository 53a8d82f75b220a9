#include "tests/conformance/device/resources.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace hoistd::testing {

Resources CountResources() {
  Resources now;
  now.fds = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                          std::filesystem::directory_iterator());
  std::ifstream maps("/proc/self/maps");
  now.mappings = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  return now;
}

}  // namespace hoistd::testing
