// The rig's memory: whose bytes lie where, and that they are right.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {
namespace {

// Where on the host the transfer writes, all in one.
std::optional<uint64_t> WrittenAt(const Transfer& transfer) {
  if (const auto* way = transfer.by<SpillToHost>()) return way->host_offset;
  if (const auto* way = transfer.by<ClientToHost>()) return way->host_offset;
  if (const auto* way = transfer.by<PageableToHost>()) return way->host_offset;
  return std::nullopt;
}

// Where on which device.
std::optional<std::pair<DeviceIndex, uint64_t>> WrittenOn(
    const Transfer& transfer) {
  if (const auto* way = transfer.by<HostToDevice>()) {
    return std::pair(way->device, way->device_offset);
  }
  if (const auto* way = transfer.by<InPlaceToDevice>()) {
    return std::pair(way->device, way->device_offset);
  }
  return std::nullopt;
}

}  // namespace

void NodeRig::Fill(Memory& memory, uint64_t offset, uint64_t bytes, Label to) {
  EXPECT_EQ(offset % kPage, 0u);
  for (uint64_t p = offset / kPage; p < (offset + bytes) / kPage; ++p) {
    memory.at(p) = to;
  }
}

void NodeRig::ExpectAll(const Memory& memory, uint64_t offset, uint64_t bytes,
                        Label label, const char* what) {
  for (uint64_t p = offset / kPage; p < (offset + bytes) / kPage; ++p) {
    EXPECT_EQ(memory.at(p), label) << what << ", page " << p;
  }
}

void NodeRig::FillImage(Memory& memory, uint64_t offset,
                        const Group& group) const {
  EXPECT_EQ(offset % kPage, 0u);
  uint64_t page = offset / kPage;
  for (const Label label : images_.at(&group)) memory.at(page++) = label;
}

void NodeRig::ExpectImage(const Memory& memory, uint64_t offset,
                          const Group& group, const char* what) const {
  uint64_t page = offset / kPage;
  for (const Label label : images_.at(&group)) {
    EXPECT_EQ(memory.at(page), label) << what << ", page " << page;
    ++page;
  }
}

void NodeRig::ExpectRanges(const ImageRanges& ranges, const Group& group,
                           const char* what) const {
  const std::vector<Label>& image = images_.at(&group);
  uint64_t at = 0;
  for (const ImageRange& range : ranges) {
    EXPECT_EQ(range.image_offset, at) << "ranges have gaps";
    for (uint64_t p = 0; p < range.bytes / kPage && !image.empty(); ++p) {
      EXPECT_EQ(host_.at(range.host_offset / kPage + p),
                image.at(at / kPage + p))
          << what << ", page " << p;
    }
    at += range.bytes;
  }
  EXPECT_EQ(at, std::max(group.image_bytes, image.empty() ? at : 0));
}

void NodeRig::Begin(const Transfer& transfer) {
  const Label mine = (writing_[transfer.id] = std::make_unique<int>()).get();
  const uint64_t bytes = transfer.group->image_bytes;
  if (const auto* spill = transfer.by<SpillToHost>()) {
    EXPECT_TRUE(spills_.contains(spill->from));
    if (spills_.contains(spill->from)) {
      EXPECT_EQ(spills_.at(spill->from)->name, transfer.group->name);
    }
  }
  if (const auto* files = transfer.by<FilesToHost>()) {
    for (const SheetRead& read : files->reads) {
      Fill(host_, read.host_offset, read.from.bytes, mine);
    }
  }
  if (const std::optional<uint64_t> to = WrittenAt(transfer)) {
    Fill(host_, *to, bytes, mine);
  }
  if (const auto* way = transfer.by<HostToPageable>()) {
    Fill(pageable_, way->pageable_offset, bytes, mine);
  }
  if (const auto* way = transfer.by<CheckOnDevice>()) {
    ExpectImage(device_memory_[way->device.number()], way->device_offset,
                *transfer.group, "a check of what is not there");
  }
  if (const auto* way = transfer.by<CheckOnPageable>()) {
    ExpectImage(pageable_, way->pageable_offset, *transfer.group,
                "a check of what is not there");
  }
  if (const auto to = WrittenOn(transfer)) {
    const uint32_t d = to->first.number();
    EXPECT_TRUE(devices_[d]->Covers(to->second, bytes));
    Fill(device_memory_[d], to->second, bytes, mine);
  }
}

void NodeRig::End(const Transfer& transfer, const absl::Status& status) {
  if (transfer.by<CheckOnDisk>() != nullptr) return;
  if (const auto* way = transfer.by<CheckOnDevice>()) {
    ExpectImage(device_memory_[way->device.number()], way->device_offset,
                *transfer.group, "it moved while it was checked");
    return;
  }
  if (const auto* way = transfer.by<CheckOnPageable>()) {
    ExpectImage(pageable_, way->pageable_offset, *transfer.group,
                "it moved while it was checked");
    return;
  }
  if (transfer.by<CheckOnHost>() != nullptr) {
    laid_.erase(transfer.group.get());
    return;
  }
  const Label mine = writing_.at(transfer.id).get();
  const uint64_t bytes = transfer.group->image_bytes;
  if (const auto written = WrittenOn(transfer)) {
    const auto [device, offset] = *written;
    Memory& memory = device_memory_[device.number()];
    ExpectAll(memory, offset, bytes, mine, "two write to the device");
    Fill(memory, offset, bytes, nullptr);
    const auto* in_place = transfer.by<InPlaceToDevice>();
    const bool changed = in_place == nullptr
                             ? changed_on_host_.contains(transfer.group.get())
                             : changed_on_device_.contains(
                                   {in_place->from, in_place->from_offset});
    if (status.ok() && changed) {
      changed_on_device_.insert(*written);
    } else if (status.ok()) {
      changed_on_device_.erase(*written);
    }
    // What it was to repair is as wrong as before.
    if (status.ok() || changed_on_device_.contains(*written)) {
      FillImage(memory, offset, *transfer.group);
    }
  } else if (const auto* files = transfer.by<FilesToHost>()) {
    for (const SheetRead& read : files->reads) {
      ExpectAll(host_, read.host_offset, read.from.bytes, mine,
                "two write to the host");
      for (uint64_t at = 0; at < read.from.bytes; at += kPage) {
        host_.at((read.host_offset + at) / kPage) =
            status.ok() ? LabelOf(transfer.model->identities[read.from.file],
                                  (read.from.offset + at) / kPage)
                        : nullptr;
      }
    }
  } else if (const auto* way = transfer.by<HostToPageable>()) {
    ExpectAll(pageable_, way->pageable_offset, bytes, mine,
              "two write to pageable memory");
    Fill(pageable_, way->pageable_offset, bytes, nullptr);
    if (status.ok()) {
      FillImage(pageable_, way->pageable_offset, *transfer.group);
    }
  } else if (const std::optional<uint64_t> to = WrittenAt(transfer)) {
    ExpectAll(host_, *to, bytes, mine, "two write to the host");
    Fill(host_, *to, bytes, nullptr);
    // Pageable memory has what the host had.
    if (transfer.by<PageableToHost>() == nullptr) {
      changed_on_host_.erase(transfer.group.get());
    }
    if (status.ok()) FillImage(host_, *to, *transfer.group);
  }
}

void NodeRig::Check() {
  for (const TierUse& tier : Tiers()) {
    uint64_t held = 0;
    for (const Holder& holder : tier.holders) held += holder.bytes;
    EXPECT_EQ(tier.used_bytes, held) << ToString(tier.at);
    if (tier.at.tier == Tier::kDisk) continue;
    EXPECT_LE(tier.used_bytes, tier.allocated_bytes);
    if (tier.at.tier != Tier::kDevice) {
      EXPECT_LE(tier.allocated_bytes, tier.capacity_bytes);
      continue;
    }
    const uint32_t d = tier.at.device.number();
    // A device's capacity may fall below what its slabs take.
    EXPECT_LE(tier.allocated_bytes, (d < in_place() ? options_.device_pages[d]
                                                    : options_.in_place_pages) *
                                        kPage);
    CheckSlabWork(tier);
    std::map<uint64_t, uint64_t> leased;  // By offset: once each.
    for (const auto& [id, lease] : leases_) {
      const auto& [session, grant] = lease;
      if (grant.device.number() != d) continue;
      leased[grant.offset] = std::max(grant.bytes, kPage);
      EXPECT_TRUE(devices_[d]->Covers(grant.offset, grant.bytes));
      const auto spec = node_->copies().SpecOf(grant.key.model);
      ASSERT_OK(spec) << "a leased model was forgotten";
      if (UnderRepair(grant)) continue;
      ExpectImage(device_memory_[d], grant.offset,
                  *(*spec)->groups[grant.key.group.number()],
                  "a leased image changed");
    }
    for (const auto& [id, plan] : plans_) {
      if (plan.grant.device.number() != d || plan.grant.ring_bytes == 0) {
        continue;
      }
      EXPECT_TRUE(
          leased.emplace(plan.grant.ring_offset, plan.grant.ring_bytes).second)
          << "a ring where a leased image is";
    }
    CheckArenas(tier.at.device, leased);
    uint64_t sum = 0;
    for (const auto& [offset, bytes] : leased) sum += bytes;
    EXPECT_EQ(tier.leased_bytes, sum) << ToString(tier.at);
  }
  for (const auto& [id, transfer] : moving_) {
    if (const auto* spill = transfer.by<HostToSpill>()) {
      ExpectImage(host_, spill->host_offset, *transfer.group,
                  "a spill reads other bytes");
    } else if (const auto* out = transfer.by<HostToPageable>()) {
      ExpectImage(host_, out->host_offset, *transfer.group,
                  "a copy to pageable memory reads other bytes");
    } else if (const auto* in = transfer.by<PageableToHost>()) {
      ExpectImage(pageable_, in->pageable_offset, *transfer.group,
                  "a copy from pageable memory reads other bytes");
    } else if (const auto* device = transfer.by<HostToDevice>()) {
      ExpectRanges(device->from, *transfer.group,
                   "a copy to a device reads other bytes");
    } else if (const auto* in_place = transfer.by<InPlaceToDevice>()) {
      ExpectImage(device_memory_[in_place->from.number()],
                  in_place->from_offset, *transfer.group,
                  "a copy from in place reads other bytes");
    } else if (const auto* client = transfer.by<HostToClient>()) {
      ExpectRanges(client->from, *transfer.group,
                   "a copy to a client reads other bytes");
    }
  }
  CheckPersisted();
  std::map<SessionId, uint32_t> leases;
  for (const auto& [id, lease] : leases_) ++leases[lease.first];
  for (const auto& [id, session] : node_->tenure().sessions().all()) {
    EXPECT_EQ(session.leases.size(), leases[id]);
  }
  CheckPlans();
  CheckQuotas();
  CheckSlabs();
  CheckDescriptors();
}

}  // namespace hoistd::testing
