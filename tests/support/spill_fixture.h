// A spill store in its own directory, and images for it.
#ifndef HOIST_TESTS_SUPPORT_SPILL_FIXTURE_H_
#define HOIST_TESTS_SUPPORT_SPILL_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/io/aligned_buffer.h"
#include "daemon/io/create_io_engine.h"
#include "daemon/store/description.h"
#include "daemon/store/spill_store.h"
#include "gtest/gtest.h"
#include "tests/support/io_wait.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd::testing {

// An image of `pages` pages of noise, and its group.
struct SpillImage {
  explicit SpillImage(uint64_t pages, uint64_t seed = 1) {
    bytes = *AlignedBuffer::Create((pages + 1) * 4096);
    image = bytes.span().first(pages * 4096);
    FillPattern(image, seed);
    SpillMeta made = {.model = "a \"model\"",
                      .owner = User(1000),
                      .readers = Readers::kEveryone,
                      .group_content = Sha256().Bytes(image).Finish(),
                      .group_index = GroupIndex(3)};
    made.group.name = "layers.3";
    made.group.image_bytes = image.size();
    made.group.tensors = {
        {.name = std::string("q\0\n\xff.weight", 11),
         .dtype = hoist::DType::kBF16,
         .shape = {8, 64},
         .strides = {1, 8},
         .offset = 0,
         .bytes = pages > 0 ? uint64_t{1024} : 0},
        {.name = "empty", .dtype = hoist::DType::kF4, .shape = {0, 7}}};
    meta = std::make_shared<const SpillMeta>(std::move(made));
  }

  AlignedBuffer bytes;
  std::span<std::byte> image;
  std::shared_ptr<const SpillMeta> meta;
};

inline absl::StatusOr<SpillId> PutAndWait(SpillStore& store,
                                          const SpillImage& image) {
  Answer<absl::StatusOr<SpillId>> answer;
  store.Put(image.meta, image.image, answer.done());
  return answer.Wait();
}

inline absl::Status GetAndWait(SpillStore& store, SpillId id,
                               std::span<std::byte> to) {
  Answer<absl::Status> answer;
  store.Get(id, to, answer.done());
  return answer.Wait();
}

inline absl::Status VerifyAndWait(SpillStore& store, SpillId id) {
  Answer<absl::Status> answer;
  store.Verify(id, answer.done());
  return answer.Wait();
}

inline absl::Status RemoveAndWait(SpillStore& store, SpillId id) {
  Answer<absl::Status> answer;
  store.Remove(id, answer.done());
  return answer.Wait();
}

// OK: the store gives back exactly `image`.
inline absl::Status CheckSpilled(SpillStore& store, SpillId id,
                                 const SpillImage& image) {
  std::vector<std::byte> to(image.image.size());
  absl::Status status = GetAndWait(store, id, to);
  if (status.ok() && !std::equal(to.begin(), to.end(), image.image.begin())) {
    return absl::InternalError("wrong bytes were served");
  }
  return status;
}

// True: both describe the same image, whatever its state.
inline bool SameImage(const SpillRecord& one, const SpillRecord& other) {
  return one.file_bytes == other.file_bytes &&
         EncodeDescription(one.id, *one.meta) ==
             EncodeDescription(other.id, *other.meta);
}

inline size_t FilesIn(const std::string& dir) {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator(dir), {}));
}

class SpillTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kCapacity = uint64_t{1} << 30;

  SpillTest() {
    io_ = *CreateIoEngine({.bounce_bytes = uint64_t{4} << 20});
    dir_ = top_ / "spill";
  }

  absl::StatusOr<std::unique_ptr<SpillStore>> Open(
      uint64_t capacity = kCapacity) {
    return SpillStore::Open({.dir = dir_, .capacity_bytes = capacity}, *io_);
  }
  std::string Path(SpillId id, const char* place = "images") const {
    return dir_ + "/" + place + "/" + std::to_string(id.number()) + ".img";
  }
  // Flips one bit of the byte at `at`.
  static void Flip(const std::string& path, uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    ASSERT_GE(byte, 0);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 4));
    ASSERT_TRUE(file.flush());
  }

  TempDir top_;
  std::string dir_;
  std::unique_ptr<IoEngine> io_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_SPILL_FIXTURE_H_
