// Records of the host pool's contents for hoistd's successor.
#ifndef HOIST_DAEMON_SUCCESSOR_PERSISTED_HOST_H_
#define HOIST_DAEMON_SUCCESSOR_PERSISTED_HOST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/hash.h"
#include "daemon/core/persisted.h"
#include "daemon/keeper/keep.h"
#include "daemon/keeper/persisted_key.h"
#include "daemon/store/spill_types.h"

namespace hoistd {

struct FoundImage {
  uint64_t host_offset = 0;
  SpillMeta meta;
};

struct FoundPart {
  uint64_t host_offset = 0;
  PersistedPart part;
  Hash128 sample = {};  // Of its bytes.
};

// Records of the last hoistd: groups in their models' order, parts by offset.
struct FoundOnHost {
  std::vector<FoundImage> images;
  std::vector<FoundPart> parts;
};

// Omits malformed records, and reports them in `notes`.
FoundOnHost FindOnHost(const std::map<PersistedKey, std::string>& records,
                       std::vector<std::string>& notes);

// Omits and erases parts whose bytes do not match their recorded sample, and
// reports them in `notes`. `host` is the kept memory.
absl::Status CheckParts(std::span<const std::byte> host, Keep& keep,
                        std::vector<FoundPart>& parts,
                        std::vector<std::string>& notes);

// Records what lies there, for parts of files with a sample of the bytes in
// `host`; or that nothing does any more. An image that cannot be recorded is
// not kept; a successor verifies all bytes of an image before use. An error of
// an erase must be handled: the records are wrong then.
absl::Status WriteOnHost(const PersistedOnHost& at,
                         std::span<const std::byte> host, Keep& keep);
absl::Status EraseOnHost(uint64_t host_offset, Keep& keep);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SUCCESSOR_PERSISTED_HOST_H_
