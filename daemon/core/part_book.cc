#include "daemon/core/part_book.h"

#include <algorithm>
#include <iterator>

#include "daemon/base/check.h"
#include "daemon/base/round.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {

uint64_t PartSpace(uint64_t bytes) {
  return RoundUp(bytes, hoist::kImageAlignment);
}

std::vector<SheetRange> PartBook::SpansOf(const Group& group) {
  std::vector<SheetRange> spans;
  spans.reserve(group.runs.size() + group.reaches.size());
  const auto add = [&spans](const SheetRange& range) {
    const uint64_t from = RoundDown(range.offset, kGranule);
    spans.push_back({range.file, from, RoundUp(range.end(), kGranule) - from});
  };
  for (const SourceRun& run : group.runs) add(run.from);
  for (const SheetRange& reach : group.reaches) add(reach);
  std::sort(spans.begin(), spans.end());
  std::vector<SheetRange> joined;
  for (const SheetRange& span : spans) {
    if (!joined.empty() && joined.back().file == span.file &&
        joined.back().end() >= span.offset) {
      SheetRange& last = joined.back();
      last.bytes = std::max(last.end(), span.end()) - last.offset;
    } else {
      joined.push_back(span);
    }
  }
  return joined;
}

void PartBook::Take(GroupKey copy, User& user, const SheetRange& span,
                    OwnerId owner) {
  const auto at = std::ranges::upper_bound(user.taken, span, {}, &Taken::span);
  user.taken.insert(at, {span, owner});
  std::vector<GroupKey>& users = At(owner).users;
  // It was the last added to its own parts.
  if (!users.empty() && users.back() == copy) return;
  users.push_back(copy);
  user.parts.push_back(owner);
}

void PartBook::TakeFrom(const SheetKey& key, GroupKey copy, User& user,
                        const SheetRange& span, std::vector<SheetRange>& rest) {
  const auto found = sheets_.find(key);
  if (found == sheets_.end()) {
    rest.push_back(span);
    return;
  }
  const Sheet& sheet = found->second;
  uint64_t at = span.offset;
  auto part = sheet.upper_bound(at);
  if (part != sheet.begin() && At(std::prev(part)->second).end() > at) --part;
  for (; part != sheet.end() && part->first < span.end(); ++part) {
    if (part->first > at) rest.push_back({span.file, at, part->first - at});
    at = std::max(at, part->first);
    const uint64_t end = std::min(span.end(), At(part->second).end());
    Take(copy, user, {span.file, at, end - at}, part->second);
    at = end;
  }
  if (at < span.end()) rest.push_back({span.file, at, span.end() - at});
}

uint64_t PartBook::BytesOf(const std::vector<SheetRange>& spans) {
  uint64_t bytes = 0;
  for (const SheetRange& span : spans) bytes += span.bytes;
  return bytes;
}

std::vector<SheetRange> PartBook::Join(GroupKey copy, const Group& group,
                                       std::vector<SheetKey> sheets) {
  const auto [it, is_new] = users_.try_emplace(copy);
  HOIST_CHECK(is_new);
  User& user = it->second;
  user.sheets = std::move(sheets);
  std::vector<SheetRange>
      others;  // That not everyone may read, if they are there.
  for (const SheetRange& span : SpansOf(group)) {
    const FileIdentity& file = user.sheets[span.file].file;
    TakeFrom({file, Zone::kEveryone}, copy, user, span, others);
  }
  std::vector<SheetRange> missing;
  for (const SheetRange& span : others) {
    const SheetKey& own = user.sheets[span.file];
    if (own.readers == Zone::kEveryone) {
      missing.push_back(span);
    } else {
      TakeFrom(own, copy, user, span, missing);
    }
  }
  return missing;
}

void PartBook::Add(GroupKey copy, const SheetRead& read, TransferId by) {
  const SheetRange& span = read.from;
  User& user = users_.at(copy);
  Part part;
  part.sheet = user.sheets[span.file];
  part.from = span.offset;
  part.bytes = span.bytes;
  part.host_offset = read.host_offset;
  part.filling = by;
  HOIST_CHECK(sheets_[part.sheet].emplace(span.offset, read.owner).second);
  HOIST_CHECK(parts_.emplace(read.owner, std::move(part)).second);
  filling_[by].push_back(read.owner);
  Take(copy, user, span, read.owner);
}

bool PartBook::Restore(const SheetKey& key, uint64_t from, uint64_t bytes,
                       uint64_t host_offset, OwnerId owner, TransferId by) {
  Part part;
  part.sheet = key;
  part.from = from;
  part.bytes = bytes;
  part.host_offset = host_offset;
  part.filling = by;
  part.restored = true;
  const auto sheet = sheets_.find(key);
  if (sheet != sheets_.end()) {
    const auto next = sheet->second.lower_bound(from);
    if (next != sheet->second.end() && next->first < part.end()) return false;
    if (next != sheet->second.begin() &&
        At(std::prev(next)->second).end() > from) {
      return false;
    }
  }
  sheets_[key].emplace(from, owner);
  HOIST_CHECK(parts_.emplace(owner, std::move(part)).second);
  filling_[by].push_back(owner);
  return true;
}

void PartBook::Forgo(OwnerId owner, std::vector<uint64_t>& freed) {
  At(owner).restored = false;
  FreeIfUnused(owner, freed);
}

void PartBook::Settle(GroupKey copy) {
  for (const OwnerId owner : users_.at(copy).parts) At(owner).restored = false;
}

std::vector<PartBook::Filling> PartBook::FilledBy(TransferId by) const {
  std::vector<Filling> filled;
  const auto found = filling_.find(by);
  if (found == filling_.end()) return filled;
  for (const OwnerId owner : found->second) {
    const Part& part = At(owner);
    filled.push_back(
        {part.sheet, part.from, part.bytes, part.host_offset, part.restored});
  }
  return filled;
}

std::vector<GroupKey> PartBook::Filled(TransferId by,
                                       std::vector<uint64_t>& freed) {
  return End(by, /*failed=*/false, freed);
}

std::vector<GroupKey> PartBook::Failed(TransferId by,
                                       std::vector<uint64_t>& freed) {
  return End(by, /*failed=*/true, freed);
}

std::vector<GroupKey> PartBook::End(TransferId by, bool failed,
                                    std::vector<uint64_t>& freed) {
  std::vector<GroupKey> users;
  const auto found = filling_.find(by);
  if (found == filling_.end()) return users;
  const std::vector<OwnerId> owners = std::move(found->second);
  filling_.erase(found);
  for (const OwnerId owner : owners) {
    Part& part = At(owner);
    part.filling.reset();
    users.insert(users.end(), part.users.begin(), part.users.end());
    if (failed) {
      TakeOut(part);
      part.failed = true;
      part.restored = false;
    }
    FreeIfUnused(owner, freed);
  }
  std::sort(users.begin(), users.end());
  users.erase(std::unique(users.begin(), users.end()), users.end());
  return users;
}

void PartBook::Leave(GroupKey copy, std::vector<uint64_t>& freed) {
  const auto found = users_.find(copy);
  HOIST_CHECK(found != users_.end());
  const std::vector<OwnerId> owners = std::move(found->second.parts);
  users_.erase(found);
  for (const OwnerId owner : owners) {
    HOIST_CHECK(std::erase(At(owner).users, copy) == 1);
    FreeIfUnused(owner, freed);
  }
}

void PartBook::TakeOut(const Part& part) {
  const auto sheet = sheets_.find(part.sheet);
  sheet->second.erase(part.from);
  if (sheet->second.empty()) sheets_.erase(sheet);
}

void PartBook::FreeIfUnused(OwnerId owner, std::vector<uint64_t>& freed) {
  const Part& part = At(owner);
  if (!part.users.empty() || part.filling.has_value() || part.restored) {
    return;
  }
  if (!part.failed) TakeOut(part);
  freed.push_back(part.host_offset);
  parts_.erase(owner);
}

std::vector<TransferId> PartBook::FillersOf(GroupKey copy) const {
  std::vector<TransferId> fillers;
  for (const OwnerId owner : users_.at(copy).parts) {
    if (At(owner).filling.has_value()) fillers.push_back(*At(owner).filling);
  }
  std::sort(fillers.begin(), fillers.end());
  fillers.erase(std::unique(fillers.begin(), fillers.end()), fillers.end());
  return fillers;
}

ImageRanges PartBook::RangesOf(GroupKey copy, const Group& group) const {
  const User& user = users_.at(copy);
  ImageRanges ranges;
  for (const auto& [from, image_offset] : group.runs) {
    const SheetRange first = {from.file, from.offset, UINT64_MAX};
    auto taken = std::ranges::upper_bound(user.taken, first, {}, &Taken::span);
    HOIST_CHECK(taken != user.taken.begin());
    --taken;
    for (uint64_t at = 0; at < from.bytes; ++taken) {
      const uint64_t offset = from.offset + at;
      HOIST_CHECK(taken != user.taken.end() && taken->span.file == from.file &&
                  taken->span.offset <= offset && offset < taken->span.end());
      const Part& part = At(taken->part);
      HOIST_CHECK(!part.filling.has_value());
      ImageRange range;
      range.host_offset = part.host_offset + (offset - part.from);
      range.image_offset = image_offset + at;
      range.bytes = std::min(from.bytes - at, taken->span.end() - offset);
      at += range.bytes;
      if (!ranges.empty()) {
        ImageRange& last = ranges.back();
        if (last.host_offset + last.bytes == range.host_offset &&
            last.image_offset + last.bytes == range.image_offset) {
          last.bytes += range.bytes;
          continue;
        }
      }
      ranges.push_back(range);
    }
  }
  return ranges;
}

const std::vector<GroupKey>* PartBook::UsersOf(OwnerId owner) const {
  const auto found = parts_.find(owner);
  return found == parts_.end() ? nullptr : &found->second.users;
}

uint64_t PartBook::OwnSpace(GroupKey copy) const {
  uint64_t bytes = 0;
  for (const OwnerId owner : users_.at(copy).parts) {
    const Part& part = At(owner);
    if (part.users.front() == copy && !part.coming()) bytes += part.space();
  }
  return bytes;
}

uint64_t PartBook::UnusedSpace() const {
  uint64_t bytes = 0;
  for (const auto& [owner, part] : parts_) {
    if (part.users.empty() && !part.restored) bytes += part.space();
  }
  return bytes;
}

uint64_t PartBook::RestoredSpace() const {
  uint64_t bytes = 0;
  for (const auto& [owner, part] : parts_) {
    if (Idle(owner)) bytes += part.space();
  }
  return bytes;
}

bool PartBook::Idle(OwnerId owner) const {
  const auto found = parts_.find(owner);
  return found != parts_.end() && found->second.users.empty() &&
         !found->second.filling.has_value();
}

std::optional<uint64_t> PartBook::EndBefore(const SheetKey& key,
                                            uint64_t from) const {
  const auto sheet = sheets_.find(key);
  if (sheet == sheets_.end()) return std::nullopt;
  const auto next = sheet->second.lower_bound(from);
  if (next == sheet->second.begin()) return std::nullopt;
  const Part& before = At(std::prev(next)->second);
  if (before.end() != from || before.space() != before.bytes) {
    return std::nullopt;
  }
  return before.host_offset + before.bytes;
}

uint64_t PartBook::SpaceOf(OwnerId owner) const { return At(owner).space(); }

void PartBook::Check() const {
  size_t in_sheets = 0;
  for (const auto& [key, sheet] : sheets_) {
    uint64_t end = 0;
    for (const auto& [from, owner] : sheet) {
      const Part& part = At(owner);
      HOIST_CHECK(part.from == from && part.sheet == key && from >= end);
      HOIST_CHECK(part.bytes > 0 && !part.failed);
      HOIST_CHECK(!part.users.empty() || part.filling.has_value() ||
                  part.restored);
      end = part.end();
      ++in_sheets;
    }
  }
  HOIST_CHECK(in_sheets == parts_.size());
  for (const auto& [owner, part] : parts_) {
    for (const GroupKey user : part.users) {
      const std::vector<OwnerId>& uses = users_.at(user).parts;
      HOIST_CHECK(std::ranges::count(uses, owner) == 1);
    }
    if (!part.filling.has_value()) continue;
    const std::vector<OwnerId>& fills = filling_.at(*part.filling);
    HOIST_CHECK(std::ranges::count(fills, owner) == 1);
  }
  for (const auto& [copy, user] : users_) {
    for (const OwnerId owner : user.parts) {
      HOIST_CHECK(std::ranges::count(At(owner).users, copy) == 1);
    }
    SheetRange last;
    for (const Taken& taken : user.taken) {
      const Part& part = At(taken.part);
      const SheetRange& span = taken.span;
      HOIST_CHECK(std::ranges::count(user.parts, taken.part) == 1);
      HOIST_CHECK(part.sheet.file == user.sheets[span.file].file);
      HOIST_CHECK(span.bytes > 0 && part.from <= span.offset &&
                  span.end() <= part.end());
      HOIST_CHECK(span.file > last.file || span.offset >= last.end());
      last = span;
    }
  }
}

}  // namespace hoistd
