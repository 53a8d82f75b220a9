// Supply: brings bytes to their waiters. It owns their needs, the transfers for
// them, the outcome of transfers, and what the last hoistd left on the host.
//
// To bring up a group, a Need waits for its copy. The copy first gets space on
// its tier, by eviction of the least valuable copies. For a device copy, the
// host copy is then brought up the same way, and a transfer fills the device
// copy. Device space comes before host space, so a need that cannot be met
// holds nothing that others could use. NeedBook knows which needs a change
// concerns; those are retried.
//
// It knows neither sessions nor plans. The layers above grant access, hand out
// the copies that have come, and take their next work from here (TakeWork).
#ifndef HOIST_DAEMON_CORE_SUPPLY_H_
#define HOIST_DAEMON_CORE_SUPPLY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/counters.h"
#include "daemon/core/device_names.h"
#include "daemon/core/effects.h"
#include "daemon/core/model_book.h"
#include "daemon/core/need_book.h"
#include "daemon/core/node_options.h"
#include "daemon/core/persisted.h"
#include "daemon/core/quota.h"
#include "daemon/core/restored_host.h"
#include "daemon/core/saver.h"
#include "daemon/core/space.h"
#include "daemon/core/spill_book.h"
#include "daemon/core/transfer.h"
#include "daemon/core/transfer_book.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A waiter that is refused, and why.
struct Refused {
  Waiter waiter;
  CopyRef copy;
  absl::Status why;
};

// Work of the layers above, to be done before their next call.
struct SupplyWork {
  std::vector<ForgottenModel> forgotten;  // To be removed.
  std::vector<Refused> refused;

  bool empty() const { return forgotten.empty() && refused.empty(); }
};

// Threads:  one at a time.
// Owns:     needs, transfers, groups to be saved, and extents that the last
//           hoistd left on the host. Borrows the rest, which must outlive this
//           object.
// Bounds:   an event costs what it changes, as NeedBook says.
class Supply {
 public:
  Supply(const NodeOptions& options, const DeviceNames& names,
         CopyTable& copies, ModelBook& models, QuotaBook& quota,
         SpillBook& disk, Space& space, PersistedLog& persisted,
         Counters& counters);
  Supply(const Supply&) = delete;
  Supply& operator=(const Supply&) = delete;

  // Must follow each call that may free space.
  void FollowSpace(Effects& effects);
  SupplyWork TakeWork() { return std::exchange(work_, {}); }

  // --- Needs --------------------------------------------------------------

  // Adds a need if there is none; `urgent` may make a prefetch urgent.
  Need& NeedFor(const CopyRef& copy, bool urgent, Effects& effects);
  void AddWaiter(Need& need, const Waiter& waiter);
  enum class Progress {
    kServes,   // The copy is ready for its waiters.
    kComing,   // Something else must wake the need.
    kNoSpace,  // See need.blocked; likewise.
  };
  // Takes the next step.
  Progress Advance(Need& need, absl::Time now, Effects& effects);
  // Refuses waiters of the copy, or of all copies of the group that are not
  // already on their way.
  void FailNeed(const CopyRef& ref, const absl::Status& why);
  void FailNeeds(GroupKey key, const absl::Status& why);
  // Refuses waiters past their deadline; `text` is why they have no space.
  using TextFn = absl::FunctionRef<std::string(const Waiter&, const Blocked&)>;
  void Expire(absl::Time now, TextFn text);
  // Ends all waits of the session.
  void Leave(SessionId session, absl::Time now);
  // The copy's slab was made; an error: why it could not be.
  void SlabMade(const CopyRef& copy, const absl::Status& made);

  // --- Transfers ----------------------------------------------------------

  // The ended transfer.
  Transfer Take(TransferId id, const absl::Status& status);
  // Handles its end if it was started here.
  void Done(const Transfer& transfer, const absl::Status& status,
            const TransferResult& result, absl::Time now, Effects& effects);
  // Copies the usable host copy to a client. The transfer's read keeps the copy
  // in place, even if the session ends.
  void Send(const CopyRef& ref, Copy& copy, const Waiter& waiter,
            absl::Time now, Effects& effects);
  // Declares the group lost if no tier has its bytes any more.
  void MarkLostIfGone(GroupKey key, const absl::Status& why, Effects& effects);
  // The model's copies are gone; drops its needs.
  void Forget(ModelId model, absl::Time now, Effects& effects);

  // --- Published images ---------------------------------------------------

  // An image of this group of its model has come there.
  void Received(GroupKey key, OwnerId owner, uint64_t offset, absl::Time now,
                Effects& effects);
  // Starts to write all unsaved groups; returns their bytes.
  uint64_t SaveAll(absl::Time now, Effects& effects);

  // --- What the last hoistd left on the host ------------------------------

  // The pool is ready up to `ready_bytes`. False: it was before.
  bool GrowHost(uint64_t ready_bytes, absl::Time now, Effects& effects);
  RestoredHost& restored() { return restored_; }
  const RestoredHost& restored() const { return restored_; }

  NeedBook& needs() { return needs_; }
  const NeedBook& needs() const { return needs_; }
  TransferBook& transfers() { return transfers_; }
  const TransferBook& transfers() const { return transfers_; }
  Saver& saver() { return saver_; }
  const Saver& saver() const { return saver_; }

 private:
  // supply.cc
  static SpaceClaim ClaimOf(const Need& need);
  bool Reserve(const CopyRef& ref, Copy& copy, Need& need, absl::Time now,
               Effects& effects);
  void Hurry(const Need& need, const Copy& copy, Effects& effects);
  bool AwaitsSlab(const Need& need) const;
  void AdvanceDeviceFill(Need& need, Copy& copy, absl::Time now,
                         Effects& effects);
  bool FillInPlace(const Need& need, Copy& copy, absl::Time now,
                   Effects& effects);
  bool Expire(Need& need, absl::Time now, TextFn text);
  void AbandonSpace(const Need& need);
  absl::Status WaitingFor(const Need& need) const;
  bool Making(const Blocked& blocked) const;

  // supply_host.cc
  bool InParts(GroupKey key) const;
  bool BringToHost(const CopyRef& ref, Copy& copy, Need& need, absl::Time now,
                   Effects& effects);
  bool BringParts(const CopyRef& ref, Copy& copy, Need& need, absl::Time now,
                  Effects& effects);
  void StartHostFill(const CopyRef& ref, Copy& copy, bool urgent,
                     Effects& effects);
  void PartsMayBeThere(const CopyRef& ref, Copy& copy, absl::Time now,
                       Effects& effects);
  void HostPresent(const CopyRef& ref, Copy& copy, absl::Time now,
                   Effects& effects);
  void HostAbsent(const CopyRef& ref, Copy& copy, const absl::Status& status,
                  Effects& effects);
  void PartsFilled(TransferId filler, const absl::Status& status,
                   absl::Time now, Effects& effects);
  void KeepParts(TransferId filler);
  void KeepImage(const CopyRef& ref, const Copy& copy);

  // supply_transfers.cc
  void SaveUnsaved(GroupKey key);
  void HostChecked(const Transfer& transfer, const absl::Status& read,
                   const Content& content, absl::Time now, Effects& effects);
  void HostFilled(const Transfer& transfer, const absl::Status& status,
                  absl::Time now, Effects& effects);
  void DeviceFilled(const Transfer& transfer, const Place& from,
                    const absl::Status& status, absl::Time now,
                    Effects& effects);
  void Sent(const Transfer& transfer, const HostToClient& way,
            const absl::Status& status, Effects& effects);

  const NodeOptions& options_;
  const DeviceNames& names_;
  CopyTable& copies_;
  ModelBook& models_;
  QuotaBook& quota_;
  SpillBook& disk_;
  Space& space_;
  PersistedLog& persisted_;
  Counters& counters_;
  TransferBook transfers_;
  Saver saver_;
  NeedBook needs_;
  NeedBook::Age last_age_ = 0;
  RestoredHost restored_;
  SupplyWork work_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_SUPPLY_H_
