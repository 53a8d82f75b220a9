#include "client/src/model/content.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include "client/src/base/start_thread.h"
#include "hoist/shared/dtype.h"

namespace hoist {
namespace {

using Bytes = std::span<const std::byte>;

constexpr uint64_t kHashedPiece = uint64_t{16} << 20;
constexpr uint64_t kMostThreads = 16;

// Of the pieces of all ranges, in order.
std::vector<Sha256Digest> PieceDigests(std::span<const Bytes> ranges) {
  std::vector<Bytes> pieces;
  uint64_t bytes = 0;
  for (const Bytes range : ranges) {
    for (uint64_t at = 0; at < range.size(); at += kHashedPiece) {
      pieces.push_back(range.subspan(
          at, std::min<uint64_t>(kHashedPiece, range.size() - at)));
    }
    bytes += range.size();
  }
  std::vector<Sha256Digest> digests(pieces.size());
  std::atomic<size_t> next{0};
  const uint64_t helpers = std::min(
      {bytes / kHashedPiece, kMostThreads - 1,
       uint64_t{std::max(1u, std::thread::hardware_concurrency())} - 1});
  WithHelpers(helpers, [&] {
    for (size_t at = next++; at < pieces.size(); at = next++) {
      digests[at] = Sha256().Bytes(pieces[at]).Finish();
    }
  });
  return digests;
}

// Of each range.
std::vector<Sha256Digest> RangeDigests(std::span<const Bytes> ranges) {
  const std::vector<Sha256Digest> pieces = PieceDigests(ranges);
  std::vector<Sha256Digest> digests;
  auto piece = pieces.begin();
  for (const Bytes range : ranges) {
    Sha256 whole;
    for (uint64_t at = 0; at < range.size(); at += kHashedPiece) {
      whole.Bytes(std::as_bytes(std::span(*piece++)));
    }
    digests.push_back(whole.Finish());
  }
  return digests;
}

}  // namespace

Result<Sha256Digest> GroupContent(std::string_view name,
                                  std::span<const SourceTensor> tensors) {
  std::vector<Bytes> ranges;
  std::vector<size_t> range_of;  // By tensor.
  std::map<std::pair<const void*, uint64_t>, size_t> known;
  for (const SourceTensor& tensor : tensors) {
    Result<uint64_t> span = CheckedSpan(tensor);
    if (!span.ok()) return span.status();
    const auto [at, fresh] =
        known.try_emplace({tensor.data, *span}, ranges.size());
    range_of.push_back(at->second);
    if (fresh) {
      ranges.emplace_back(static_cast<const std::byte*>(tensor.data), *span);
    }
  }
  const std::vector<Sha256Digest> digests = RangeDigests(ranges);
  Sha256 group;
  group.String("hoist group 2").String(name).Number(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& entry = tensors[i].entry;
    group.String(entry.name).String(NameOf(entry.dtype));
    group.Number(entry.shape.size());
    for (const int64_t size : entry.shape) {
      group.Number(static_cast<uint64_t>(size));
    }
    for (const int64_t stride : entry.strides) {
      group.Number(static_cast<uint64_t>(stride));
    }
    group.Number(ranges[range_of[i]].size());
    group.Bytes(std::as_bytes(std::span(digests[range_of[i]])));
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
