// Saving: writes published groups to the disk soon, so that a power cut or a
// stop loses little or nothing; and writes groups that must leave the host
// first, to the disk or to pageable memory.
#ifndef HOIST_DAEMON_CORE_SAVER_H_
#define HOIST_DAEMON_CORE_SAVER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/counters.h"
#include "daemon/core/device_names.h"
#include "daemon/core/effects.h"
#include "daemon/core/node_options.h"
#include "daemon/core/persisted.h"
#include "daemon/core/quota.h"
#include "daemon/core/space.h"
#include "daemon/core/spill_book.h"
#include "daemon/core/transfer.h"
#include "daemon/core/transfer_book.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Threads:  one at a time.
// Owns:     the queue of groups to save. Borrows the rest, which must outlive
//           this object.
// Bounds:   as many queued writes at once as keep a disk busy; urgent writes
//           run beside them.
class Saver {
 public:
  Saver(const NodeOptions& options, const DeviceNames& names, CopyTable& copies,
        QuotaBook& quota, SpillBook& disk, Space& space,
        TransferBook& transfers, PersistedLog& persisted, Counters& counters);
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // If hoistd saves published groups.
  void SaveSoon(GroupKey key);
  // Starts queued writes.
  void SaveSome(absl::Time now, Effects& effects);
  // Starts to write all unsaved groups; returns their bytes.
  uint64_t SaveAll(absl::Time now, Effects& effects);
  bool waits() const { return !to_save_.empty(); }

  // Writes the present host copy.
  void Start(const CopyRef& ref, Copy& copy, bool urgent, Effects& effects);
  // The host copy is to leave. If CopyTable::PageOut has taken a place for it,
  // copies it there and drops it then; else writes it to the disk.
  void MakeRoom(GroupKey key, Leaving how, Effects& effects);
  // Its copy to pageable memory has ended.
  void PagedOut(const Transfer& transfer, const absl::Status& status,
                absl::Time now, Effects& effects);
  // Makes a write urgent: somebody waits for it now.
  void Hurry(GroupKey key, Effects& effects);
  // Its model is forgotten during the write: the host copy stays until the
  // write ends.
  void Orphan(const CopyRef& ref, const Copy& copy);
  void Done(const Transfer& transfer, const absl::Status& status,
            const TransferResult& result, absl::Time now, Effects& effects);
  // Their offsets on the host.
  const std::map<TransferId, uint64_t>& orphans() const { return orphans_; }

  // Evicts copies that nobody uses; those that no other tier has once they are
  // spilled. Tells of those that stay, and why the last of them does.
  CopyTotals Evict(const std::vector<CopyRef>& copies, Leaving::Why why,
                   absl::Time now, Effects& effects);

 private:
  void Leave(const CopyRef& ref, Copy& copy, Leaving how, Effects& effects);
  bool OrphanDone(const Transfer& transfer, const absl::Status& status,
                  const TransferResult& result, Effects& effects);
  void TellOfDisk(EventKind kind, absl::string_view why, Effects& effects);

  const NodeOptions& options_;
  const DeviceNames& names_;
  CopyTable& copies_;
  QuotaBook& quota_;
  SpillBook& disk_;
  Space& space_;
  TransferBook& transfers_;
  PersistedLog& persisted_;
  Counters& counters_;
  std::deque<GroupKey> to_save_;            // May be forgotten or saved by now.
  uint32_t under_way_ = 0;                  // Transfers to the spill store.
  std::map<TransferId, uint64_t> orphans_;  // Of transfers.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_SAVER_H_
