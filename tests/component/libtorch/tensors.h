// Tensors compared, and written to files.
#ifndef HOIST_TESTS_COMPONENT_LIBTORCH_TENSORS_H_
#define HOIST_TESTS_COMPONENT_LIBTORCH_TENSORS_H_

#include <torch/torch.h>
#include <torch/version.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "check.h"

namespace hoist_check {

using torch::Tensor;

// Bit for bit, NaNs included; on whatever devices.
inline bool SameBits(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return false;
  }
  const Tensor x = a.detach().cpu().contiguous();
  const Tensor y = b.detach().cpu().contiguous();
  return x.nbytes() == 0 ||
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Whether a view of `weight`, which is not staged, shows nothing.
inline bool ShowsNothing(const Tensor& view,
                         [[maybe_unused]] const std::string& weight) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
  const std::string said = Thrown([&] { view.clone(); });
  return Says(said, "\"" + weight + "\"") && Says(said, "not staged");
#else  // It reads address 0.
  return view.const_data_ptr() == nullptr;
#endif
}

// Square layers, the same for the same seed.
inline torch::nn::Sequential Linears(uint64_t seed, int layers, int width) {
  torch::manual_seed(seed);
  torch::nn::Sequential net;
  for (int i = 0; i < layers; ++i) {
    net->push_back(torch::nn::Linear(width, width));
  }
  return net;
}

struct LargeBlockImpl : torch::nn::Module {
  explicit LargeBlockImpl(torch::nn::Sequential of)
      : layers(register_module("layers", std::move(of))) {}
  Tensor forward(const Tensor& x) { return layers->forward(x); }

  torch::nn::Sequential layers;
};
TORCH_MODULE(LargeBlock);

inline torch::nn::Sequential Blocks(int blocks, int layers, int width) {
  torch::nn::Sequential net;
  for (int i = 0; i < blocks; ++i) {
    net->push_back(LargeBlock(Linears(i + 1, layers, width)));
  }
  return net;
}

// As safetensors has it; F32 only.
inline void WriteModel(const std::string& path,
                       const std::map<std::string, Tensor>& tensors) {
  std::string header = "{", body;
  for (const auto& [name, tensor] : tensors) {
    const Tensor flat = tensor.detach().cpu().contiguous();
    std::string shape;
    for (const int64_t size : flat.sizes()) {
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    }
    const size_t at = body.size();
    body.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    header += (header.size() == 1 ? "\"" : ",\"") + name +
              "\":{\"dtype\":\"F32\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(at) + "," +
              std::to_string(body.size()) + "]}";
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t size = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file << header << body;
}

}  // namespace hoist_check

#endif  // HOIST_TESTS_COMPONENT_LIBTORCH_TENSORS_H_
