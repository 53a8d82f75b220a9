// What lies on the host, told to hoistd's successor.
#ifndef HOIST_DAEMON_ENGINE_KEPT_HOST_H_
#define HOIST_DAEMON_ENGINE_KEPT_HOST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/hash.h"
#include "daemon/core/kept.h"
#include "daemon/keeper/keep.h"
#include "daemon/keeper/kept_key.h"
#include "daemon/store/spill_types.h"

namespace hoistd {

struct FoundImage {
  uint64_t host_offset = 0;
  SpillMeta meta;
};

struct FoundPart {
  uint64_t host_offset = 0;
  KeptPart part;
  Hash128 sample = {};  // Of its bytes.
};

// What the last hoistd wrote: models' groups in their order, parts by offset.
struct FoundOnHost {
  std::vector<FoundImage> images;
  std::vector<FoundPart> parts;
};

// What makes no sense is left out, and said in `notes`.
FoundOnHost FindOnHost(const std::map<KeptKey, std::string>& records,
                       std::vector<std::string>& notes);

// Leaves out and erases parts whose bytes are not what was written of them, by
// a sample, and says so in `notes`. `host` is the memory that was kept.
absl::Status CheckParts(std::span<const std::byte> host, Keep& keep,
                        std::vector<FoundPart>& parts,
                        std::vector<std::string>& notes);

// Writes down what lies there, with a sample of the bytes in `host` if it is of
// a file, or that nothing does any more. An image that cannot be written is not
// kept; its successor looks at all of its bytes before it uses it. An error of
// what was to be erased must not be passed over: what is kept is wrong then.
absl::Status WriteOnHost(const KeptOnHost& at, std::span<const std::byte> host,
                         Keep& keep);
absl::Status EraseOnHost(uint64_t host_offset, Keep& keep);

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_KEPT_HOST_H_
