// Space: the places of copies on the host and on devices, and eviction.
//
// It starts no transfer, and knows neither sessions, plans nor quotas. A
// request states its rights (SpaceClaim). The layers above answer questions
// about copies (Demand) and take their next work from here (TakeWork).
#ifndef HOIST_DAEMON_CORE_SPACE_H_
#define HOIST_DAEMON_CORE_SPACE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/arena_book.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/device_space.h"
#include "daemon/core/extent_map.h"
#include "daemon/core/keep_value.h"
#include "daemon/core/model_book.h"
#include "daemon/core/node_options.h"
#include "daemon/core/part_book.h"
#include "daemon/core/persisted.h"
#include "daemon/core/promise_book.h"
#include "daemon/core/requests.h"
#include "daemon/core/slab_book.h"
#include "daemon/core/spill_book.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

// The rights of a request for space. The default: somebody waits.
struct SpaceClaim {
  CopyRef copy;                  // For its zone and its next use.
  bool urgent = true;            // Prefetches are not, and evict with care.
  bool waited_for = true;        // Workers may be asked to close idle slabs.
  std::optional<ModelId> spare;  // Not evicted from that tier.
};

// Knowledge of the layers above about copies here.
class Demand {
 public:
  virtual ~Demand() = default;
  // Whether the copy is about to be given to waiters; unless `urgent`, also
  // whether it has waiters that are blocked on something else.
  virtual bool Awaits(const CopyRef& copy, bool urgent) const = 0;
  // nullopt: no order has it.
  virtual std::optional<absl::Duration> UntilUse(GroupKey key) const = 0;
  // Whether any session uses the model.
  virtual bool Uses(ModelId model) const = 0;
  // Models awaited, planned or being checked.
  virtual std::set<ModelId> Wanted() const = 0;
};

// A published model that lost the only copies of some groups.
struct ForgottenModel {
  ModelId model;
  uint64_t unsaved_bytes = 0;  // Of those copies; they count for its owner.
};

// Work of the layers above, to be done before their next call.
struct SpaceWork {
  std::vector<SlabWork> slabs;
  std::vector<SlabAsk> asks;
  std::vector<CopyRef> dropped;           // Evicted.
  std::vector<ForgottenModel> forgotten;  // To be removed.
  // Host copies to write out urgently, and why.
  std::vector<std::pair<GroupKey, Leaving>> spills;
};

// Errors of all allocations. Unavailable: space is about to come, from new
// slabs, spills, or workers asked to close slabs. ResourceExhausted: there is
// none.
//
// Threads:  one at a time.
// Owns:     extents, parts, slabs and promises. Borrows the rest, which must
//           outlive this object.
// Bounds:   never gives more than the pools; eviction looks at all extents of
//           a tier.
class Space {
 public:
  Space(const NodeOptions& options, const std::vector<DeviceInfo>& devices,
        CopyTable& copies, const ModelBook& models, SpillBook& disk,
        const Demand& demand, PersistedLog& persisted);
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  // Grows when space may have come free: refused requests may try again.
  uint64_t epoch() const { return epoch_; }
  void Changed() { ++epoch_; }
  SpaceWork TakeWork();

  // --- Places -------------------------------------------------------------

  // Gives the absent copy a place; its filling starts.
  absl::Status Reserve(const CopyRef& ref, Copy& copy, const SpaceClaim& claim,
                       absl::Time now);
  absl::StatusOr<uint64_t> PlaceOnDevice(const SpaceClaim& claim, OwnerId owner,
                                         uint64_t bytes, absl::Time now);
  // A place for an image without another copy. `published`: bytes of images
  // that may already be such. KeepWayBack must follow.
  absl::StatusOr<uint64_t> PlaceUnsaved(OwnerId owner, uint64_t bytes,
                                        uint64_t published, absl::Time now);
  // Keeps room to bring back images that only the disk has (space_way_back.cc).
  // An error: no room, and the image at `offset` lost its place.
  absl::Status KeepWayBack(uint64_t offset, uint64_t bytes, absl::Time now);
  // Places all spans or none, each in one or several pieces.
  absl::StatusOr<std::vector<SheetRead>> PlaceSpans(
      const std::vector<SheetKey>& sheets,
      const std::vector<SheetRange>& missing, const SpaceClaim& claim,
      absl::Time now);
  // Places all pieces of an arena, or none.
  absl::StatusOr<std::vector<ArenaPiece>> PlacePieces(
      DeviceIndex device, const Zone& zone,
      const std::vector<ArenaPiece>& pieces, absl::Time now);
  // The largest arena that fits now, or after idle slabs close.
  uint64_t MostForArena(DeviceIndex device, const Zone& zone,
                        absl::Time now) const;

  // --- Evictions ----------------------------------------------------------

  // Evicts the copies in these extents. False: some must be spilled first.
  bool EvictAll(const std::vector<OwnerId>& victims, const Leaving& how);
  // Nothing may hold the copy.
  void Drop(const CopyRef& ref, Copy& copy, ResidencyEvent event,
            std::optional<Leaving> how = std::nullopt);
  // Ends a filling copy whose bytes will not come.
  void FillFailed(const CopyRef& ref, Copy& copy);
  // Drops all copies of the model except those being spilled; returns the bytes
  // of its unsaved ones.
  uint64_t DropModel(ModelId id);
  // The same for a model that makes room; TakeWork reports it.
  void Forget(ModelId id) { work_.forgotten.push_back({id, DropModel(id)}); }
  void LeaveParts(GroupKey key);
  void FreeExtents(const std::vector<uint64_t>& freed);
  void FreeHost(uint64_t offset);
  // Published models that may be dropped: no session uses them, and nothing of
  // them is leased, held, pinned, planned, awaited or being copied. Least
  // recently used first.
  std::vector<ModelId> Expendable() const;
  // The value to the claimant of `bytes` of the copy, or of the whole extent.
  // nullopt: it stays.
  std::optional<double> ValueOf(const CopyRef& ref, uint64_t bytes,
                                const SpaceClaim& claim, absl::Time now) const;
  std::optional<double> ValueOf(OwnerId owner, const SpaceClaim& claim,
                                absl::Time now) const;
  // Whether dropping the copy loses nothing.
  bool Clean(const CopyRef& ref) const;
  bool CanSpill() const { return options_.spill_capacity_bytes > 0; }
  bool MaySpill(absl::Time now) const;  // And no spill has just failed.
  bool CannotSpill(absl::Time now) const;

  // --- Slabs --------------------------------------------------------------

  // The owner of a slab that was made or failed. Neither: the next request.
  struct SlabOutcome {
    std::optional<CopyRef> copy;   // Proceeds, or has lost its place.
    std::optional<OwnerId> piece;  // Of an arena.
  };
  SlabOutcome SlabMade(DeviceIndex device, SlabId slab,
                       const absl::StatusOr<SlabShare>& made);
  // nullopt: the slab was given back meanwhile.
  std::optional<SlabOutcome> SlabZeroed(DeviceIndex device, SlabId slab,
                                        const absl::Status& zeroed);
  // The session uses all slabs of the range; returns those it does not have
  // open.
  std::vector<SlabUse> UseSlabs(SessionId id, DeviceIndex device,
                                uint64_t offset, uint64_t bytes);
  // Ends a lease's or ring's use of its slabs.
  void LeaveSlabs(SessionId id, DeviceIndex device, uint64_t offset,
                  uint64_t bytes);
  // Asks all sessions with the slabs open, or those of `uid`; through TakeWork.
  void AskToClose(DeviceIndex device, const std::vector<SlabId>& slabs,
                  std::optional<User> uid, absl::Time now);
  std::vector<SlabBook::Silent> LookAtAsks(absl::Time now);
  static absl::Status WaitsForIdle();

  // --- Promises -----------------------------------------------------------

  // Whether the copy may be leased, pinned or filled beside promised residents
  // that are not leased yet. Idle copies make way and do not count.
  absl::Status CheckReservations(const CopyRef& ref) const;
  // Whether a ring of `bytes` fits beside `firm` and memory that cannot be
  // freed. Unavailable: it fits after idle workers close the slabs asked for.
  absl::Status CheckRing(DeviceIndex device, const Zone& own, uint64_t bytes,
                         const std::set<CopyRef>& firm) const;
  void AskForRing(DeviceIndex device, const Zone& own,
                  const std::set<CopyRef>& firm, absl::Time now);
  // Bytes unavailable to a zone beside `firm`: the rest of others' slabs, and
  // slabs held open.
  uint64_t LostTo(DeviceIndex device, const Zone& own,
                  const std::set<CopyRef>& firm) const;
  // Must follow each change of a device copy's leases, pins or transfers.
  void Weigh(const CopyRef& ref, const Copy& copy);
  void SetPinned(const CopyRef& ref, Copy& copy, bool pinned);

  // --- Contents -----------------------------------------------------------

  Zone ZoneOf(const CopyRef& ref) const;
  // One per file of the model.
  std::vector<SheetKey> SheetsOf(ModelId model) const;
  uint64_t CapacityOf(TierAt at) const;
  // Used bytes of the host or of a device.
  uint64_t UsedOf(TierAt at) const;
  uint64_t LargestFreeOf(TierAt at) const;
  uint64_t AllocatedOf(TierAt at) const;
  // Host ranges of a usable copy.
  ImageRanges RangesOf(const CopyRef& ref, const Copy& copy) const;
  // Records for a successor that a copy is there, or gone.
  void KeepCopy(const CopyRef& ref, const Copy& copy, bool there);
  // Checks consistency, also with `counted`, the promises to plans. For tests:
  // looks at everything.
  void Check(std::vector<PromiseBook> counted) const;

  ExtentMap& host() { return host_; }
  const ExtentMap& host() const { return host_; }
  PartBook& parts() { return parts_; }
  const PartBook& parts() const { return parts_; }
  SlabBook& slabs() { return slabs_; }
  const SlabBook& slabs() const { return slabs_; }
  std::vector<PromiseBook>& promises() { return promises_; }
  const PromiseBook& promises(DeviceIndex device) const {
    return promises_[device.number()];
  }
  uint32_t devices() const { return static_cast<uint32_t>(devices_.size()); }
  DeviceSpace& device(DeviceIndex device) { return *spaces_[device.number()]; }
  const DeviceSpace& device(DeviceIndex device) const {
    return *spaces_[device.number()];
  }

 private:
  using Owners = std::vector<OwnerId>;
  using Victims = std::optional<Owners>;
  using ChooseVictimsFn = absl::FunctionRef<Victims(KeepValueFn)>;

  // space.cc
  void FreePlace(const CopyRef& ref, Copy& copy);
  bool PlaceWhole(const SheetKey& sheet, const SheetRange& span,
                  std::vector<SheetRead>& placed);
  void PlaceInPieces(const SheetKey& sheet, SheetRange span,
                     std::vector<SheetRead>& placed);

  // space_eviction.cc
  absl::StatusOr<uint64_t> PlaceOnHost(OwnerId owner, uint64_t bytes,
                                       const SpaceClaim& claim, absl::Time now);
  std::vector<CopyRef> CopiesOf(const Owners& owners) const;
  Victims HostVictims(const SpaceClaim& claim, absl::Time now,
                      ChooseVictimsFn choose) const;
  Victims HostHole(uint64_t bytes, const SpaceClaim& claim,
                   absl::Time now) const;
  Victims UnreferencedVictims(const std::vector<ModelId>& expendable,
                              const SpaceClaim& claim, absl::Time now,
                              ChooseVictimsFn choose) const;
  bool Unreferenced(const Model& model) const;  // Published and unused.
  KeepFacts FactsOf(const CopyRef& ref, absl::Time now) const;

  // space_way_back.cc
  bool HasWayBack() const;
  absl::Status NoWayBack() const;
  absl::Status MayCome(uint64_t bytes, uint64_t published,
                       absl::Time now) const;

  // space_slabs.cc
  absl::Status AskForRoom(DeviceIndex device, const Want& want,
                          KeepValueFn worth, absl::Time now);
  absl::Status FreeDescriptors(Backing backing, const SpaceClaim& claim,
                               absl::Time now);
  absl::Status PlaceEach(DeviceIndex device, const Zone& zone,
                         std::vector<ArenaPiece>& pieces, absl::Time now);
  absl::Status RoomForPieces(DeviceIndex device, const Want& want,
                             absl::Time now);
  std::optional<double> WorthToArenas(OwnerId owner, absl::Time now) const;
  Room RoomFor(DeviceIndex device, const Want& want, bool own, bool idle,
               KeepValueFn worth) const;

  // space_promises.cc
  static bool Busy(const Copy& copy);
  std::map<Zone, uint64_t> ByZone(DeviceIndex device,
                                  const std::set<CopyRef>& copies) const;
  std::map<Zone, uint64_t> HeldByZone(DeviceIndex device,
                                      const std::set<CopyRef>& firm,
                                      bool idle_is_held) const;
  std::optional<double> Movable(OwnerId owner,
                                const std::set<CopyRef>& firm) const;

  const NodeOptions& options_;
  const std::vector<DeviceInfo>& devices_;
  CopyTable& copies_;
  const ModelBook& models_;
  SpillBook& disk_;
  const Demand& demand_;
  PersistedLog& persisted_;
  ExtentMap host_;
  PartBook parts_;  // Of files, in host_.
  ApartDescriptors apart_descriptors_;
  std::vector<std::unique_ptr<DeviceSpace>> spaces_;  // One a device.
  SlabBook slabs_;
  std::vector<PromiseBook> promises_;  // One a device.
  SpaceWork work_;
  uint64_t epoch_ = 1;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_SPACE_H_
