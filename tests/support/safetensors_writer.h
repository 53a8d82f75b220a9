// Safetensors files made to order, with bytes that a test can tell again.
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

// The tensor's contents: the same for the same seed and name, and different
// for others.
std::string TensorBytes(uint64_t seed, const std::string& name, size_t bytes);

// 8 bytes of length, then `json`.
std::string WithLength(const std::string& json);

// A whole file, tensors in the order given, the header padded to 8 bytes.
// InvalidArgument: a shape without a size.
absl::StatusOr<std::string> SafetensorsFile(
    std::span<const TensorToWrite> tensors, uint64_t seed,
    const std::map<std::string, std::string>& metadata = {});

absl::Status WriteFile(const std::string& path, const std::string& bytes);

struct WrittenModel {
  std::vector<std::string> files;  // Base names.
  std::string index;               // Base name; empty for one file.
};

// `shards` files "model-0000i-of-0000n.safetensors" with the tensors dealt out
// in runs, and model.safetensors.index.json; or one "model.safetensors".
absl::StatusOr<WrittenModel> WriteModel(const std::string& folder,
                                        std::span<const TensorToWrite> tensors,
                                        size_t shards, uint64_t seed);

// A transformer in small: embeddings, `layers` blocks, a norm and a head, as
// BERT and Llama name them.
std::vector<TensorToWrite> SmallTransformer(int layers, int64_t width);

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_SAFETENSORS_WRITER_H_
