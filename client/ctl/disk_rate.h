// How fast a disk of models' is, by reading one of them.
#ifndef HOIST_CLIENT_CTL_DISK_RATE_H_
#define HOIST_CLIENT_CTL_DISK_RATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hoist::ctl {

struct DiskRate {
  std::string path;
  uint64_t bytes = 0;  // That were read.
  uint64_t bytes_per_second = 0;
  bool direct = false;  // Past the page cache.
};

// The largest safetensors or GGUF file below one of the folders, or one that is
// named; of folders the first entries alone, if there are very many. "": there
// is none that this user can see.
std::string LargestModel(const std::vector<std::string>& folders);

// Reads the file from its beginning by several threads, for two seconds or
// 4 GiB, whichever is less. nullopt: it cannot be read, or is empty.
std::optional<DiskRate> MeasureDisk(const std::string& path);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_DISK_RATE_H_
