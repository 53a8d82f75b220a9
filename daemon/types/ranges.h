// Ranges of bytes, and where they lie.
#ifndef HOIST_DAEMON_TYPES_RANGES_H_
#define HOIST_DAEMON_TYPES_RANGES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hoistd {

// A range of an image, or of a file.
struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;

  bool operator==(const ByteRange&) const = default;
};

// A range of a source file's sheet (model/sheet.h).
struct SheetRange {
  uint32_t file = 0;    // Index into ModelSpec::files.
  uint64_t offset = 0;  // In its sheet.
  uint64_t bytes = 0;

  uint64_t end() const { return offset + bytes; }
  auto operator<=>(const SheetRange&) const = default;
};

// A range of an image, and its place in the host pool.
struct ImageRange {
  uint64_t host_offset = 0;
  uint64_t image_offset = 0;
  uint64_t bytes = 0;

  auto operator<=>(const ImageRange&) const = default;
};

// All of an image, in its order, without empty ranges. Gaps are padding.
using ImageRanges = std::vector<ImageRange>;

// Bytes on the host, and their place in what they are copied to: a device's
// span, or an image.
struct HostRun {
  uint64_t to_offset = 0;
  std::span<const std::byte> from;
};

// Rows on the host, equally long and equally far apart, that lie end to end in
// what they are copied to: a column slice of a matrix, as of a rank.
struct HostRows {
  uint64_t to_offset = 0;
  std::span<const std::byte> first;
  uint64_t count = 1;
  uint64_t pitch = 0;  // Bytes from a row's begin to the next one's.

  uint64_t bytes() const { return count * first.size(); }
  std::span<const std::byte> row(uint64_t i) const {
    return {first.data() + i * pitch, first.size()};
  }
  // From the first row's begin to the last one's end.
  std::span<const std::byte> whole() const {
    return {first.data(), (count - 1) * pitch + first.size()};
  }
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TYPES_RANGES_H_
