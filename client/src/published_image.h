// A group that a worker hands over: laid out and put into a sealed memfd.
#ifndef HOIST_CLIENT_SRC_PUBLISHED_IMAGE_H_
#define HOIST_CLIENT_SRC_PUBLISHED_IMAGE_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "client/src/messages.h"
#include "client/src/model_table.h"
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

// Brings bytes from where tensors' data lie into host memory.
using ReadBytes =
    std::function<Status(const void* from, std::span<std::byte> to)>;
// For data that lie on the device, which must be done with by what wrote them.
// Empty: they can be read as they are. Its errors: no driver, no such GPU here.
Result<ReadBytes> ReadFrom(const DeviceFacts& device);

// Tensors with equal `data` and size share their bytes. InvalidArgument: a
// tensor without data, of negative shape or stride, twice by one name, or an
// image larger than kMaxImageBytes.
Result<PublishedImage> BuildImage(std::string group_name,
                                  std::span<const SourceTensor> tensors,
                                  const ReadBytes& read = nullptr);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PUBLISHED_IMAGE_H_
