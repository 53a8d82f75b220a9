// Which bytes of files lie on the host: each once, whatever models and groups
// want them.
//
// What lies there are parts of sheets (model/sheet.h). A group's host copy uses
// the parts that hold its runs: those that are there already it shares, and for
// what is missing parts are added, which a transfer fills. A part goes when no
// copy uses it and nothing fills it; but what the last hoistd had stays for
// whoever comes. So two groupings of the same files cost
// the bytes of one, and a group whose neighbours came before it is read in
// several parts, and later copied to a device in as many ranges.
//
// This book knows the parts; space is ExtentMap's, and Node asks for it.
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
#include "daemon/terms/ids.h"
#include "daemon/terms/image_range.h"

namespace hoistd {

// The sheet of a file, among those who may read it. What is for all readers
// serves everyone who brings the same file; what one user's models brought
// serves that user alone.
struct SheetKey {
  FileIdentity file;
  uint64_t readers = 0;  // As in Zone.

  auto operator<=>(const SheetKey&) const = default;
};

// [from, to) of the group's file of this index.
struct SheetSpan {
  uint32_t file = 0;
  uint64_t from = 0;
  uint64_t to = 0;

  uint64_t bytes() const { return to - from; }
  // Of the host: in pages, so that whatever lies there can be read and written
  // with O_DIRECT.
  uint64_t space() const;
  auto operator<=>(const SheetSpan&) const = default;
};

// An extent that nobody uses any more.
struct FreedExtent {
  uint64_t offset = 0;
  OwnerId owner;
};

// Threads: one at a time.
// Bounds:  parts are as many as the transfers that brought them had spans.
class PartBook {
 public:
  // Parts begin and end at multiples of this in their sheet.
  static constexpr uint64_t kGranule = 256;

  // What a group needs of its files, its reaches whole; in order, disjoint and
  // apart.
  static std::vector<SheetSpan> SpansOf(const Group& group);

  // From now on the copy uses all parts that are there of what it needs, those
  // that are being filled too. Returns what is missing. `sheets` has one key a
  // file of the model: where what is added goes.
  std::vector<SheetSpan> Join(GroupKey copy, const Group& group,
                              std::vector<SheetKey> sheets);
  // `span`, which was missing, gets this extent; `by` fills it.
  void Add(GroupKey copy, const SheetSpan& span, uint64_t host_offset,
           OwnerId owner, TransferId by);
  // What was there before this hoistd lies there again once `by` has ended, and
  // then stays though nobody uses it, until somebody has or it is forgone.
  // False: something of it is there already.
  bool Restore(const SheetKey& sheet, uint64_t from, uint64_t bytes,
               uint64_t host_offset, OwnerId owner, TransferId by);
  // Such a part that nobody uses is there no more.
  void Forgo(OwnerId owner, std::vector<FreedExtent>& freed);
  // The copy, which is whole, needs its parts: they go when it does.
  void Settle(GroupKey copy);
  // The end of a transfer: its parts are there. Returns the copies that use
  // them, of which each may be complete now.
  std::vector<GroupKey> Filled(TransferId by, std::vector<FreedExtent>& freed);
  // Or they are not, and no copy to come will use them. Those that do must
  // leave now.
  std::vector<GroupKey> Failed(TransferId by, std::vector<FreedExtent>& freed);
  // The copy uses nothing any more.
  void Leave(GroupKey copy, std::vector<FreedExtent>& freed);

  // Joined, and not left.
  bool Has(GroupKey copy) const { return users_.contains(copy); }
  const std::vector<OwnerId>& PartsOf(GroupKey copy) const {
    return users_.at(copy).parts;
  }
  // Of the parts that the copy uses, those that fill some; each once.
  std::vector<TransferId> FillersOf(GroupKey copy) const;
  // Where the image of a copy lies; all its parts are there.
  ImageRanges RangesOf(GroupKey copy, const Group& group) const;

  // Of its parts, those that it was the first to use of all that do.
  uint64_t OwnSpace(GroupKey copy) const;
  // Of parts that are being filled though nobody uses them any more.
  uint64_t UnusedSpace() const;
  // Of restored parts that are there and that nobody uses.
  uint64_t RestoredSpace() const;
  // Whether nobody uses the part, and it is there.
  bool Idle(OwnerId owner) const;
  // What `by` fills.
  struct Filling {
    SheetKey sheet;
    uint64_t from = 0;
    uint64_t bytes = 0;
    uint64_t host_offset = 0;
    bool restored = false;
  };
  std::vector<Filling> FilledBy(TransferId by) const;
  // nullptr: the owner's extent is no part's. Empty: nobody uses it any more.
  // Valid until the book changes.
  const std::vector<GroupKey>* UsersOf(OwnerId owner) const;
  // Where on the host the part ends that ends right before this span: what lies
  // there can be copied together with it. nullopt: there is none, or not so.
  std::optional<uint64_t> EndBefore(const SheetKey& sheet, uint64_t from) const;
  uint64_t SpaceOf(OwnerId owner) const;

  // That parts of a sheet are apart, users and parts know each other, and what
  // a copy uses is what it needs; what is not so is our bug. For tests.
  void Check() const;

 private:
  struct Part {
    SheetKey sheet;
    uint64_t from = 0;
    uint64_t bytes = 0;
    uint64_t host_offset = 0;
    std::optional<TransferId> filling;
    bool failed = false;    // No longer in its sheet.
    bool restored = false;  // Stays though nobody uses it.
    std::vector<GroupKey> users;

    uint64_t end() const { return from + bytes; }
    uint64_t space() const { return SheetSpan{0, from, end()}.space(); }
    // Restored, and the pool is not up there yet.
    bool coming() const { return restored && filling.has_value(); }
  };
  // Of which part the copy takes this span.
  struct Taken {
    SheetSpan span;
    OwnerId part;
  };
  struct User {
    std::vector<SheetKey> sheets;  // By file.
    std::vector<Taken> taken;      // By span; apart.
    std::vector<OwnerId> parts;    // Each once.
  };
  using Sheet = std::map<uint64_t, OwnerId>;  // By `from`.

  Part& At(OwnerId owner) { return parts_.at(owner); }
  const Part& At(OwnerId owner) const { return parts_.at(owner); }
  void Take(GroupKey copy, User& user, const SheetSpan& span, OwnerId owner);
  // Takes of the sheet what it has of the span, and adds what it lacks to
  // `rest`.
  void TakeFrom(const SheetKey& sheet, GroupKey copy, User& user,
                const SheetSpan& span, std::vector<SheetSpan>& rest);
  std::vector<GroupKey> End(TransferId by, bool failed,
                            std::vector<FreedExtent>& freed);
  void TakeOut(const Part& part);
  void FreeIfUnused(OwnerId owner, std::vector<FreedExtent>& freed);

  std::map<SheetKey, Sheet> sheets_;
  std::map<OwnerId, Part> parts_;
  absl::flat_hash_map<GroupKey, User> users_;
  absl::flat_hash_map<TransferId, std::vector<OwnerId>> filling_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_PART_BOOK_H_
