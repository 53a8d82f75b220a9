// The bytes of files on the host: each lies there once, whatever models and
// groups use it.
//
// Bytes lie there as parts of sheets (model/sheet.h). A group's host copy uses
// the parts with its runs, and shares those already there. Missing runs get new
// parts, which a transfer fills. A part is dropped when no copy uses it and
// nothing fills it; parts of the last hoistd stay for future users. So two
// groupings of the same files cost the bytes of one. A group next to present
// groups is read in several parts, and later copied to a device in as many
// ranges.
//
// This book tracks parts; ExtentMap tracks their space, which Node requests.
#ifndef HOIST_DAEMON_CORE_PART_BOOK_H_
#define HOIST_DAEMON_CORE_PART_BOOK_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/device_space.h"
#include "daemon/core/transfer.h"
#include "daemon/model/tensor.h"
#include "daemon/types/ids.h"
#include "daemon/types/ranges.h"

namespace hoistd {

// A file's sheet, per set of readers. A sheet for all readers serves all users
// of the same file; one that a user's models brought serves that user alone.
struct SheetKey {
  FileIdentity file;
  uint64_t readers = 0;  // As in Zone.

  auto operator<=>(const SheetKey&) const = default;
};

// Host space of a part, in whole pages so that O_DIRECT can read and write it.
uint64_t PartSpace(uint64_t bytes);

// Threads: one at a time.
// Bounds:  as many parts as the filling transfers had spans.
class PartBook {
 public:
  // Parts begin and end at multiples of this in their sheet.
  static constexpr uint64_t kGranule = 256;

  // The spans of files that a group needs, with whole reaches; ordered,
  // disjoint and not adjacent.
  static std::vector<SheetRange> SpansOf(const Group& group);
  static uint64_t BytesOf(const std::vector<SheetRange>& spans);

  // The copy now uses all existing parts of what it needs, including parts
  // being filled. Returns what is missing. `sheets`: one key per file of the
  // model, for the added parts.
  std::vector<SheetRange> Join(GroupKey copy, const Group& group,
                               std::vector<SheetKey> sheets);
  // Places a span, missing so far, where `by` reads it to.
  void Add(GroupKey copy, const SheetRead& read, TransferId by);
  // A part of the last hoistd is valid again once `by` has ended. Unused, it
  // stays until its first use ends or Forgo. False: it overlaps an existing
  // part.
  bool Restore(const SheetKey& sheet, uint64_t from, uint64_t bytes,
               uint64_t host_offset, OwnerId owner, TransferId by);
  // Drops such a part; nobody uses it. `freed`, here and below, gets the
  // offsets of extents without users.
  void Forgo(OwnerId owner, std::vector<uint64_t>& freed);
  // The complete copy needs its parts: they go with it.
  void Settle(GroupKey copy);
  // The transfer has filled its parts. Returns the copies that use them; each
  // may be complete now.
  std::vector<GroupKey> Filled(TransferId by, std::vector<uint64_t>& freed);
  // The transfer failed: no new copy uses its parts. Returns their users, which
  // must leave now.
  std::vector<GroupKey> Failed(TransferId by, std::vector<uint64_t>& freed);
  // The copy no longer uses any part.
  void Leave(GroupKey copy, std::vector<uint64_t>& freed);

  // Joined, and not left.
  bool Has(GroupKey copy) const { return users_.contains(copy); }
  const std::vector<OwnerId>& PartsOf(GroupKey copy) const {
    return users_.at(copy).parts;
  }
  // Transfers that fill parts of the copy; each once.
  std::vector<TransferId> FillersOf(GroupKey copy) const;
  // Where a copy's image lies; all its parts must be filled.
  ImageRanges RangesOf(GroupKey copy, const Group& group) const;

  // Space of the copy's parts that it was first to use among their users.
  uint64_t OwnSpace(GroupKey copy) const;
  // Space of parts being filled without users.
  uint64_t UnusedSpace() const;
  // Space of restored, filled parts without users.
  uint64_t RestoredSpace() const;
  // Whether the part is filled and unused.
  bool Idle(OwnerId owner) const;
  // A part that a transfer fills.
  struct Filling {
    SheetKey sheet;
    uint64_t from = 0;
    uint64_t bytes = 0;
    uint64_t host_offset = 0;
    bool restored = false;
  };
  std::vector<Filling> FilledBy(TransferId by) const;
  // The users of the part in this extent; empty: unused. nullptr: the extent is
  // no part's. Valid until the book changes.
  const std::vector<GroupKey>* UsersOf(OwnerId owner) const;
  // Where on the host the part ends that directly precedes this span, so that
  // both can be copied in one range. nullopt: none.
  std::optional<uint64_t> EndBefore(const SheetKey& sheet, uint64_t from) const;
  uint64_t SpaceOf(OwnerId owner) const;

  // Checks that a sheet's parts are disjoint, parts and users match, and a copy
  // uses what it needs; a mismatch is our bug. For tests.
  void Check() const;

 private:
  struct Part {
    SheetKey sheet;
    uint64_t from = 0;
    uint64_t bytes = 0;
    uint64_t host_offset = 0;
    std::optional<TransferId> filling;
    bool failed = false;    // No longer in its sheet.
    bool restored = false;  // Stays though unused.
    std::vector<GroupKey> users;

    uint64_t end() const { return from + bytes; }
    uint64_t space() const { return PartSpace(bytes); }
    // Restored, in a region of the pool that is not ready yet.
    bool coming() const { return restored && filling.has_value(); }
  };
  // The part that holds this span of the copy.
  struct Taken {
    SheetRange span;
    OwnerId part;
  };
  struct User {
    std::vector<SheetKey> sheets;  // By file.
    std::vector<Taken> taken;      // By span; not adjacent.
    std::vector<OwnerId> parts;    // Each once.
  };
  using Sheet = std::map<uint64_t, OwnerId>;  // By `from`.

  Part& At(OwnerId owner) { return parts_.at(owner); }
  const Part& At(OwnerId owner) const { return parts_.at(owner); }
  void Take(GroupKey copy, User& user, const SheetRange& span, OwnerId owner);
  // Takes the span's existing bytes from the sheet and adds the missing ones to
  // `rest`.
  void TakeFrom(const SheetKey& sheet, GroupKey copy, User& user,
                const SheetRange& span, std::vector<SheetRange>& rest);
  std::vector<GroupKey> End(TransferId by, bool failed,
                            std::vector<uint64_t>& freed);
  void TakeOut(const Part& part);
  void FreeIfUnused(OwnerId owner, std::vector<uint64_t>& freed);

  std::map<SheetKey, Sheet> sheets_;
  std::map<OwnerId, Part> parts_;
  absl::flat_hash_map<GroupKey, User> users_;
  absl::flat_hash_map<TransferId, std::vector<OwnerId>> filling_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_PART_BOOK_H_
