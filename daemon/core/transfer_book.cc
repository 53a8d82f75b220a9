#include "daemon/core/transfer_book.h"

#include <utility>

#include "daemon/base/check.h"

namespace hoistd {

TransferId TransferBook::Start(GroupKey key, TransferWay way, bool urgent,
                               Effects& effects) {
  Transfer transfer;
  transfer.urgent = urgent;
  transfer.key = key;
  transfer.model = copies_.FindModel(key.model)->model->spec;
  transfer.group = copies_.FindGroup(key)->group;
  transfer.way = std::move(way);
  return Start(std::move(transfer), effects);
}

TransferId TransferBook::Start(Transfer transfer, Effects& effects) {
  transfer.id = NewId();
  all_[transfer.id] = transfer;
  effects.transfers.push_back(std::move(transfer));
  return effects.transfers.back().id;
}

void TransferBook::Hurry(TransferId id, Effects& effects) {
  const auto found = all_.find(id);
  if (found == all_.end()) return;  // A restored extent awaits the pool.
  if (std::exchange(found->second.urgent, true)) return;
  effects.urgent.push_back(id);
}

Transfer TransferBook::Take(TransferId id) {
  const auto found = all_.find(id);
  HOIST_CHECK(found != all_.end());
  Transfer transfer = std::move(found->second);
  all_.erase(found);
  return transfer;
}

const Transfer* TransferBook::FindSpill(GroupKey key) const {
  for (const auto& [id, transfer] : all_) {
    if (transfer.key == key && (transfer.by<HostToSpill>() != nullptr ||
                                transfer.by<HostToPageable>() != nullptr)) {
      return &transfer;
    }
  }
  return nullptr;
}

}  // namespace hoistd
