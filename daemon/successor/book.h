// Writes this hoistd's records for its successor.
#ifndef HOIST_DAEMON_SUCCESSOR_BOOK_H_
#define HOIST_DAEMON_SUCCESSOR_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "daemon/convert/persisted_convert.h"
#include "daemon/core/persisted.h"
#include "daemon/keeper/keep.h"
#include "daemon/keeper/persisted_key.h"
#include "daemon/mover/mover.h"
#include "daemon/stream/streamer.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Adds a note for `status` and the log.
using AddNote = std::function<void(std::string)>;

// Node's books and admins' settings as records and descriptors of a Keep.
// Writes nothing if `keep` is nullptr.
//
// If a fact cannot be written or erased, the book ends: a successor would trust
// a false record. An admin's setting that cannot be written is lost with this
// hoistd, no worse. Either is noted once.
//
// Threads:  one at a time.
// Owns:     the numbers of pins and of models' descriptors. Borrows `keep` and
//           `host`, the pool's memory.
class Book {
 public:
  Book(Keep* keep, std::span<const std::byte> host, AddNote note);

  bool is_open() const { return keep_ != nullptr && !abandoned_; }

  // Starts this instance's records; it numbers descriptors from `first_number`.
  void Begin(const PersistedInstance& instance, uint64_t first_number);

  // Facts.
  void Write(const Persisted& kept);
  void WriteModel(const Model& model, const SourceFiles& files);
  void WritePlan(const PlanRecord& plan, const LaneShare& lane);
  void Erase(PersistedKey key);
  void EraseOnHost(uint64_t offset);
  // Erases the last hoistd's records, and descriptors that no record names.
  void DropNode(const std::map<PersistedKey, std::string>& records);
  void DropDescriptors(const std::set<PersistedKey>& keys);
  // A new keeper has come.
  absl::Status StoreAgain();

  // Admins' settings.
  void WritePin(const PersistedPin& pin);
  // A pin that the last hoistd wrote as `number`. False: the copy is already
  // pinned.
  bool AdoptPin(uint64_t number, const CopyRef& copy);
  void WriteShare(PlanId plan, const ShareOptions& share);
  void WriteLoadCap(DeviceIndex device, const LoadCap& cap);
  void EraseLoadCap(DeviceIndex device);

 private:
  void Checked(const absl::Status& fact);
  void Noted(const absl::Status& word);
  void WriteOnHost(const PersistedOnHost& at);
  absl::Status WriteSpec(const Model& model, const SourceFiles& files);
  void ForgetPins(ModelId model);

  Keep* const keep_;
  const std::span<const std::byte> host_;
  const AddNote note_;
  bool abandoned_ = false;
  bool warned_host_ = false;
  bool warned_word_ = false;
  uint64_t last_file_ = 0;
  std::map<CopyRef, uint64_t> pins_;  // By copy: the numbers of their records.
  uint64_t last_pin_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SUCCESSOR_BOOK_H_
