// A group to publish: laid out in a sealed memfd.
#ifndef HOIST_CLIENT_SRC_MODEL_PUBLISHED_IMAGE_H_
#define HOIST_CLIENT_SRC_MODEL_PUBLISHED_IMAGE_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "client/src/messages/messages.h"
#include "client/src/messages/model_table.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

struct SourceTensor {
  TensorEntry entry;  // Offset and size are set by BuildImage.
  const void* data = nullptr;
};

struct PublishedImage {
  GroupEntry group;
  UniqueFd memfd;
};

// Copies tensors' data into host memory.
using ReadBytes =
    std::function<Status(const void* from, std::span<std::byte> to)>;
// For data on the device; writes to it must be finished. Empty: the CPU can
// read it directly. Errors: no driver, no such GPU here.
Result<ReadBytes> ReadFrom(const DeviceFacts& device);

// Bytes that its elements span. InvalidArgument: a negative shape or stride, or
// no data.
Result<uint64_t> CheckedSpan(const SourceTensor& tensor);

// Tensors with equal `data` and size share their bytes. InvalidArgument: a
// tensor without data, a negative shape or stride, a duplicate name, or an
// image larger than kMaxImageBytes.
Result<PublishedImage> BuildImage(std::string group_name,
                                  std::span<const SourceTensor> tensors,
                                  const ReadBytes& read = nullptr);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MODEL_PUBLISHED_IMAGE_H_
