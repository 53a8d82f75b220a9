#include "daemon/store/model_roll.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {
namespace {

constexpr uint64_t kSlack = uint64_t{1} << 20;
constexpr size_t kHashBytes = sizeof(Hash128);
constexpr size_t kNumbers = 4;
constexpr size_t kFixedBytes = kHashBytes + kNumbers * sizeof(uint32_t);

struct Entry {
  User owner;
  std::string model;
  uint32_t groups = 0;
};

std::string HashOf(absl::string_view bytes) {
  const Hash128 hash =
      Xxh3(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return std::string(reinterpret_cast<const char*>(hash.data()), hash.size());
}

std::string RecordOf(const User& owner, const std::string& model,
                     uint32_t groups) {
  const absl::string_view tenant = owner.tenant();
  const uint32_t numbers[kNumbers] = {
      static_cast<uint32_t>(kFixedBytes - kHashBytes + tenant.size() +
                            model.size()),
      groups, owner.number(), static_cast<uint32_t>(tenant.size())};
  const std::string body = absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(numbers), sizeof numbers),
      tenant, model);
  return HashOf(body) + body;
}

// The first of `bytes`, which is taken off them. nullopt: there is none, or it
// is damaged.
std::optional<Entry> Take(absl::string_view& bytes) {
  uint32_t numbers[kNumbers];
  if (bytes.size() < kFixedBytes) return std::nullopt;
  std::memcpy(numbers, bytes.data() + kHashBytes, sizeof numbers);
  const auto [size, groups, uid, tenant_size] = numbers;
  if (size < sizeof numbers || size > bytes.size() - kHashBytes ||
      tenant_size > size - sizeof numbers) {
    return std::nullopt;
  }
  const absl::string_view body = bytes.substr(kHashBytes, size);
  if (HashOf(body) != bytes.substr(0, kHashBytes)) return std::nullopt;
  const absl::string_view tenant = body.substr(sizeof numbers, tenant_size);
  const std::optional<User> owner =
      tenant.empty() ? User(uid) : User::Tenant(tenant);
  if (!owner.has_value()) return std::nullopt;
  bytes.remove_prefix(kHashBytes + size);
  return Entry{*owner, std::string(body.substr(sizeof numbers + tenant_size)),
               groups};
}

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoToStatus(written < 0 ? errno : EIO, "write");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return fdatasync(fd) == 0 ? absl::OkStatus() : ErrnoToStatus(errno, "sync");
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  const hoist::UniqueFd fd(
      open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) return ErrnoToStatus(errno, folder);
  return absl::OkStatus();
}

}  // namespace

ModelRoll ModelRoll::Open(const std::string& path,
                          std::vector<std::string>& notes) {
  ModelRoll roll(path);
  roll.Read(notes);
  if (!roll.broken_) return roll;
  // What would be appended would stand behind the damage.
  const absl::Status written = roll.WriteAnew();
  if (!written.ok()) {
    notes.push_back(absl::StrCat("the roll of models cannot be written anew: ",
                                 std::string(written.message())));
  }
  return roll;
}

void ModelRoll::Read(std::vector<std::string>& notes) {
  std::ifstream file(path_, std::ios::binary);
  if (!file.is_open()) {
    if (errno == ENOENT) return;
    broken_ = true;
    notes.push_back(absl::StrCat("the roll of models cannot be read: ",
                                 std::strerror(errno)));
    return;
  }
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  bytes_ = all.size();
  absl::string_view rest = all;
  while (std::optional<Entry> entry = Take(rest)) {
    const std::pair<User, std::string> model = {entry->owner, entry->model};
    if (entry->groups == 0) {
      models_.erase(model);
    } else {
      models_[model] = entry->groups;
    }
  }
  if (rest.empty() && !file.bad()) return;
  broken_ = true;
  notes.push_back(
      "the roll of models is damaged, or was cut short: of models that were "
      "published last it is not known whether groups are missing");
}

absl::Status ModelRoll::Set(const User& owner, const std::string& model,
                            uint32_t groups) {
  const std::pair<User, std::string> key = {owner, model};
  const auto found = models_.find(key);
  const uint32_t known = found == models_.end() ? 0 : found->second;
  if (groups == known || (groups != 0 && groups < known)) {
    return broken_ ? WriteAnew() : absl::OkStatus();
  }
  if (groups == 0) {
    models_.erase(found);
  } else {
    models_[key] = groups;
  }
  if (broken_ || bytes_ > kSlack + 4 * models_.size() * kFixedBytes) {
    return WriteAnew();
  }
  const absl::Status appended = Append(RecordOf(owner, model, groups));
  broken_ = !appended.ok();
  return appended;
}

absl::Status ModelRoll::Append(const std::string& record) {
  const hoist::UniqueFd fd(
      open(path_.c_str(),
           O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoToStatus(errno, path_);
  HOIST_RETURN_IF_ERROR(Annotate(WriteAll(fd.get(), record), path_));
  const bool is_new = bytes_ == 0;
  bytes_ += record.size();
  return is_new ? SyncFolderOf(path_) : absl::OkStatus();
}

absl::Status ModelRoll::WriteAnew() {
  broken_ = true;
  std::string all;
  for (const auto& [model, groups] : models_) {
    all += RecordOf(model.first, model.second, groups);
  }
  const std::string next = path_ + ".new";
  const hoist::UniqueFd fd(
      open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
           0600));
  if (!fd.valid()) return ErrnoToStatus(errno, next);
  HOIST_RETURN_IF_ERROR(Annotate(WriteAll(fd.get(), all), next));
  if (rename(next.c_str(), path_.c_str()) != 0) {
    return ErrnoToStatus(errno, path_);
  }
  bytes_ = all.size();
  broken_ = false;
  return SyncFolderOf(path_);
}

}  // namespace hoistd
