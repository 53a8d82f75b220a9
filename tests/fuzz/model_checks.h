// Invariants of a model that hoistd accepted, whatever its source.
#ifndef HOIST_TESTS_FUZZ_MODEL_CHECKS_H_
#define HOIST_TESTS_FUZZ_MODEL_CHECKS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "daemon/core/requests.h"
#include "daemon/model/file_header.h"
#include "daemon/model/model.h"
#include "daemon/model/tensor.h"

namespace hoistd::fuzz {

// Each tensor has a name of its own, is as long as its shape says, and lies
// between `data_begin` and the file's end, in order and without overlap.
void RequireSoundTensors(const FileHeader& header, uint64_t data_begin,
                         uint64_t file_bytes);
// And they cover the file from `data_begin` to its end without gap.
void RequireSoundHeader(const FileHeader& header, uint64_t data_begin,
                        uint64_t file_bytes);

// Read from one file: tensors lie in order in their groups' images, and are
// read from within the file; no two of a group share a byte.
void RequireSoundModel(const ModelSpec& model, uint64_t file_bytes);

// A valid client-chosen name: not empty, no NUL byte, at most so long.
void RequireName(std::string_view name, size_t max_bytes);
// Output of RegisterModelFromProto, or of gRPC's call.
void RequireSoundRegister(const RegisterModelArgs& args);
// Output of GroupFromProto: tensors within the image.
void RequireSoundGroup(const Group& group);

// A file of a few tensors in a header; joined tensors are made of its own.
FileHeader SmallHeader();
inline constexpr uint64_t kSmallFileBytes = 8 + 1024 + 4096;

// Builds a model of SmallHeader as the client asks: sound, or refused.
void BuildAsWished(const RegisterModelArgs& args);
// The group as published: each tensor's elements within the image. nullptr:
// refused.
std::shared_ptr<const Group> PublishAsSaid(Group group);

}  // namespace hoistd::fuzz

#endif  // HOIST_TESTS_FUZZ_MODEL_CHECKS_H_
