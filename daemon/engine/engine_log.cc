#include "daemon/engine/engine_log.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/one_line.h"
#include "daemon/base/overloaded.h"
#include "daemon/types/tier.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

bool Wanted() { return spdlog::should_log(spdlog::level::debug); }

std::string Milliseconds(absl::Duration duration) {
  return absl::StrFormat("%.1f ms", absl::ToDoubleMilliseconds(duration));
}

std::string WayOf(const Transfer& transfer) {
  const auto to = [](absl::string_view from, DeviceIndex device) {
    return absl::StrCat(from, " -> ", ToString(OnDevice(device)));
  };
  return std::visit(
      Overloaded{
          [](const FilesToHost&) { return std::string("file -> host"); },
          [](const SpillToHost&) { return std::string("disk -> host"); },
          [](const ClientToHost& way) {
            return std::string(way.host_offset.has_value() ? "client -> host"
                                                           : "client: hash");
          },
          [](const CheckOnHost&) { return std::string("check on host"); },
          [](const CheckOnDevice& way) {
            return absl::StrCat("check on ", ToString(OnDevice(way.device)));
          },
          [](const CheckOnPageable&) {
            return std::string("check on pageable");
          },
          [](const CheckOnDisk&) { return std::string("check on disk"); },
          [](const HostToSpill&) { return std::string("host -> disk"); },
          [&](const HostToDevice& way) { return to("host", way.device); },
          [&](const InPlaceToDevice& way) {
            return to("in place", way.device);
          },
          [](const HostToClient&) { return std::string("host -> client"); },
          [](const HostToPageable&) { return std::string("host -> pageable"); },
          [](const PageableToHost&) { return std::string("pageable -> host"); },
      },
      transfer.way);
}

const char* ToString(SlabWork::Kind kind) {
  switch (kind) {  // No default: a new one must fail to compile here.
    case SlabWork::Kind::kMake:
      return "made";
    case SlabWork::Kind::kDestroy:
      return "destroyed";
    case SlabWork::Kind::kZero:
      return "zeroed";
  }
  return "?";
}

// Bytes read or copied; of files, without those that others already read.
uint64_t BytesOf(const Transfer& transfer) {
  const auto* files = transfer.by<FilesToHost>();
  if (files == nullptr) return transfer.group->image_bytes;
  uint64_t bytes = 0;
  for (const SheetRead& read : files->reads) bytes += read.from.bytes;
  return bytes;
}

// A group being published has no model yet.
std::string NameOf(const Transfer& transfer) {
  return absl::StrCat(
      transfer.model == nullptr ? "" : OneLine(transfer.model->name) + "/",
      OneLine(transfer.group->name));
}

std::string TextOf(const NodeEvent& event) {
  std::string text = ToString(event.kind);
  if (!event.model.empty()) {
    absl::StrAppend(&text, " ", OneLine(event.model));
    if (!event.group.empty()) absl::StrAppend(&text, "/", OneLine(event.group));
  }
  if (event.at.has_value()) {
    absl::StrAppend(&text, " on ", ToString(*event.at));
  }
  if (event.session != SessionId()) {
    absl::StrAppend(&text, " session ", event.session.number());
  }
  if (event.bytes > 0) absl::StrAppend(&text, ", ", HumanBytes(event.bytes));
  if (!event.detail.empty()) {
    absl::StrAppend(&text, ": ", OneLine(event.detail));
  }
  return text;
}

// Events at a level above debug.
void TellOperator(const NodeEvent& event) {
  if (event.kind == EventKind::kDiskFull) {
    SPDLOG_WARN(
        "the disk is full: {} published and on no disk stay on the host, which "
        "takes no more in the end; room for that much in disk.spill_dir and "
        "disk.spill_capacity would be enough, or models that are forgotten: {}",
        HumanBytes(event.bytes), OneLine(event.detail));
  } else if (event.kind == EventKind::kDiskWritable) {
    SPDLOG_INFO("the disk has room again; {} are still to be written to it",
                HumanBytes(event.bytes));
  } else if (event.kind == EventKind::kModelForgotten &&
             !event.detail.empty()) {
    SPDLOG_INFO("model {} is forgotten: {}", absl::CHexEscape(event.model),
                OneLine(event.detail));
  }
}

}  // namespace

void EngineLog::Tell(const Effects& effects, absl::Time now) {
  for (const NodeEvent& event : effects.events) TellOperator(event);
  if (!Wanted()) return;
  for (const SlabWork& work : effects.slabs) {
    SPDLOG_DEBUG("slab {} of device {} is {}: {}{}", work.slab.id.number(),
                 work.device.number(), ToString(work.kind),
                 HumanBytes(work.slab.bytes),
                 work.slab.writable ? ", of an arena"
                 : work.slab.apart  ? ", read in place"
                                    : "");
  }
  for (const NodeEvent& event : effects.events) {
    SPDLOG_DEBUG("{}", TextOf(event));
  }
  for (const EndedPlan& ended : effects.ended) {
    SPDLOG_DEBUG("plan {} on device {} ends", ended.plan.number(),
                 ended.device.number());
  }
  for (const CrowdedPlan& crowded : effects.crowded) {
    SPDLOG_DEBUG("plan {} is to give back what it holds on the host: {}",
                 crowded.plan.number(),
                 crowded.bytes == 0 ? "all but what it needs next"
                                    : HumanBytes(crowded.bytes));
  }
  for (const Transfer& transfer : effects.transfers) {
    under_way_[transfer.id] = {
        absl::StrCat(WayOf(transfer), " ", NameOf(transfer)), BytesOf(transfer),
        now};
  }
}

void EngineLog::Staged(const LeaseGrant& grant, absl::string_view name,
                       SessionId session, absl::Duration waited) {
  if (!Wanted()) return;
  SPDLOG_DEBUG("stage of {} on device {} by session {} waited {}",
               OneLine(name), grant.device.number(), session.number(),
               Milliseconds(waited));
}

void EngineLog::Planned(const PlanGrant& plan, SessionId session,
                        absl::Duration waited) {
  if (!Wanted()) return;
  const auto resident =
      std::count_if(plan.groups.begin(), plan.groups.end(),
                    [](const PlannedGroup& group) { return group.resident; });
  SPDLOG_DEBUG(
      "plan {} of session {} stands on device {}: budget {}, {} groups, {} "
      "resident ({}), ring {}, {} streamed a pass, {} steps ahead; waited {}",
      plan.id.number(), session.number(), plan.device.number(),
      HumanBytes(plan.budget_bytes), plan.groups.size(), resident,
      HumanBytes(plan.resident_bytes), HumanBytes(plan.ring_bytes),
      HumanBytes(plan.streamed_bytes), plan.lead, Milliseconds(waited));
}

void EngineLog::Ended(TransferId id, const absl::Status& status,
                      absl::Time now) {
  if (under_way_.empty()) return;
  const auto found = under_way_.find(id);
  if (found == under_way_.end()) return;  // It began at another log level.
  const UnderWay done = std::move(found->second);
  under_way_.erase(found);
  if (!Wanted()) return;
  const absl::Duration took = now - done.since;
  if (!status.ok()) {
    SPDLOG_DEBUG("{}: failed after {}: {}", done.what, Milliseconds(took),
                 OneLine(status.ToString()));
    return;
  }
  const double seconds = absl::ToDoubleSeconds(took);
  SPDLOG_DEBUG(
      "{}: {} B in {}, {:.0f} MB/s", done.what, done.bytes, Milliseconds(took),
      seconds > 0 ? static_cast<double>(done.bytes) / seconds / 1e6 : 0.0);
}

void EngineLog::SlabZeroed(DeviceIndex device, SlabId slab,
                           const absl::Status& status) {
  if (!Wanted() || status.ok()) return;
  SPDLOG_DEBUG("slab {} of device {} could not be zeroed, and goes: {}",
               slab.number(), device.number(), OneLine(status.ToString()));
}

void EngineLog::SlabMade(DeviceIndex device, SlabId slab,
                         const absl::Status& status) {
  if (!Wanted()) return;
  SPDLOG_DEBUG("slab {} of device {} {}", slab.number(), device.number(),
               status.ok()
                   ? "is there"
                   : "could not be made: " + OneLine(status.ToString()));
}

}  // namespace hoistd
