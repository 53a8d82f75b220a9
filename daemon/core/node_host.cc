// The host tier: how a copy there gets its space and its bytes.
#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/core/node.h"

namespace hoistd {

// Whether the group's host copy is made of parts of sheets. Otherwise it is an
// image: published, or of no bytes.
bool Node::InParts(GroupKey key) const {
  const GroupEntry& group = *copies_.FindGroup(key);
  return group.in_files && !group.group->runs.empty();
}

std::vector<SheetKey> Node::SheetsOf(ModelId id) const {
  const Model& model = *copies_.FindModel(id)->model;
  std::vector<SheetKey> sheets;
  for (const FileIdentity& file : model.spec->identities) {
    sheets.push_back({file, models_.ReadersOf(model)});
  }
  return sheets;
}

// Gives the absent copy space and has it filled; false: there is none now,
// need.blocked says why. It may be there at once, of what others brought.
bool Node::BringToHost(const CopyRef& ref, Copy& copy, Need& need,
                       absl::Time now, Effects& effects) {
  if (InParts(ref.key)) return BringParts(ref, copy, need, now, effects);
  if (!Reserve(ref, copy, need, now, effects)) return false;
  StartHostFill(ref, copy, need.urgent, effects);
  return true;
}

bool Node::BringParts(const CopyRef& ref, Copy& copy, Need& need,
                      absl::Time now, Effects& effects) {
  if (need.tried_at == space_epoch_) return false;  // Nothing has changed.
  const uint64_t epoch = space_epoch_;
  const GroupEntry& group = *copies_.FindGroup(ref.key);
  const std::vector<SheetKey> sheets = SheetsOf(ref.key.model);
  // What is there stays from now on: eviction spares what an absent copy uses.
  const std::vector<SheetSpan> missing =
      parts_.Join(ref.key, *group.group, sheets);
  const absl::StatusOr<std::vector<PlacedSpan>> placed =
      PlaceSpans(sheets, missing, need, now, effects);
  if (!placed.ok()) {
    LeaveParts(ref.key);
    need.blocked = {placed.status(), OnHost(), BytesOf(missing)};
    need.tried_at = epoch;
    return false;
  }
  copies_.Apply(copy, ResidencyEvent::kReserve);
  copy.last_use = now;
  copy.leaving = false;
  if (!missing.empty()) {
    FilesToHost way;
    for (const auto& [span, offset, owner] : *placed) {
      way.reads.push_back({span.file, span.from, span.bytes(), offset});
    }
    const TransferId filler =
        Start(ref.key, std::move(way), need.urgent, effects);
    for (const auto& [span, offset, owner] : *placed) {
      parts_.Add(ref.key, span, offset, owner, filler);
    }
  }
  PartsMayBeThere(ref, copy, now, effects);
  if (!need.urgent) return true;
  // What others only prefetch holds somebody up now.
  for (const TransferId filler : parts_.FillersOf(ref.key)) {
    Hurry(filler, effects);
  }
  return true;
}

// Gives all of the spans space, or none. One that is missing alone gets one
// place, if need be by eviction; otherwise it is enough that there is room in
// sum. Nobody leaves before it is known that all of them will fit: else two
// needs could push out each other's parts for ever.
absl::StatusOr<std::vector<Node::PlacedSpan>> Node::PlaceSpans(
    const std::vector<SheetKey>& sheets, const std::vector<SheetSpan>& missing,
    const Need& need, absl::Time now, Effects& effects) {
  std::vector<PlacedSpan> placed;
  const bool whole =
      std::all_of(missing.begin(), missing.end(), [&](const SheetSpan& span) {
        return PlaceWhole(sheets[span.file], span, placed);
      });
  if (whole) return placed;
  for (const PlacedSpan& taken : placed) host_.Free(taken.host_offset);
  placed.clear();

  std::optional<std::vector<OwnerId>> victims;
  if (missing.size() == 1) victims = HostHole(missing[0].space(), need, now);
  if (!victims.has_value()) {
    uint64_t space = 0;
    for (const SheetSpan& span : missing) space += span.space();
    victims = HostVictims(need, now, [&](KeepValueFn worth) {
      return host_.CheapestRoom(space, worth);
    });
  }
  if (!victims.has_value()) return absl::ResourceExhaustedError("");
  if (!EvictAll(*victims, now, effects)) {
    return absl::UnavailableError("waiting for spills to disk");
  }
  for (const SheetSpan& span : missing) {
    if (!PlaceWhole(sheets[span.file], span, placed)) {
      PlaceInPieces(sheets[span.file], span, placed);
    }
  }
  return placed;
}

// Beside what lies before it in the sheet if it can be, so that both are copied
// as one.
bool Node::PlaceWhole(const SheetKey& sheet, const SheetSpan& span,
                      std::vector<PlacedSpan>& placed) {
  const OwnerId owner = copies_.NewOwner();
  std::optional<uint64_t> offset = parts_.EndBefore(sheet, span.from);
  if (offset.has_value() && host_.IsFree(*offset, span.space())) {
    host_.AllocateAt(*offset, span.space(), owner);
  } else {
    offset = host_.Allocate(span.space(), owner);
  }
  if (offset.has_value()) placed.push_back({span, *offset, owner});
  return offset.has_value();
}

// There is room in sum. Extents are whole pages, and so is what is cut off.
void Node::PlaceInPieces(const SheetKey& sheet, SheetSpan span,
                         std::vector<PlacedSpan>& placed) {
  while (!PlaceWhole(sheet, span, placed)) {
    const uint64_t bytes = host_.largest_free();
    HOIST_CHECK(bytes > 0 && bytes < span.bytes());
    const SheetSpan piece = {span.file, span.from, span.from + bytes};
    HOIST_CHECK(PlaceWhole(sheet, piece, placed));
    span.from = piece.to;
  }
}

uint64_t Node::BytesOf(const std::vector<SheetSpan>& spans) {
  uint64_t bytes = 0;
  for (const SheetSpan& span : spans) bytes += span.bytes();
  return bytes;
}

// The filling copy is complete if nothing fills any of its parts any more.
void Node::PartsMayBeThere(const CopyRef& ref, Copy& copy, absl::Time now,
                           Effects& effects) {
  const std::vector<TransferId> fillers = parts_.FillersOf(ref.key);
  if (!fillers.empty()) {
    copy.filling = fillers.front();
    return;
  }
  copy.filling.reset();
  HostPresent(ref, copy, now, effects);
}

void Node::HostPresent(const CopyRef& ref, Copy& copy, absl::Time now,
                       Effects& effects) {
  copies_.Apply(copy, ResidencyEvent::kFillDone);
  copy.last_use = now;
  if (parts_.Has(ref.key)) parts_.Settle(ref.key);
  ++space_epoch_;  // It can be evicted now.
  needs_.Wake(ref.key);
  Note(effects, EventKind::kCopyPresent, ref);
}

void Node::HostAbsent(const CopyRef& ref, Copy& copy,
                      const absl::Status& status, Effects& effects) {
  FreeSpace(ref, copy);
  copies_.Apply(copy, ResidencyEvent::kFillFailed);
  Note(effects, EventKind::kCopyFailed, ref, std::string(status.message()));
}

// The end of a read. Its parts may be of use to several copies, and to none of
// the group that asked for them.
void Node::PartsFilled(TransferId filler, const absl::Status& status,
                       absl::Time now, Effects& effects) {
  if (status.ok()) KeepParts(filler);
  std::vector<FreedExtent> freed;
  const std::vector<GroupKey> users =
      status.ok() ? parts_.Filled(filler, freed) : parts_.Failed(filler, freed);
  FreeExtents(freed);
  for (const GroupKey key : users) {
    const CopyRef ref = {key, kHost};
    Copy& copy = copies_.At(ref);
    if (status.ok()) {
      PartsMayBeThere(ref, copy, now, effects);
    } else {
      HostAbsent(ref, copy, status, effects);
      FailNeeds(key, status, effects);
    }
  }
}

// What was restored is kept already.
void Node::KeepParts(TransferId filler) {
  if (!options_.keeps) return;
  for (const PartBook::Filling& part : parts_.FilledBy(filler)) {
    if (part.restored) continue;
    Keep(KeptOnHost{
        part.host_offset,
        KeptPart{part.sheet.file, models_.ReaderOf(part.sheet.readers),
                 part.from, part.bytes}});
  }
}

void Node::LeaveParts(GroupKey key) {
  std::vector<FreedExtent> freed;
  parts_.Leave(key, freed);
  FreeExtents(freed);
}

void Node::FreeExtents(const std::vector<FreedExtent>& freed) {
  for (const FreedExtent& extent : freed) {
    host_.Free(extent.offset);
    Keep(KeptOnHost{extent.offset, {}});
  }
  if (!freed.empty()) ++space_epoch_;
}

// Where on the host the bytes of a usable copy lie.
ImageRanges Node::RangesOf(const CopyRef& ref, const Copy& copy) const {
  const Group& group = *copies_.FindGroup(ref.key)->group;
  if (parts_.Has(ref.key)) return parts_.RangesOf(ref.key, group);
  if (group.image_bytes == 0) return {};
  return {{copy.offset, 0, group.image_bytes}};
}

}  // namespace hoistd
