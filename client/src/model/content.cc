#include "client/src/model/content.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "client/src/messages/model_table.h"
#include "hoist/shared/dtype.h"

namespace hoist {
namespace {

constexpr uint64_t kContentPiece = uint64_t{16} << 20;

Sha256Digest ContentOf(std::span<const std::byte> bytes) {
  Sha256 whole;
  while (!bytes.empty()) {
    const auto piece =
        bytes.first(std::min<uint64_t>(bytes.size(), kContentPiece));
    const Sha256Digest digest = Sha256().Bytes(piece).Finish();
    whole.Bytes(std::as_bytes(std::span(digest)));
    bytes = bytes.subspan(piece.size());
  }
  return whole.Finish();
}

}  // namespace

Result<Sha256Digest> GroupContent(std::string_view name,
                                  std::span<const SourceTensor> tensors) {
  std::map<std::pair<const void*, uint64_t>, Sha256Digest> known;
  Sha256 group;
  group.String("hoist group 2").String(name).Number(tensors.size());
  for (const SourceTensor& tensor : tensors) {
    const TensorEntry& entry = tensor.entry;
    Result<uint64_t> span = CheckedSpan(tensor);
    if (!span.ok()) return span.status();
    group.String(entry.name).String(NameOf(entry.dtype));
    group.Number(entry.shape.size());
    for (const int64_t size : entry.shape) {
      group.Number(static_cast<uint64_t>(size));
    }
    for (const int64_t stride : entry.strides) {
      group.Number(static_cast<uint64_t>(stride));
    }
    const auto [at, fresh] = known.try_emplace({tensor.data, *span});
    if (fresh) {
      at->second =
          ContentOf({static_cast<const std::byte*>(tensor.data), *span});
    }
    group.Number(*span).Bytes(std::as_bytes(std::span(at->second)));
  }
  return group.Finish();
}

Sha256Digest ModelContent(std::vector<Sha256Digest> groups) {
  std::sort(groups.begin(), groups.end());
  Sha256 model;
  model.String("hoist model 2").Number(groups.size());
  for (const Sha256Digest& group : groups) {
    model.Bytes(std::as_bytes(std::span(group)));
  }
  return model.Finish();
}

}  // namespace hoist
