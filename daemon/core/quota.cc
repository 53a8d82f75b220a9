#include "daemon/core/quota.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/types/tier.h"

namespace hoistd {
namespace {

struct Words {
  const char* key;
  const char* noun;  // "holds 3 of 3 NOUN", "holds 1 GiB of 1 GiB NOUN".
  const char* cure;
  bool bytes;
};

Words WordsOf(Quota what) {
  switch (what) {
    case Quota::kSessions:
      return {"sessions", "sessions", "close one", false};
    case Quota::kPlans:
      return {"plans", "plans", "clear one", false};
    case Quota::kModels:
      return {"models", "models", "forget one", false};
    case Quota::kDescriptors:
      return {"descriptors", "descriptors for model files", "forget a model",
              false};
    case Quota::kHeaderBytes:
      return {"header_bytes", "of memory for models' tensors", "forget a model",
              true};
    case Quota::kHeldBytes:
      return {"held_bytes", "of host memory for plans", "clear a plan", true};
    case Quota::kPublishedBytes:
      return {"published_bytes", "of published images in host memory",
              "forget a model, set disk.spill_dir so that they can leave",
              true};
  }
  return {};
}

template <typename Key>
void Take(std::map<Key, uint64_t>& amounts, const Key& key, uint64_t amount) {
  if (amount == 0) return;
  const auto found = amounts.find(key);
  HOIST_CHECK(found != amounts.end() && found->second >= amount);
  found->second -= amount;
  if (found->second == 0) amounts.erase(found);
}

template <typename Key>
void Give(std::map<Key, uint64_t>& amounts, const Key& key, uint64_t amount) {
  if (amount > 0) amounts[key] += amount;
}

template <typename Key>
uint64_t AmountOf(const std::map<Key, uint64_t>& amounts, const Key& key) {
  const auto found = amounts.find(key);
  return found == amounts.end() ? 0 : found->second;
}

bool Over(uint64_t held, uint64_t more, uint64_t limit) {
  return held > limit || more > limit - held;
}

}  // namespace

uint64_t Holdings::Of(Quota what) const { return AmountOf(amounts, what); }

uint64_t Holdings::On(DeviceIndex device) const {
  return AmountOf(device_bytes, device);
}

QuotaBook::QuotaBook(QuotaOptions options, DeviceNames names)
    : options_(std::move(options)), names_(std::move(names)) {}

const QuotaLimits& QuotaBook::LimitsOf(User uid) const {
  const auto tenant = options_.of_tenants.find(uid);
  if (tenant != options_.of_tenants.end()) return tenant->second;
  const auto& trusted = options_.trusted;
  const bool found =
      std::find(trusted.begin(), trusted.end(), uid) != trusted.end();
  return found ? options_.of_trusted : options_.each;
}

uint64_t QuotaBook::LimitOf(User uid, Quota what) const {
  const QuotaLimits& limits = LimitsOf(uid);
  switch (what) {
    case Quota::kSessions:
      return limits.sessions;
    case Quota::kPlans:
      return limits.plans;
    case Quota::kModels:
      return limits.models;
    case Quota::kDescriptors:
      return limits.descriptors;
    case Quota::kHeaderBytes:
      return limits.header_bytes;
    case Quota::kHeldBytes:
      return limits.held_bytes;
    case Quota::kPublishedBytes:
      return limits.published_bytes;
  }
  return QuotaLimits::kNone;
}

uint64_t QuotaBook::DeviceLimitOf(User uid, DeviceIndex device) const {
  const std::vector<uint64_t>& limits = LimitsOf(uid).device_bytes;
  return device.number() < limits.size() ? limits[device.number()]
                                         : QuotaLimits::kNone;
}

absl::Status QuotaBook::Check(User uid, Quota what, uint64_t more) const {
  const uint64_t limit = LimitOf(uid, what);
  const uint64_t held = Of(uid).Of(what);
  if (!Over(held, more, limit)) return absl::OkStatus();
  const Words words = WordsOf(what);
  const auto amount = [&](uint64_t n) {
    return words.bytes ? HumanBytes(n) : absl::StrCat(n);
  };
  std::string text = absl::StrCat(ToString(uid), " holds ", amount(held),
                                  " of ", amount(limit), " ", words.noun);
  if (words.bytes) absl::StrAppend(&text, " and asks for ", amount(more));
  absl::StrAppend(&text, "; ", words.cure, ", or raise ",
                  uid.is_tenant() ? "tenant." : "", "quota.", words.key,
                  " in hoistd.toml");
  return absl::ResourceExhaustedError(text);
}

absl::Status QuotaBook::CheckDevice(User uid, DeviceIndex device,
                                    uint64_t more) const {
  const uint64_t limit = DeviceLimitOf(uid, device);
  const uint64_t held = Of(uid).On(device);
  if (!Over(held, more, limit)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      ToString(uid), " holds ", HumanBytes(held), " of ", HumanBytes(limit),
      " of ", names_.Of(OnDevice(device)), " and asks for ", HumanBytes(more),
      "; release leases or clear plans, or raise ",
      uid.is_tenant() ? "tenant." : "", "quota.device_bytes in hoistd.toml"));
}

void QuotaBook::Add(User uid, Quota what, uint64_t amount) {
  Give(users_[uid].amounts, what, amount);
  Tidy(uid);
}

void QuotaBook::Remove(User uid, Quota what, uint64_t amount) {
  Take(users_[uid].amounts, what, amount);
  Tidy(uid);
}

absl::Status QuotaBook::CheckFiles(
    User uid, const std::vector<FileIdentity>& files) const {
  const Holdings& held = Of(uid);
  std::set<FileIdentity> more;
  for (const FileIdentity& file : files) {
    if (!held.files.contains(file)) more.insert(file);
  }
  if (more.empty()) return absl::OkStatus();
  const uint64_t descriptors = more.size() * kDescriptorsOfAFile;
  HOIST_RETURN_IF_ERROR(Check(uid, Quota::kDescriptors, descriptors));
  if (!Over(descriptors_, descriptors, options_.descriptors_of_all)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "hoistd has ", descriptors_, " of ", options_.descriptors_of_all,
      " descriptors in use for model files, and this model's need ",
      descriptors,
      " more; forget a model, or raise hoistd's LimitNOFILE (systemd), ulimit "
      "-n elsewhere"));
}

void QuotaBook::UseFiles(User uid, const std::vector<FileIdentity>& files) {
  for (const FileIdentity& file : files) {
    if (users_[uid].files[file]++ > 0) continue;
    Add(uid, Quota::kDescriptors, kDescriptorsOfAFile);
    descriptors_ += kDescriptorsOfAFile;
  }
}

void QuotaBook::UnuseFiles(User uid, const std::vector<FileIdentity>& files) {
  for (const FileIdentity& file : files) {
    Holdings& holdings = users_[uid];
    const auto use = holdings.files.find(file);
    HOIST_CHECK(use != holdings.files.end());
    if (--use->second > 0) continue;
    holdings.files.erase(use);
    descriptors_ -= kDescriptorsOfAFile;
    Remove(uid, Quota::kDescriptors, kDescriptorsOfAFile);
  }
}

void QuotaBook::AddBytes(User uid, DeviceIndex device, uint64_t bytes) {
  Give(users_[uid].device_bytes, device, bytes);
  Tidy(uid);
}

void QuotaBook::RemoveBytes(User uid, DeviceIndex device, uint64_t bytes) {
  Take(users_[uid].device_bytes, device, bytes);
  Tidy(uid);
}

void QuotaBook::Use(User uid, const CopyRef& copy, uint64_t bytes) {
  Holdings& holdings = users_[uid];
  Holdings::Use& use = holdings.uses[copy];
  if (use.count++ > 0) return;
  use.bytes = bytes;
  if (copy.place.at.tier == Tier::kDevice) {
    Give(holdings.device_bytes, copy.place.at.device, bytes);
  } else {
    Give(holdings.amounts, Quota::kHeldBytes, bytes);
  }
}

void QuotaBook::Unuse(User uid, const CopyRef& copy) {
  Holdings& holdings = users_[uid];
  const auto use = holdings.uses.find(copy);
  HOIST_CHECK(use != holdings.uses.end());
  if (--use->second.count > 0) return;
  if (copy.place.at.tier == Tier::kDevice) {
    Take(holdings.device_bytes, copy.place.at.device, use->second.bytes);
  } else {
    Take(holdings.amounts, Quota::kHeldBytes, use->second.bytes);
  }
  holdings.uses.erase(use);
  Tidy(uid);
}

bool QuotaBook::Uses(User uid, const CopyRef& copy) const {
  return Of(uid).uses.contains(copy);
}

const Holdings& QuotaBook::Of(User uid) const {
  const auto found = users_.find(uid);
  return found == users_.end() ? nothing_ : found->second;
}

void QuotaBook::Tidy(User uid) {
  const auto found = users_.find(uid);
  if (found != users_.end() && found->second == Holdings()) users_.erase(found);
}

}  // namespace hoistd
