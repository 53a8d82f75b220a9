#include "client/src/session/shared_device.h"

#include <atomic>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "client/src/base/fork_guard.h"

namespace hoist {
namespace {

// The daemon's instance, the device's uuid and number.
using Key =
    std::tuple<std::array<uint8_t, 16>, std::array<uint8_t, 16>, uint32_t>;

struct Table {
  explicit Table(uint64_t fork_generation) : generation(fork_generation) {}

  const uint64_t generation;
  std::mutex mu;
  std::map<Key, std::weak_ptr<SharedDevice>> devices;  // Guarded by mu.
};

// Never destroyed: unclosed sessions may outlive static objects. Each fork
// generation has its own table: the fork may have happened under the parent
// table's lock.
Table& CurrentTable(uint64_t generation) {
  static std::atomic<Table*> current{nullptr};
  Table* table = current.load();
  while (table == nullptr || table->generation != generation) {
    auto made = std::make_unique<Table>(generation);
    if (current.compare_exchange_strong(table, made.get())) {
      return *made.release();
    }
  }
  return *table;
}

}  // namespace

std::shared_ptr<SharedDevice> SharedDevice::Get(const Uuid& instance_id,
                                                const DeviceFacts& facts,
                                                std::vector<Uuid> gpus) {
  Table& table = CurrentTable(ForkGeneration());
  const std::lock_guard<std::mutex> lock(table.mu);
  std::erase_if(table.devices,
                [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<SharedDevice>& entry =
      table.devices[{instance_id, facts.uuid, facts.index}];
  std::shared_ptr<SharedDevice> device = entry.lock();
  if (device == nullptr) {
    device = std::make_shared<SharedDevice>(facts, std::move(gpus));
    entry = device;
  }
  return device;
}

Status SharedDevice::OpenMapLocked() {
  if (map_ != nullptr) return Status();
  const std::vector<Uuid> cuda =
      facts_.kind == DeviceKind::kCuda ? std::vector{facts_.uuid} : gpus_;
  Result<std::unique_ptr<DeviceMap>> made = Status();
  if (cuda.empty()) made = CreateEmulatedDeviceMap(facts_.span_bytes);
  // Any GPU that this process sees will do.
  for (const Uuid& gpu : cuda) {
    made = CreateCudaDeviceMap(gpu, facts_.span_bytes);
    if (made.ok()) break;
  }
  if (!made.ok()) return made.status();
  map_ = std::move(made).value();
  return Status();
}

Status SharedDevice::ImportLocked(Arrival arrival) {
  SlabImport& slab = arrival.slab;
  const Range range = {slab.id, slab.bytes, slab.backing, {arrival.session}};
  const uint64_t offset = slab.offset;
  if (const auto it = ranges_.find(offset);
      it != ranges_.end() && it->second.id == slab.id) {
    it->second.sessions.insert(arrival.session);
    return Status();
  }
  if (slab.bytes == 0 || offset > facts_.span_bytes ||
      slab.bytes > facts_.span_bytes - offset) {
    return Status(Code::kInternal, "hoistd sent a slab outside its device");
  }
  // Slab ids only increase, so the slab with the higher id is the current one.
  auto it = ranges_.upper_bound(offset);
  if (it != ranges_.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second.bytes > offset) it = before;
  }
  while (it != ranges_.end() && it->first < offset + slab.bytes) {
    if (it->second.id >= slab.id) {
      return Status(Code::kInternal, "hoistd sent a slab that lies over slab " +
                                         std::to_string(it->second.id));
    }
    if (Status s = map_->Drop(it->second.id); !s.ok()) return s;
    it = ranges_.erase(it);
  }
  if (Status s = map_->Import(std::move(slab)); !s.ok()) return s;
  ranges_[offset] = range;
  return Status();
}

Status SharedDevice::CheckCoveredLocked(uint64_t offset_bytes,
                                        uint64_t bytes) const {
  const uint64_t end = offset_bytes + bytes;  // DecodeReply checked the sum.
  uint64_t at = offset_bytes;
  while (at < end) {
    auto it = ranges_.upper_bound(at);
    if (it == ranges_.begin()) break;
    --it;
    const uint64_t slab_end = it->first + it->second.bytes;
    if (slab_end <= at) break;
    // IPC slabs are not contiguous.
    if (it->second.backing == SlabBacking::kIpc && slab_end < end) break;
    at = slab_end;
  }
  if (at >= end) return Status();
  return Status(Code::kInternal,
                "hoistd leased bytes at " + std::to_string(offset_bytes) +
                    " in a slab that it did not send or that could not be "
                    "opened; connect again");
}

Status SharedDevice::GiveUpLocked(const void* session,
                                  Ranges::iterator* range) {
  std::set<const void*>& sessions = (*range)->second.sessions;
  if (sessions.size() == 1 && sessions.contains(session)) {
    if (Status s = map_->Drop((*range)->second.id); !s.ok()) return s;
    *range = ranges_.erase(*range);
    return Status();
  }
  sessions.erase(session);
  ++*range;
  return Status();
}

std::vector<uint64_t> SharedDevice::OpenOf(const void* session) {
  const std::lock_guard<std::mutex> lock(mu_);
  std::vector<uint64_t> ids;
  for (const auto& [offset, range] : ranges_) {
    if (range.sessions.contains(session)) ids.push_back(range.id);
  }
  for (const Arrival& arrival : waiting_) {
    if (arrival.session == session) ids.push_back(arrival.slab.id);
  }
  return ids;
}

std::vector<uint64_t> SharedDevice::Close(
    const void* session, std::span<const uint64_t> slabs,
    const std::function<bool(uint64_t offset, uint64_t bytes)>& uses) {
  std::set<uint64_t> closed(slabs.begin(), slabs.end());
  const std::lock_guard<std::mutex> lock(mu_);
  std::erase_if(waiting_, [&](const Arrival& arrival) {
    if (arrival.session != session || !closed.contains(arrival.slab.id)) {
      return false;
    }
    if (!uses(arrival.slab.offset, arrival.slab.bytes)) return true;
    closed.erase(arrival.slab.id);
    return false;
  });
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    const Range& range = it->second;
    if (!closed.contains(range.id) || !range.sessions.contains(session)) {
      ++it;
    } else if (uses(it->first, range.bytes) ||
               !GiveUpLocked(session, &it).ok()) {
      closed.erase(range.id);
      ++it;
    }
  }
  return {closed.begin(), closed.end()};
}

void SharedDevice::Leave(const void* session) {
  const std::lock_guard<std::mutex> lock(mu_);
  std::erase_if(waiting_, [&](const Arrival& arrival) {
    return arrival.session == session;
  });
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    // Mappings that cannot be unmapped end with the map.
    if (!GiveUpLocked(session, &it).ok()) ++it;
  }
}

Status SharedDevice::ImportAllLocked(const void* session,
                                     std::vector<SlabImport> slabs, bool open) {
  for (SlabImport& slab : slabs) {
    waiting_.push_back({session, std::move(slab)});
  }
  if (!waiting_.empty() || open) {
    if (Status s = OpenMapLocked(); !s.ok()) return s;
  }
  Status imported;
  for (Arrival& arrival : std::exchange(waiting_, {})) {
    Status s = ImportLocked(std::move(arrival));
    if (!s.ok() && imported.ok()) imported = std::move(s);
  }
  return imported;
}

Result<SlabHandle> SharedDevice::AdmitApart(const void* session,
                                            std::vector<SlabImport> slabs,
                                            uint64_t offset_bytes) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (Status s = ImportAllLocked(session, std::move(slabs), true); !s.ok()) {
    return s;
  }
  return map_->Handle(offset_bytes);
}

Result<const void*> SharedDevice::Admit(const void* session,
                                        std::vector<SlabImport> slabs,
                                        uint64_t offset_bytes,
                                        uint64_t image_bytes) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (Status s = ImportAllLocked(session, std::move(slabs), image_bytes > 0);
      !s.ok()) {
    return s;
  }
  if (image_bytes == 0) return static_cast<const void*>(nullptr);
  if (Status s = CheckCoveredLocked(offset_bytes, image_bytes); !s.ok()) {
    return s;
  }
  const void* address = map_->Address(offset_bytes);
  if (address == nullptr) {
    return Status(Code::kInternal, "an image lies in no imported slab");
  }
  return address;
}

}  // namespace hoist
