#include "daemon/successor/persisted_host.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/hash.h"
#include "daemon/base/overloaded.h"
#include "daemon/base/status.h"
#include "daemon/store/description.h"
#include "daemon/successor/persisted_keys.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

constexpr uint64_t kPage = hoist::kImageAlignment;
// Pages sampled per part, including its first and last.
constexpr uint64_t kSamples = 16;

// The record of a part, read on the same machine; the book's version changes
// with it.
struct PartRecord {
  Hash128 sample;  // SampleOf
  uint64_t from;
  uint64_t bytes;
  uint64_t device;
  uint64_t inode;
  uint64_t size;
  int64_t mtime_ns;
  int64_t ctime_ns;
  Fingerprint header_hash;
  uint32_t everyone;  // 1: readable by all; 0: by the user below.
  uint32_t uid;
  std::array<char, 32> tenant;  // Padded with NULs; empty: the uid counts.
};
static_assert(std::is_trivially_copyable_v<PartRecord>);
static_assert(sizeof(PartRecord) == 16 + 7 * 8 + 16 + 2 * 4 + 32);

PersistedKey PlaceKey(PersistedKind kind, uint64_t host_offset) {
  return KeyOf(kind, host_offset / kPage);
}

// A hash of evenly spread pages.
Hash128 SampleOf(std::span<const std::byte> bytes) {
  const uint64_t pages = (bytes.size() + kPage - 1) / kPage;
  const uint64_t samples = std::min(pages, kSamples);
  Hasher hasher;
  hasher.Number(bytes.size());
  for (uint64_t i = 0; i < samples; ++i) {
    const uint64_t at =
        samples == 1 ? 0 : (pages - 1) * i / (samples - 1) * kPage;
    hasher.Bytes(bytes.subspan(at, std::min(kPage, bytes.size() - at)));
  }
  return hasher.Finish();
}

PartRecord Encode(const PersistedPart& part, std::span<const std::byte> bytes) {
  PartRecord record = {};
  record.sample = SampleOf(bytes);
  record.from = part.from;
  record.bytes = part.bytes;
  record.device = part.file.device;
  record.inode = part.file.inode;
  record.size = part.file.size;
  record.mtime_ns = part.file.mtime_ns;
  record.ctime_ns = part.file.ctime_ns;
  record.header_hash = part.file.header_hash;
  if (!part.owner.has_value()) {
    record.everyone = 1;
  } else if (part.owner->is_tenant()) {
    const absl::string_view name = part.owner->tenant();
    std::copy(name.begin(), name.end(), record.tenant.begin());
  } else {
    record.uid = part.owner->number();
  }
  return record;
}

std::optional<FoundPart> Decode(uint64_t host_offset, std::string_view value) {
  PartRecord record;
  if (value.size() != sizeof(record)) return std::nullopt;
  std::memcpy(&record, value.data(), sizeof(record));
  FoundPart found;
  found.host_offset = host_offset;
  found.sample = record.sample;
  PersistedPart& part = found.part;
  part.from = record.from;
  part.bytes = record.bytes;
  part.file = {record.device,   record.inode,    record.size,
               record.mtime_ns, record.ctime_ns, record.header_hash};
  if (record.everyone == 1) return found;
  const size_t name = std::find(record.tenant.begin(), record.tenant.end(), 0) -
                      record.tenant.begin();
  part.owner =
      name == 0 ? User(record.uid) : User::Tenant({record.tenant.data(), name});
  // An invalid name would mean everyone.
  if (record.everyone != 0 || !part.owner.has_value()) return std::nullopt;
  return found;
}

absl::Status WriteImage(uint64_t host_offset, const PersistedImage& image,
                        Keep& keep) {
  const PersistedKey key = PlaceKey(PersistedKind::kHostImage, host_offset);
  const ModelSpec& spec = *image.model->spec;
  const uint32_t index = image.group.number();
  SpillMeta meta;
  meta.model = spec.name;
  meta.owner = image.model->owner;
  meta.readers = image.model->readers;
  meta.group_content = spec.group_contents[index];
  meta.group_index = image.group;
  meta.group = *spec.groups[index];
  const std::vector<std::byte> value = EncodeDescription(SpillId(), meta);
  absl::Status written = keep.Write(
      key, {reinterpret_cast<const char*>(value.data()), value.size()});
  if (!written.ok()) keep.Erase(key).IgnoreError();
  return written;
}

absl::Status WritePart(uint64_t host_offset, const PersistedPart& part,
                       std::span<const std::byte> host, Keep& keep) {
  const PartRecord record = Encode(part, host.subspan(host_offset, part.bytes));
  return keep.Write(PlaceKey(PersistedKind::kHostPart, host_offset),
                    {reinterpret_cast<const char*>(&record), sizeof(record)});
}

}  // namespace

FoundOnHost FindOnHost(const std::map<PersistedKey, std::string>& records,
                       std::vector<std::string>& notes) {
  FoundOnHost found;
  for (const auto& [key, value] : records) {
    if (key.kind == PlaceKey(PersistedKind::kHostPart, 0).kind) {
      if (const auto part = Decode(key.id * kPage, value)) {
        found.parts.push_back(*part);
      } else {
        notes.push_back("some bytes of a file that were kept are dropped");
      }
    }
    if (key.kind != PlaceKey(PersistedKind::kHostImage, 0).kind) continue;
    absl::StatusOr<SpillDescription> image =
        DecodeDescription(std::as_bytes(std::span(value)));
    if (!image.ok()) {
      notes.push_back(
          absl::StrCat("a published image that was kept is dropped: ",
                       std::string(image.status().message())));
      continue;
    }
    found.images.push_back({key.id * kPage, std::move(image->meta)});
  }
  const auto order = [](const FoundImage& image) {
    return std::tie(image.meta.owner, image.meta.model, image.meta.group_index);
  };
  std::sort(found.images.begin(), found.images.end(),
            [&](const FoundImage& a, const FoundImage& b) {
              return order(a) < order(b);
            });
  return found;
}

absl::Status CheckParts(std::span<const std::byte> host, Keep& keep,
                        std::vector<FoundPart>& parts,
                        std::vector<std::string>& notes) {
  const auto wrong = [&](const FoundPart& found) {
    const uint64_t at = found.host_offset;
    return at > host.size() || found.part.bytes > host.size() - at ||
           found.sample != SampleOf(host.subspan(at, found.part.bytes));
  };
  const auto first_wrong =
      std::stable_partition(parts.begin(), parts.end(), std::not_fn(wrong));
  if (first_wrong == parts.end()) return absl::OkStatus();
  notes.push_back(absl::StrCat(
      std::distance(first_wrong, parts.end()),
      " pieces of files that were kept are read again when they are needed: "
      "their bytes changed while no hoistd ran"));
  for (auto found = first_wrong; found != parts.end(); ++found) {
    HOIST_RETURN_IF_ERROR(EraseOnHost(found->host_offset, keep));
  }
  parts.erase(first_wrong, parts.end());
  return absl::OkStatus();
}

absl::Status EraseOnHost(uint64_t host_offset, Keep& keep) {
  HOIST_RETURN_IF_ERROR(
      keep.Erase(PlaceKey(PersistedKind::kHostImage, host_offset)));
  return keep.Erase(PlaceKey(PersistedKind::kHostPart, host_offset));
}

absl::Status WriteOnHost(const PersistedOnHost& at,
                         std::span<const std::byte> host, Keep& keep) {
  return std::visit(
      Overloaded{
          [&](std::monostate) { return EraseOnHost(at.host_offset, keep); },
          [&](const PersistedImage& image) {
            return WriteImage(at.host_offset, image, keep);
          },
          [&](const PersistedPart& part) {
            return WritePart(at.host_offset, part, host, keep);
          },
      },
      at.what);
}

}  // namespace hoistd
