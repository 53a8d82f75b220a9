// One device's slabs in this process, shared by its sessions.
#ifndef HOIST_CLIENT_SRC_SESSION_SHARED_DEVICE_H_
#define HOIST_CLIENT_SRC_SESSION_SHARED_DEVICE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "client/src/device/device_map.h"
#include "client/src/messages/messages.h"
#include "hoist/shared/status.h"

namespace hoist {

// The imported slabs, and the images' places in them.
//
// Threads:  thread-safe; slabs are imported under the lock, one by one.
// Owns:     the map. The first slab makes it, so that a process without leases
//           on a GPU gets no context there.
class SharedDevice {
 public:
  using Uuid = std::array<uint8_t, 16>;

  SharedDevice(DeviceFacts facts, std::vector<Uuid> gpus)
      : facts_(std::move(facts)), gpus_(std::move(gpus)) {}

  // The device of the daemon's instance, one object for all its sessions; it
  // ends with the last. `gpus`: for in-place host memory, the GPUs that read
  // it.
  static std::shared_ptr<SharedDevice> Get(const Uuid& instance_id,
                                           const DeviceFacts& facts,
                                           std::vector<Uuid> gpus = {});

  // Maps a lease's slabs for `session`, and finds its image. nullptr: the image
  // is empty. A slab ends older ones at its place: the daemon reuses an address
  // range only when nothing there is leased. If this process cannot open the
  // device (no driver, hidden by CUDA_VISIBLE_DEVICES), the slabs are kept for
  // the next try.
  Result<const void*> Admit(const void* session, std::vector<SlabImport> slabs,
                            uint64_t offset_bytes, uint64_t image_bytes);
  // The same for an image in a separate slab, which begins at `offset_bytes`.
  Result<SlabHandle> AdmitApart(const void* session,
                                std::vector<SlabImport> slabs,
                                uint64_t offset_bytes);
  // Drops those of `slabs` that the session does not use. Returns those that it
  // no longer has. A slab is unmapped with its last session.
  std::vector<uint64_t> Close(
      const void* session, std::span<const uint64_t> slabs,
      const std::function<bool(uint64_t offset, uint64_t bytes)>& uses);
  // The session's slabs.
  std::vector<uint64_t> OpenOf(const void* session);
  // The session has ended.
  void Leave(const void* session);

 private:
  struct Range {
    uint64_t id = 0;
    uint64_t bytes = 0;
    SlabBacking backing = SlabBacking::kMemfd;
    std::set<const void*> sessions;  // Its holders.
  };
  // A slab that is not mapped yet.
  struct Arrival {
    const void* session;
    SlabImport slab;
  };
  using Ranges = std::map<uint64_t, Range>;

  // Ok: the session no longer has it.
  Status GiveUpLocked(const void* session, Ranges::iterator* range);
  Status OpenMapLocked();
  // Imports a lease's slabs, behind the waiting ones.
  Status ImportAllLocked(const void* session, std::vector<SlabImport> slabs,
                         bool open);
  Status ImportLocked(Arrival arrival);
  Status CheckCoveredLocked(uint64_t offset_bytes, uint64_t bytes) const;

  const DeviceFacts facts_;
  const std::vector<Uuid> gpus_;
  std::mutex mu_;
  // All below is guarded by mu_.
  std::unique_ptr<DeviceMap> map_;
  std::vector<Arrival> waiting_;  // In order of arrival, until map_ exists.
  Ranges ranges_;                 // By offset; slabs in `map_`.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_SESSION_SHARED_DEVICE_H_
