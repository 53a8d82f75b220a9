#include "daemon/store/model_roll.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/base/hash.h"
#include "daemon/base/sha256.h"
#include "daemon/base/status.h"
#include "daemon/model/file_header.h"
#include "daemon/store/dir_files.h"

namespace hoistd {
namespace {

constexpr absl::string_view kNew = ".new";
constexpr size_t kNumbers = 3;
constexpr size_t kFixedBytes = sizeof(Hash128) + kNumbers * sizeof(uint32_t);
// Enough for the longest name (types_convert.h).
constexpr uint64_t kMostBytes = 4096;

std::span<const std::byte> BytesOf(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename Digest>
absl::string_view TextOf(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// SHA-256, so that no user can choose a name that collides with another's.
std::string NameOf(const ModelRoll::Models::key_type& model) {
  const auto& [owner, name] = model;
  return absl::BytesToHexString(
      TextOf(Sha256()
                 .Bytes(BytesOf(absl::StrCat(ShortName(owner), ":", name)))
                 .Finish()));
}

}  // namespace

std::string EncodeRollFile(const RollEntry& entry) {
  const auto& [model, groups] = entry;
  const auto& [owner, name] = model;
  const absl::string_view tenant = owner.tenant();
  const uint32_t numbers[kNumbers] = {groups, owner.number(),
                                      static_cast<uint32_t>(tenant.size())};
  const std::string body = absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(numbers), sizeof numbers),
      tenant, name);
  return absl::StrCat(TextOf(Xxh3(BytesOf(body))), body);
}

std::optional<RollEntry> DecodeRollFile(absl::string_view bytes) {
  uint32_t numbers[kNumbers];
  if (bytes.size() < kFixedBytes) return std::nullopt;
  absl::string_view body = bytes.substr(sizeof(Hash128));
  if (TextOf(Xxh3(BytesOf(body))) != bytes.substr(0, sizeof(Hash128))) {
    return std::nullopt;
  }
  std::memcpy(numbers, body.data(), sizeof numbers);
  body.remove_prefix(sizeof numbers);
  const auto [groups, uid, tenant_size] = numbers;
  if (groups == 0 || groups > kMaxTensors || tenant_size > body.size()) {
    return std::nullopt;
  }
  const absl::string_view tenant = body.substr(0, tenant_size);
  const std::optional<User> owner =
      tenant.empty() ? User(uid) : User::Tenant(tenant);
  if (!owner.has_value() || owner->number() != uid) return std::nullopt;
  return RollEntry{{*owner, std::string(body.substr(tenant_size))}, groups};
}

absl::StatusOr<ModelRoll> ModelRoll::Open(const std::string& path,
                                          std::vector<std::string>& notes) {
  HOIST_ASSIGN_OR_RETURN(hoist::UniqueFd dir, MakeDir(path));
  ModelRoll roll(std::move(dir));
  HOIST_RETURN_IF_ERROR(Annotate(roll.Read(notes), path));
  return roll;
}

absl::Status ModelRoll::Read(std::vector<std::string>& notes) {
  HOIST_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         FilesOf(dir_.get()));
  for (const std::string& name : names) {
    if (absl::EndsWith(name, kNew)) {
      // Left by a crash. If it cannot be deleted, the next write replaces it.
      Unlink(dir_.get(), name).IgnoreError();
      continue;
    }
    const absl::Status read = ReadOne(name);
    if (read.ok()) continue;
    notes.push_back(
        absl::StrCat("models/", name, " ", read.message(),
                     ": hoistd cannot tell whether one model lacks groups"));
    // Deletes a damaged file, whose contents are lost. An unreadable one stays,
    // since a later start may read it.
    if (absl::IsDataLoss(read)) Unlink(dir_.get(), name).IgnoreError();
  }
  return absl::OkStatus();
}

absl::Status ModelRoll::ReadOne(const std::string& name) {
  const hoist::UniqueFd fd(
      openat(dir_.get(), name.c_str(),
             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  auto bytes = fd.valid() ? ReadStart(fd.get(), kMostBytes)
                          : ErrnoToStatus(errno, "open");
  if (!bytes.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot be read: ", bytes.status().message()));
  }
  std::optional<RollEntry> entry = DecodeRollFile(
      {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  if (!entry.has_value() || NameOf(entry->first) != name) {
    return absl::DataLossError("is damaged, and was deleted");
  }
  models_.insert(*std::move(entry));
  return absl::OkStatus();
}

absl::Status ModelRoll::Set(const User& owner, const std::string& model,
                            uint32_t groups) {
  const Model key = {owner, model};
  const auto found = models_.find(key);
  const uint32_t known = found == models_.end() ? 0 : found->second;
  if (groups == 0 && known > 0) {
    models_.erase(found);
    unwritten_.insert(key);
  } else if (groups > known) {
    models_[key] = groups;
    unwritten_.insert(key);
  }
  while (!unwritten_.empty()) {
    const auto next = unwritten_.begin();
    HOIST_RETURN_IF_ERROR(Write(*next));
    unwritten_.erase(next);
  }
  return absl::OkStatus();
}

absl::Status ModelRoll::Write(const Model& model) {
  const std::string name = NameOf(model);
  const auto found = models_.find(model);
  if (found == models_.end()) {
    HOIST_RETURN_IF_ERROR(Unlink(dir_.get(), name));
    return SyncDir(dir_.get());
  }
  const std::string next = absl::StrCat(name, kNew);
  HOIST_RETURN_IF_ERROR(WriteSynced(dir_.get(), next, EncodeRollFile(*found)));
  if (renameat(dir_.get(), next.c_str(), dir_.get(), name.c_str()) != 0) {
    return ErrnoToStatus(errno, name);
  }
  return SyncDir(dir_.get());
}

}  // namespace hoistd
