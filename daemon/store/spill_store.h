#ifndef HOIST_DAEMON_STORE_SPILL_STORE_H_
#define HOIST_DAEMON_STORE_SPILL_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/task_threads.h"
#include "daemon/store/model_roll.h"
#include "daemon/store/segment_dir.h"
#include "daemon/store/spill_scan.h"
#include "daemon/store/spill_types.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

// The disk tier of published images: one checksummed, self-describing segment
// file per image. The directory is the catalogue.
//
// Once Put's `done` reports OK, the image survives a power cut. If the daemon
// stops before, the next start finds all of the image or none of it. All bytes
// of Get, and all facts of List, have passed their checksums.
//
// Threads:  thread-safe. Each callback comes once, from a thread of the store
//           with no lock held, and must not block. One thread of the store uses
//           the directory, others compute checksums.
// Owns:     the directory, locked against other stores. Borrows the engine.
//           The destructor waits for all requests.
// Bounds:   `capacity_bytes` of segment files, lost ones included.
// Restart:  everything is on the disk.
class SpillStore {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  using PutDone = absl::AnyInvocable<void(absl::StatusOr<SpillId>)>;

  // Cleans up after a crash or damage, and reports it in notes(). Damaged
  // images and a full disk do not prevent opening (spill_scan.h).
  // FailedPrecondition: the directory is in use, or a newer hoistd wrote it.
  static absl::StatusOr<std::unique_ptr<SpillStore>> Open(
      const SpillOptions& options, IoEngine& io);
  ~SpillStore();

  // `image` has `meta->group.image_bytes` bytes, is 4 KiB aligned, and does not
  // change until `done`. ResourceExhausted: no room in the capacity or on the
  // disk. After any error nothing is left of it.
  void Put(std::shared_ptr<const SpillMeta> meta,
           std::span<const std::byte> image, PutDone done)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Fills `to`, of the image's size. NotFound. DataLoss: the image is damaged,
  // and now in quarantine. After any error `to` must not be used.
  void Get(SpillId id, std::span<std::byte> to, Done done)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Reads and checks the whole image as Get does, but delivers nothing. Runs
  // for one image at a time, in 16 MiB and its header. NotFound. DataLoss: it
  // is damaged, and in quarantine, now or since before.
  void Verify(SpillId id, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // Also frees a quarantined image, and works on a full disk. NotFound.
  void Remove(SpillId id, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // Records a published model's number of groups, some of which may never be
  // put. 0 forgets the model. Written as soon as the disk allows, without an
  // answer.
  void NoteModel(User owner, std::string model, uint32_t groups)
      ABSL_LOCKS_EXCLUDED(mu_);
  // These numbers when the store was opened. Groups that List() lacks were
  // never on a disk.
  const ModelRoll::Models& models() const { return models_; }

  // By id, quarantined ones too.
  std::vector<SpillRecord> List() const ABSL_LOCKS_EXCLUDED(mu_);
  SpillUsage usage() const ABSL_LOCKS_EXCLUDED(mu_);
  // The problems at Open. Every image that has a file but is not in List() is
  // named here, or counted in the last note if there are very many.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct PutJob;
  struct GetJob;

  SpillStore(const SpillOptions& options, IoEngine& io, SegmentDir dir,
             SpillScan found, ModelRoll roll);

  absl::Status CheckPut(const SpillMeta& meta,
                        std::span<const std::byte> image) const;
  // Reserves the bytes and the id. ResourceExhausted.
  absl::StatusOr<SpillId> Reserve(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void StartPut(std::shared_ptr<PutJob> job);
  void WriteHeader(std::shared_ptr<PutJob> job);
  void Publish(std::shared_ptr<PutJob> job);
  void FinishPut(const std::shared_ptr<PutJob>& job, absl::Status status)
      ABSL_LOCKS_EXCLUDED(mu_);

  // An image that can be read. NotFound. DataLoss: in quarantine.
  absl::StatusOr<StoredImage> FindSound(SpillId id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  void StartGet(std::shared_ptr<GetJob> job);
  void StartVerify(std::shared_ptr<GetJob> job);
  void CheckHeader(std::shared_ptr<GetJob> job);
  void ReadBlocks(std::shared_ptr<GetJob> job);
  void VerifyFrom(std::shared_ptr<GetJob> job, uint64_t at);
  void FinishGet(std::shared_ptr<GetJob> job, const absl::Status& status);
  void EndGet(const std::shared_ptr<GetJob>& job, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the status for the caller of Get.
  absl::Status Quarantine(SpillId id, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status DoRemove(SpillId id) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls back on the desk, for answers that are known at once.
  void Answer(Done done, absl::Status status);
  void Begin() ABSL_LOCKS_EXCLUDED(mu_);
  void End() ABSL_LOCKS_EXCLUDED(mu_);

  const SpillOptions options_;
  IoEngine& io_;
  SegmentDir dir_;  // Only the desk's, once open.
  ModelRoll roll_;  // Only the desk's, once open.
  const ModelRoll::Models models_;
  const uint64_t lost_bytes_;
  std::vector<std::string> notes_;  // Unchanged, once open.

  mutable absl::Mutex mu_;
  std::map<SpillId, StoredImage> images_ ABSL_GUARDED_BY(mu_);
  uint64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  // The first one is running. Each is shared with its running steps.
  std::deque<std::shared_ptr<GetJob>> verifying_ ABSL_GUARDED_BY(mu_);

  TaskThreads hashers_;
  TaskThreads desk_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SPILL_STORE_H_
