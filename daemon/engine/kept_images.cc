#include "daemon/engine/kept_images.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/store/description.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

KeptKey KeyOf(uint64_t host_offset) {
  return {static_cast<uint32_t>(KeptKind::kHostImage),
          host_offset / hoist::kImageAlignment};
}

}  // namespace

std::vector<FoundImage> FindKeptImages(
    const std::map<KeptKey, std::string>& records,
    std::vector<std::string>& notes) {
  std::vector<FoundImage> found;
  for (const auto& [key, value] : records) {
    if (key.kind != KeyOf(0).kind) continue;
    absl::StatusOr<SpillDescription> image =
        DecodeDescription(std::as_bytes(std::span(value)));
    if (!image.ok()) {
      notes.push_back(
          absl::StrCat("a published image that was kept is dropped: ",
                       std::string(image.status().message())));
      continue;
    }
    found.push_back({key.id * hoist::kImageAlignment, std::move(image->meta)});
  }
  const auto order = [](const FoundImage& image) {
    return std::tie(image.meta.owner, image.meta.model, image.meta.group_index);
  };
  std::sort(found.begin(), found.end(),
            [&](const FoundImage& a, const FoundImage& b) {
              return order(a) < order(b);
            });
  return found;
}

absl::Status EraseKeptImage(uint64_t host_offset, Keep& keep) {
  return keep.Erase(KeyOf(host_offset));
}

absl::Status WriteKeptImage(const KeptImage& image, Keep& keep) {
  const KeptKey key = KeyOf(image.host_offset);
  if (image.model == nullptr) return keep.Erase(key);
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

}  // namespace hoistd
