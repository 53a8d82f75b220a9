// A group to publish: laid out in a sealed memfd.
#ifndef HOIST_CLIENT_SRC_MODEL_PUBLISHED_IMAGE_H_
#define HOIST_CLIENT_SRC_MODEL_PUBLISHED_IMAGE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "client/src/messages/messages.h"
#include "client/src/messages/model_table.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

struct SourceTensor {
  TensorEntry entry;  // Offset and size are set by BuildImage.
  const void* data = nullptr;
  bool on_host = false;  // Although BuildImage is told how to read the others.
};

struct PublishedImage {
  GroupEntry group;
  UniqueFd memfd;
};

// Copies tensors' data into host memory, no page of which another copy has.
// Several threads call it at once.
using ReadBytes =
    std::function<Status(const void* from, std::span<std::byte> to)>;
// For data on the device; writes to it must be finished. Empty: the CPU can
// read it directly. Errors: no driver, no such GPU here.
Result<ReadBytes> ReadFrom(const DeviceFacts& device);

// Bytes that its elements span. InvalidArgument: a negative shape or stride, or
// no data.
Result<uint64_t> CheckedSpan(const SourceTensor& tensor);

// Enough for a good part of the memory bandwidth; the other CPUs are for hoistd
// and the worker.
inline uint64_t FillingThreads() {
  return std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u);
}

// Tensors with equal `data` and size share their bytes. InvalidArgument: a
// tensor without data, or with data that the CPU is to read and cannot, a
// negative shape or stride, a duplicate name, or an image larger than
// kMaxImageBytes. ResourceExhausted: no memory for it.
Result<PublishedImage> BuildImage(std::string group_name,
                                  std::span<const SourceTensor> tensors,
                                  const ReadBytes& read = nullptr,
                                  uint64_t threads = FillingThreads());

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MODEL_PUBLISHED_IMAGE_H_
