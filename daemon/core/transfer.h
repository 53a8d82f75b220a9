// What core asks the mover to do, as plain values.
#ifndef HOIST_DAEMON_CORE_TRANSFER_H_
#define HOIST_DAEMON_CORE_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/model/model.h"
#include "daemon/model/tensor.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/image_range.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

enum class TransferKind {
  kReadFile,   // Source files -> host.
  kReadSpill,  // Spill store -> host; checksums are compared.
  kReceive,    // A client's memfd -> host, or only hashed.
  kSpill,      // Host -> spill store.
  kToDevice,   // Host -> device.
  kToClient,   // Host -> a client's memfd.
};

// Bytes of a source file's sheet, and where on the host they are to lie.
struct SheetRead {
  uint32_t file = 0;    // Index into ModelSpec::files.
  uint64_t offset = 0;  // In its sheet.
  uint64_t bytes = 0;
  uint64_t host_offset = 0;
};

// The memory it names stays put until TransferDone.
struct Transfer {
  TransferId id;
  TransferKind kind = TransferKind::kReadFile;
  bool urgent = false;  // A stage waits for it; prefetches do not.
  GroupKey key;
  std::shared_ptr<const ModelSpec> model;
  std::shared_ptr<const Group> group;
  std::vector<SheetRead> reads;  // kReadFile.
  // kReceive, unless it only hashes, kReadSpill, kSpill: of the whole image.
  std::optional<uint64_t> host_offset;
  ImageRanges from;                        // kToDevice, kToClient.
  DeviceIndex device;                      // kToDevice.
  uint64_t device_offset = 0;              // kToDevice.
  SpillId spill;                           // kReadSpill.
  User owner;                              // kSpill.
  Readers readers = Readers::kOwner;       // kSpill.
  std::shared_ptr<hoist::UniqueFd> memfd;  // kReceive, kToClient.
  RequestId request;                       // kToClient: what its end answers.
};

struct TransferResult {
  SpillId spill;         // kSpill.
  Content content = {};  // kReceive: the group's.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_TRANSFER_H_
