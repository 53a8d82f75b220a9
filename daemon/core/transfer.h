// Requests of core to the mover, as plain values.
#ifndef HOIST_DAEMON_CORE_TRANSFER_H_
#define HOIST_DAEMON_CORE_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "daemon/model/model.h"
#include "daemon/model/tensor.h"
#include "daemon/types/ids.h"
#include "daemon/types/ranges.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Bytes of a source file's sheet, and their target on the host.
struct SheetRead {
  SheetRange from;
  uint64_t host_offset = 0;
  OwnerId owner;  // Of the target, in core's books.
};

// Source and target, one type per way. The memory named stays in place until
// TransferDone. Host offsets are the pool's.
struct FilesToHost {
  std::vector<SheetRead> reads;
};
struct SpillToHost {  // Checksums are compared.
  SpillId from;
  uint64_t host_offset = 0;
};
struct ClientToHost {
  std::shared_ptr<hoist::UniqueFd> memfd;
  std::optional<uint64_t> host_offset;  // Unset: only hashed.
};
struct CheckOnHost {  // Already there; reports its content.
  uint64_t host_offset = 0;
};
struct CheckOnDevice {  // Likewise.
  DeviceIndex device;
  uint64_t device_offset = 0;
};
struct CheckOnPageable {  // Likewise.
  uint64_t pageable_offset = 0;
};
struct CheckOnDisk {  // Reads and compares the image; stores nothing.
  SpillId from;
};
struct HostToSpill {
  uint64_t host_offset = 0;
  User owner;
  Readers readers = Readers::kOwner;
};
struct HostToPageable {
  uint64_t host_offset = 0;
  uint64_t pageable_offset = 0;
};
struct PageableToHost {
  uint64_t pageable_offset = 0;
  uint64_t host_offset = 0;
};
struct HostToDevice {
  ImageRanges from;
  DeviceIndex device;
  uint64_t device_offset = 0;
};
// Where a device's memory is the host's, read in place.
struct InPlaceToDevice {
  DeviceIndex from;
  uint64_t from_offset = 0;
  bool from_apart = false;
  DeviceIndex device;
  uint64_t device_offset = 0;
};
struct HostToClient {
  ImageRanges from;
  std::shared_ptr<hoist::UniqueFd> memfd;
  RequestId request;  // The request that its end answers.
};
using TransferWay =
    std::variant<FilesToHost, SpillToHost, ClientToHost, CheckOnHost,
                 CheckOnDevice, CheckOnPageable, CheckOnDisk, HostToSpill,
                 HostToDevice, InPlaceToDevice, HostToClient, HostToPageable,
                 PageableToHost>;

struct Transfer {
  TransferId id;
  bool urgent = false;  // A stage waits for it; prefetches do not.
  GroupKey key;
  std::shared_ptr<const ModelSpec> model;
  std::shared_ptr<const Group> group;
  TransferWay way;

  // nullptr: another way.
  template <typename Way>
  const Way* by() const {
    return std::get_if<Way>(&way);
  }
};

struct TransferResult {
  SpillId spill;         // HostToSpill.
  Content content = {};  // ClientToHost, CheckOn*: the group's.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_TRANSFER_H_
