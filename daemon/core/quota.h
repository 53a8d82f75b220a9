// What each user (uid) holds of the node, and the limits (admission control).
//
// Running totals: each grant and release is recorded here, so a check has
// constant cost. A copy used by several of a user's sessions and plans counts
// once for that user. A copy used by several users counts in full for each, so
// no user's total depends on others.
#ifndef HOIST_DAEMON_CORE_QUOTA_H_
#define HOIST_DAEMON_CORE_QUOTA_H_

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/device_names.h"
#include "daemon/model/tensor.h"
#include "daemon/types/ids.h"

namespace hoistd {

struct QuotaLimits {
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

  uint64_t sessions = kNone;
  uint64_t plans = kNone;
  uint64_t models = kNone;
  uint64_t descriptors = kNone;
  uint64_t header_bytes = kNone;
  uint64_t held_bytes = kNone;
  uint64_t published_bytes = kNone;
  uint64_t host_bytes = kNone;         // Held by plans or published, in sum.
  std::vector<uint64_t> device_bytes;  // Per device; beyond its end kNone.
};

struct QuotaOptions {
  QuotaLimits each;  // Of every user, except
  std::vector<User> trusted;
  QuotaLimits of_trusted;
  std::map<User, QuotaLimits> of_tenants;
  // Of all users' model files together.
  uint64_t descriptors_of_all = QuotaLimits::kNone;
};

// What the keys of [quota] count, except device_bytes.
enum class Quota {
  kSessions,
  kPlans,
  kModels,
  kDescriptors,
  kHeaderBytes,
  kHeldBytes,
  kPublishedBytes
};

// An open file may take two: one for direct reads, one for all else.
inline constexpr uint64_t kDescriptorsOfAFile = 2;

// One user's holdings.
struct Holdings {
  struct Use {
    uint32_t count = 0;
    uint64_t bytes = 0;

    bool operator==(const Use&) const = default;
  };
  std::map<Quota, uint64_t> amounts;             // Those that are not 0.
  std::map<DeviceIndex, uint64_t> device_bytes;  // Likewise.
  std::map<CopyRef, Use> uses;  // Of device copies, and of held host copies.
  // Number of the user's models per file. A file is open once.
  std::map<FileIdentity, uint32_t> files;

  uint64_t Of(Quota what) const;
  uint64_t On(DeviceIndex device) const;
  bool operator==(const Holdings&) const = default;
};

// Threads:  one at a time.
// Bounds:   one entry per user with holdings; in it, one per copy in use.
// Restart:  not persistent, as what it counts is not.
class QuotaBook {
 public:
  explicit QuotaBook(QuotaOptions options = {}, DeviceNames names = {});

  // Takes effect now; existing holdings stay.
  void SetOptions(QuotaOptions options) { options_ = std::move(options); }

  // ResourceExhausted: `more` would exceed the user's limit. The text names the
  // user, both amounts, the key, and a sufficient limit.
  absl::Status Check(User uid, Quota what, uint64_t more) const;
  absl::Status CheckDevice(User uid, DeviceIndex device, uint64_t more) const;

  void Add(User uid, Quota what, uint64_t amount);
  // The user must hold at least `amount`.
  void Remove(User uid, Quota what, uint64_t amount);
  // As Check, for files to be kept open; files that the user's models already
  // use cost nothing.
  absl::Status CheckFiles(User uid,
                          const std::vector<FileIdentity>& files) const;
  // One more, or one less, of the user's models reads these files.
  void UseFiles(User uid, const std::vector<FileIdentity>& files);
  void UnuseFiles(User uid, const std::vector<FileIdentity>& files);
  // Device memory other than copies: a ring, an arena.
  void AddBytes(User uid, DeviceIndex device, uint64_t bytes);
  void RemoveBytes(User uid, DeviceIndex device, uint64_t bytes);
  // One more, or one less, of the user's sessions and plans uses the copy; for
  // a host copy, of the plans that hold it.
  void Use(User uid, const CopyRef& copy, uint64_t bytes);
  void Unuse(User uid, const CopyRef& copy);

  bool Uses(User uid, const CopyRef& copy) const;
  const Holdings& Of(User uid) const;
  uint64_t LimitOf(User uid, Quota what) const;
  uint64_t HostLimitOf(User uid) const { return LimitsOf(uid).host_bytes; }
  uint64_t DeviceLimitOf(User uid, DeviceIndex device) const;
  const std::map<User, Holdings>& users() const { return users_; }

 private:
  const QuotaLimits& LimitsOf(User uid) const;
  // Drops the entry of a user without holdings.
  void Tidy(User uid);

  QuotaOptions options_;
  const DeviceNames names_;
  const Holdings nothing_;
  std::map<User, Holdings> users_;
  uint64_t descriptors_ = 0;  // Of all users.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_QUOTA_H_
