// One device's slabs in this process, shared by its sessions.
#ifndef HOIST_CLIENT_SRC_SHARED_DEVICE_H_
#define HOIST_CLIENT_SRC_SHARED_DEVICE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "client/src/device_map.h"
#include "client/src/messages.h"
#include "hoist/shared/status.h"

namespace hoist {

// Which slabs are imported, and where an image lies in them.
//
// Threads:  thread-safe; slabs are imported under the lock, one by one.
// Owns:     the map. It is made with the first slab, so that a process that
//           leases nothing on a GPU gets no context there.
class SharedDevice {
 public:
  using Uuid = std::array<uint8_t, 16>;

  SharedDevice(DeviceFacts facts, std::vector<Uuid> gpus)
      : facts_(std::move(facts)), gpus_(std::move(gpus)) {}

  // The device of the daemon's instance, the same object for all sessions that
  // hold it; gone with the last of them. `gpus`: those that read host memory
  // in place, where it is that.
  static std::shared_ptr<SharedDevice> Get(const Uuid& instance_id,
                                           const DeviceFacts& facts,
                                           std::vector<Uuid> gpus = {});

  // Maps the slabs that came with a lease of `session`, which from then on has
  // them, then finds its image. nullptr: the
  // image is empty. A slab that replaces older ones at its place ends them: the
  // daemon gives an address range out again only when nothing there is leased.
  // Where this process cannot open the device (no driver, hidden by
  // CUDA_VISIBLE_DEVICES) the slabs are kept, and tried again next time.
  Result<const void*> Admit(const void* session, std::vector<SlabImport> slabs,
                            uint64_t offset_bytes, uint64_t image_bytes);
  // The same for an image apart, whose slab begins at `offset_bytes`.
  Result<SlabHandle> AdmitApart(const void* session,
                                std::vector<SlabImport> slabs,
                                uint64_t offset_bytes);
  // Which of these slabs the session has no more: none whose place it uses. A
  // slab is unmapped with the last session that has it.
  std::vector<uint64_t> Close(
      const void* session, std::span<const uint64_t> slabs,
      const std::function<bool(uint64_t offset, uint64_t bytes)>& uses);
  // Those that the session has.
  std::vector<uint64_t> OpenOf(const void* session);
  // The session has ended.
  void Leave(const void* session);

 private:
  struct Range {
    uint64_t id = 0;
    uint64_t bytes = 0;
    SlabBacking backing = SlabBacking::kMemfd;
    std::set<const void*> sessions;  // That have it.
  };
  // That has arrived, and could not be mapped yet.
  struct Arrival {
    const void* session;
    SlabImport slab;
  };
  using Ranges = std::map<uint64_t, Range>;

  // Ok: the session has it no more.
  Status GiveUpLocked(const void* session, Ranges::iterator* range);
  Status OpenMapLocked();
  // What came with a lease, and what waits.
  Status ImportAllLocked(const void* session, std::vector<SlabImport> slabs,
                         bool open);
  Status ImportLocked(Arrival arrival);
  Status CheckCoveredLocked(uint64_t offset_bytes, uint64_t bytes) const;

  const DeviceFacts facts_;
  const std::vector<Uuid> gpus_;
  std::mutex mu_;
  // All below is guarded by mu_.
  std::unique_ptr<DeviceMap> map_;
  std::vector<Arrival> waiting_;  // In order of arrival, until map_ is.
  Ranges ranges_;                 // By offset; what `map_` has.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_SHARED_DEVICE_H_
