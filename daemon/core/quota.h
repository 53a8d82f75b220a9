// What one user (uid) holds of the node, and how much of it one user may hold.
//
// Running totals: whoever grants or takes back says so here, so that a check
// costs the same however much is there. A copy that several of a user's
// sessions and plans use counts once for that user; what several users use
// counts in full for each, so that nobody's total changes by what others do.
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
#include "daemon/terms/ids.h"

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
  uint64_t host_bytes = kNone;  // What plans hold and is published, together.
  std::vector<uint64_t> device_bytes;  // One a device; kNone where it ends.
};

struct QuotaOptions {
  QuotaLimits each;  // Of every user, but for
  std::vector<User> trusted;
  QuotaLimits of_trusted;
  std::map<User, QuotaLimits> of_tenants;
  // Of all users' model files together.
  uint64_t descriptors_of_all = QuotaLimits::kNone;
};

// What the keys of [quota] count, but for device_bytes.
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

// What one user holds.
struct Holdings {
  struct Use {
    uint32_t count = 0;
    uint64_t bytes = 0;

    bool operator==(const Use&) const = default;
  };
  std::map<Quota, uint64_t> amounts;             // Those that are not 0.
  std::map<DeviceIndex, uint64_t> device_bytes;  // Likewise.
  std::map<CopyRef, Use> uses;  // Of copies on devices, and held on the host.
  // How many of the user's models are read from each file. It is open once.
  std::map<FileIdentity, uint32_t> files;

  uint64_t Of(Quota what) const;
  uint64_t On(DeviceIndex device) const;
  bool operator==(const Holdings&) const = default;
};

// Threads:  one at a time.
// Bounds:   one entry a user that holds something; in it one a copy in use.
// Restart:  not persistent, as what it counts is not.
class QuotaBook {
 public:
  explicit QuotaBook(QuotaOptions options = {}, DeviceNames names = {});

  // From now on; what is held stays.
  void SetOptions(QuotaOptions options) { options_ = std::move(options); }

  // ResourceExhausted: with `more` the user would hold more than one may; the
  // text names the user, both amounts, the key and what would do.
  absl::Status Check(User uid, Quota what, uint64_t more) const;
  absl::Status CheckDevice(User uid, DeviceIndex device, uint64_t more) const;

  void Add(User uid, Quota what, uint64_t amount);
  // The user holds so much of it.
  void Remove(User uid, Quota what, uint64_t amount);
  // The same of files that are to be kept open; those that the user's models
  // have in use already cost nothing.
  absl::Status CheckFiles(User uid,
                          const std::vector<FileIdentity>& files) const;
  // One more, or one less, of the user's models is read from them.
  void UseFiles(User uid, const std::vector<FileIdentity>& files);
  void UnuseFiles(User uid, const std::vector<FileIdentity>& files);
  // Device memory that is no copy: a ring, an arena.
  void AddBytes(User uid, DeviceIndex device, uint64_t bytes);
  void RemoveBytes(User uid, DeviceIndex device, uint64_t bytes);
  // One more, or one less, of the user's sessions and plans uses the copy. On
  // the host that is a plan that holds it.
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
  // Forgets a user who holds nothing.
  void Tidy(User uid);

  QuotaOptions options_;
  const DeviceNames names_;
  const Holdings nothing_;
  std::map<User, Holdings> users_;
  uint64_t descriptors_ = 0;  // Of all users.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_QUOTA_H_
