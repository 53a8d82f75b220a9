// Audit: verifies copies in all tiers against the published bytes; quarantines
// damaged copies and repairs them from intact ones.
#ifndef HOIST_DAEMON_CORE_AUDIT_H_
#define HOIST_DAEMON_CORE_AUDIT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/device_names.h"
#include "daemon/core/effects.h"
#include "daemon/core/group_check.h"
#include "daemon/core/quota.h"
#include "daemon/core/requests.h"
#include "daemon/core/space.h"
#include "daemon/core/supply.h"
#include "daemon/core/tenure.h"
#include "daemon/core/transfer.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Reads a published group's copies in all tiers and compares them with its
// content. A damaged copy is quarantined and never served again; its lease
// holders on a device keep it. With `repair`, a damaged copy on the disk is
// rewritten from an intact host copy. A damaged copy on a device is reloaded at
// its address, which its lease holders have; the reply names their sessions.
//
// Threads:  one at a time.
// Owns:     checks. Borrows the rest, which must outlive this object.
// Bounds:   one check a group.
class Audit {
 public:
  Audit(const DeviceNames& names, CopyTable& copies, QuotaBook& quota,
        Space& space, Supply& supply, const Tenure& tenure);
  Audit(const Audit&) = delete;
  Audit& operator=(const Audit&) = delete;

  // Published groups of the model that the name means to the asker; of all
  // models if it is empty. NotFound. InvalidArgument: the model is of files.
  absl::StatusOr<std::vector<GroupKey>> Select(const Peer& asker,
                                               const std::string& model) const;
  // Replies with the findings. InvalidArgument: the group is of files.
  void Check(RequestId request, GroupKey key, bool repair, Effects& effects);
  // The end of a transfer; false: no check started it.
  bool Done(const Transfer& transfer, const absl::Status& status,
            const Content& content, absl::Time now, Effects& effects);
  // The host has the bytes to repair the damaged copy `ref`; or it never will,
  // or the copy is gone.
  void Repair(const CopyRef& ref, Copy& host, absl::Time now, Effects& effects);
  void RepairOver(const CopyRef& ref, const absl::Status& status,
                  Effects& effects);
  // Drops a damaged, unused copy. True: it was one.
  bool DropDamaged(const CopyRef& ref, Copy& copy);

  bool Checks(GroupKey key) const { return checks_.contains(key); }
  const std::map<GroupKey, GroupCheck>& checks() const { return checks_; }

 private:
  using FindingFn = absl::FunctionRef<void(TierAt, std::string)>;

  // audit.cc
  bool ReadDone(const Transfer& transfer, const absl::Status& read,
                const Content& content, absl::Time now, Effects& effects);
  void Conclude(GroupKey key, absl::Time now, Effects& effects);
  void CheckOver(GroupKey key, Effects& effects);
  absl::Status PageableRead(GroupKey key, const absl::Status& status,
                            Effects& effects);
  void Find(const CopyRef& ref, std::string what, Effects& effects);
  void DiskIsBad(GroupKey key, const GroupCheck& check, FindingFn find,
                 Effects& effects);
  void HostDamaged(GroupKey key, GroupCheck& check, FindingFn find,
                   Effects& effects);

  // audit_devices.cc
  TransferId ReadBack(const CopyRef& ref, const Copy& copy, Effects& effects);
  void DeviceRead(GroupKey key, DeviceCheck& device, absl::Time now,
                  Effects& effects);
  absl::Status RepairSource(GroupKey key) const;
  bool Reloaded(const Transfer& transfer, const absl::Status& status,
                Effects& effects);
  void FoundRight(const CopyRef& ref);
  void PutAside(const CopyRef& ref, const std::string& why, Effects& effects);
  std::string HoldersOf(const CopyRef& ref) const;

  const DeviceNames& names_;
  CopyTable& copies_;
  QuotaBook& quota_;
  Space& space_;
  Supply& supply_;
  const Tenure& tenure_;
  std::map<GroupKey, GroupCheck> checks_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_AUDIT_H_
