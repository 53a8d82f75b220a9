#include "tests/sim/system/sim_models.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "tests/support/safetensors_writer.h"

namespace hoistd::sim {
namespace {

using hoistd::testing::SafetensorsFile;
using hoistd::testing::TensorBytes;
using hoistd::testing::TensorToWrite;

uint64_t SeedOf(FileModel model) {
  return 1 + model.name * SimModels::kVariants + model.variant;
}

hoist::UniqueFd MemoryFile(const std::string& bytes, int seals) {
  hoist::UniqueFd fd(
      memfd_create("hoist-sim", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  HOIST_CHECK(write(fd.get(), bytes.data(), bytes.size()) ==
              static_cast<ssize_t>(bytes.size()));
  HOIST_CHECK(fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

hoist::UniqueFd Again(const hoist::UniqueFd& fd) {
  hoist::UniqueFd again(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  HOIST_CHECK(again.valid());
  return again;
}

// Groups of 1 to 4 pages, with gaps between their tensors and behind them.
std::vector<TensorToWrite> TensorsOf(FileModel model) {
  std::vector<TensorToWrite> tensors;
  const uint32_t layers = 3 + model.name * 2;
  for (uint32_t i = 0; i < layers; ++i) {
    const int64_t pages = 1 + (i * 3 + model.name) % 4;
    const std::string layer = absl::StrCat("layers.", i, ".");
    tensors.push_back({layer + "bias", hoist::DType::kU8, {100 + i}});
    tensors.push_back({layer + "weight",
                       hoist::DType::kU8,
                       {pages * int64_t{kPage} - 700 - i}});
  }
  return tensors;
}

}  // namespace

SimModels::SimModels() {
  for (uint32_t name = 0; name < kNames; ++name) {
    for (uint32_t variant = 0; variant < kVariants; ++variant) {
      const FileModel model = {name, variant};
      const std::vector<TensorToWrite> tensors = TensorsOf(model);
      const auto bytes = SafetensorsFile(tensors, SeedOf(model));
      HOIST_CHECK(bytes.ok());
      files_[model].push_back(
          {"model.safetensors",
           MemoryFile(*bytes, F_SEAL_WRITE | F_SEAL_SHRINK)});
    }
  }
  for (uint32_t content = 0; content < kContents; ++content) {
    const size_t bytes = (1 + content % 3) * kPage;
    published_.push_back(
        TensorBytes(1000, absl::StrCat("content ", content), bytes));
    memfds_.push_back(
        MemoryFile(published_.back(), F_SEAL_WRITE | F_SEAL_SHRINK));
  }
}

std::string SimModels::NameOf(uint32_t name) { return absl::StrCat("m", name); }

RegisterModelArgs SimModels::Files(FileModel model) const {
  RegisterModelArgs args;
  args.name = NameOf(model.name);
  for (const File& file : files_.at(model)) {
    args.shards.push_back({file.name, Again(file.fd)});
  }
  return args;
}

std::string SimModels::ImageOf(FileModel model, const Group& group) {
  std::string image(group.image_bytes, '\0');
  for (const Tensor& tensor : group.tensors) {
    image.replace(tensor.offset, tensor.bytes,
                  TensorBytes(SeedOf(model), tensor.name, tensor.bytes));
  }
  return image;
}

PublishArgs SimModels::Publication(const std::string& model,
                                   const std::string& group,
                                   uint32_t content) const {
  const uint64_t bytes = published_[content].size();
  PublishArgs args;
  args.model = model;
  args.group.name = group;
  args.group.image_bytes = bytes;
  args.group.tensors = {{.name = group,
                         .dtype = hoist::DType::kU8,
                         .shape = {static_cast<int64_t>(bytes)},
                         .bytes = bytes}};
  args.image = Again(memfds_[content]);
  return args;
}

}  // namespace hoistd::sim
