// Writes safetensors files with bytes that a test can recognise.
#ifndef HOIST_TESTS_SUPPORT_SAFETENSORS_WRITER_H_
#define HOIST_TESTS_SUPPORT_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hoist/shared/dtype.h"

namespace hoistd::testing {

struct TensorToWrite {
  std::string name;
  hoist::DType dtype = hoist::DType::kF32;
  std::vector<int64_t> shape;
};

// The tensor's contents: a function of seed and name.
std::string TensorBytes(uint64_t seed, const std::string& name, size_t bytes);

// 8 bytes of length, then `json`.
std::string WithLength(const std::string& json);

// A whole file, with tensors in the given order and the header padded to 8
// bytes. InvalidArgument: a shape without a size.
absl::StatusOr<std::string> SafetensorsFile(
    std::span<const TensorToWrite> tensors, uint64_t seed,
    const std::map<std::string, std::string>& metadata = {});

absl::Status WriteFile(const std::string& path, const std::string& bytes);

struct WrittenModel {
  std::vector<std::string> files;  // Base names.
  std::string index;               // Base name; empty for one file.
};

// Writes `shards` files "model-0000i-of-0000n.safetensors" with consecutive
// tensors each, and model.safetensors.index.json; or one "model.safetensors".
absl::StatusOr<WrittenModel> WriteModel(const std::string& folder,
                                        std::span<const TensorToWrite> tensors,
                                        size_t shards, uint64_t seed);

// A small transformer: embeddings, `layers` blocks, a norm and a head, named as
// in BERT and Llama.
std::vector<TensorToWrite> SmallTransformer(int layers, int64_t width);

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_SAFETENSORS_WRITER_H_
