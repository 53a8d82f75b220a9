// Transfers in progress.
#ifndef HOIST_DAEMON_CORE_TRANSFER_BOOK_H_
#define HOIST_DAEMON_CORE_TRANSFER_BOOK_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/effects.h"
#include "daemon/core/transfer.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Threads:  one at a time.
// Owns:     the transfers. Borrows `copies`, which must outlive this object.
// Bounds:   one for each copy and check in progress.
class TransferBook {
 public:
  explicit TransferBook(const CopyTable& copies) : copies_(copies) {}

  // An id that no transfer has.
  TransferId NewId() { return TransferId(++last_id_); }
  // The group must be in the books.
  TransferId Start(GroupKey key, TransferWay way, bool urgent,
                   Effects& effects);
  TransferId Start(Transfer transfer, Effects& effects);
  // Makes a transfer urgent: somebody waits for it now.
  void Hurry(TransferId id, Effects& effects);
  // It has ended; the caller owns it.
  Transfer Take(TransferId id);

  const Transfer& At(TransferId id) const { return all_.at(id); }
  // To the disk or to pageable memory. nullptr: the group is not being spilled.
  const Transfer* FindSpill(GroupKey key) const;
  bool empty() const { return all_.empty(); }

 private:
  const CopyTable& copies_;
  absl::flat_hash_map<TransferId, Transfer> all_;
  uint64_t last_id_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_TRANSFER_BOOK_H_
