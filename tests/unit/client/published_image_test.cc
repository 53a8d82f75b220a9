// Images of weights that do not lie in host memory. The GPU's part runs over
// the fake driver where there is none.
#include "client/src/model/published_image.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"
#include "tests/support/no_threads.h"
#include "tests/support/pattern.h"
#include "tests/unit/client/on_gpu.h"

namespace hoist::published_image_test {

using hoistd::testing::Pattern;

constexpr uint64_t kBytes = 20 << 20;

SourceTensor Tensor(std::string name, const void* data, uint64_t bytes) {
  SourceTensor tensor;
  tensor.entry.name = std::move(name);
  tensor.entry.dtype = DType::kU8;
  tensor.entry.shape = {static_cast<int64_t>(bytes)};
  tensor.entry.strides = {1};
  tensor.data = data;
  return tensor;
}

std::vector<SourceTensor> OneTensor(const void* data) {
  return {Tensor("w", data, kBytes)};
}

std::vector<std::byte> BytesOf(const PublishedImage& image, uint64_t offset,
                               uint64_t size) {
  std::vector<std::byte> bytes(size);
  EXPECT_EQ(
      pread(image.memfd.get(), bytes.data(), size, static_cast<off_t>(offset)),
      static_cast<ssize_t>(size));
  return bytes;
}

// Of the first tensor.
std::vector<std::byte> BytesOf(const PublishedImage& image) {
  return BytesOf(image, image.group.tensors[0].offset_bytes, kBytes);
}

// Each tensor's bytes in their place, and zeros between.
void ExpectFilled(Result<PublishedImage> image,
                  std::span<const SourceTensor> source) {
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  uint64_t end = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    const TensorEntry& entry = image->group.tensors[i];
    const auto* data = static_cast<const std::byte*>(source[i].data);
    EXPECT_TRUE(std::ranges::equal(
        BytesOf(*image, entry.offset_bytes, entry.size_bytes),
        std::span(data, entry.size_bytes)))
        << entry.name;
    const auto gap = BytesOf(*image, end, entry.offset_bytes - end);
    EXPECT_EQ(std::ranges::count(gap, std::byte{0}), std::ssize(gap));
    end = entry.offset_bytes + entry.size_bytes;
  }
}

// Tensors of several pieces and of a part of one, with gaps between.
TEST(PublishedImage, IsTheSameOnAnyNumberOfThreads) {
  const auto bytes = Pattern(3 * kBytes, 7);
  std::vector<SourceTensor> source;
  uint64_t at = 0;
  for (const uint64_t size :
       {kBytes, uint64_t{3}, kBytes + 4097, uint64_t{5000}, kBytes / 2 - 1}) {
    source.push_back(Tensor("w" + std::to_string(at), bytes.data() + at, size));
    at += size;
  }
  for (const uint64_t threads : {1, 2, 40}) {
    SCOPED_TRACE(threads);
    ExpectFilled(BuildImage("g", source, nullptr, threads), source);
  }
  const hoistd::testing::NoThreads none;
  ExpectFilled(BuildImage("g", source, nullptr, 4), source);
}

TEST(PublishedImage, HasItsMemoryBeforeItIsFilled) {
  const ReadBytes none = [](const void*, std::span<std::byte>) {
    return Status();
  };
  const std::byte unread{};
  auto image = BuildImage("g", OneTensor(&unread), none);
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  struct stat info;
  ASSERT_EQ(fstat(image->memfd.get(), &info), 0);
  EXPECT_EQ(info.st_blocks * 512, static_cast<blkcnt_t>(kBytes));
}

TEST(PublishedImage, IsSealedWhileAChildOfTheWorkerLives) {
  const auto source = Pattern(kBytes, 7);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  pid_t child = 0;
  const ReadBytes forks = [&](const void* from, std::span<std::byte> to) {
    if (child == 0) child = fork();
    if (child == 0) {
      close(write_end.get());
      char none;
      (void)!read(read_end.get(), &none, 1);  // Until the parent closes it.
      _exit(0);
    }
    std::memcpy(to.data(), from, to.size());
    return Status();
  };
  const auto image = BuildImage("g", OneTensor(source.data()), forks, 1);
  EXPECT_TRUE(image.ok()) << image.status().ToString();
  write_end.reset();
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

// At addresses that cannot be read here.
TEST(PublishedImage, IsReadInPiecesFromWhereTheDataLie) {
  const auto source = Pattern(kBytes, 7);
  auto* const elsewhere = reinterpret_cast<const std::byte*>(uintptr_t{4096});
  std::atomic<size_t> pieces = 0;
  const ReadBytes read = [&](const void* from, std::span<std::byte> to) {
    ++pieces;
    const auto at = static_cast<const std::byte*>(from) - elsewhere;
    std::memcpy(to.data(), source.data() + at, to.size());
    return Status();
  };
  auto image = BuildImage("g", OneTensor(elsewhere), read, 4);
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  EXPECT_EQ(BytesOf(*image), source);
  EXPECT_GT(pieces, 1u);
}

// One thread writes them, several look first.
TEST(PublishedImage, OfBytesThatCannotBeReadIsRefused) {
  constexpr uint64_t kPage = 4096;
  const auto refused = [](const void* data, const std::string& what) {
    for (const uint64_t threads : {1, 4}) {
      const auto image = BuildImage("g", OneTensor(data), nullptr, threads);
      EXPECT_EQ(image.status().code(), Code::kInvalidArgument)
          << what << ", threads: " << threads;
      EXPECT_THAT(image.status().message(),
                  ::testing::HasSubstr("tensor \"w\" has bytes"));
    }
  };
  refused(reinterpret_cast<const void*>(uintptr_t{kPage}), "not mapped");
  auto file = CreateMemfd("weights", kBytes);
  ASSERT_TRUE(file.ok());
  auto mapped = Mapping::OfFd(file->get(), kBytes, Mapping::Access::kRead);
  ASSERT_TRUE(mapped.ok());
  ASSERT_EQ(ftruncate(file->get(), kBytes - kPage), 0);
  refused(mapped->data(), "of a file that became shorter");
  ASSERT_EQ(ftruncate(file->get(), kBytes), 0);
  ASSERT_EQ(mprotect(mapped->data() + kPage, kPage, PROT_NONE), 0);
  refused(mapped->data(), "closed to reads");
}

TEST(PublishedImage, SaysWhyItsDataCannotBeRead) {
  const ReadBytes read = [](const void*, std::span<std::byte>) {
    return Status(Code::kInternal, "the GPU is gone");
  };
  const auto source = Pattern(kBytes, 7);
  auto image = BuildImage("g", OneTensor(source.data()), read, 4);
  EXPECT_EQ(image.status().message(), "the GPU is gone");
}

TEST(PublishedImage, OfAnEmulatedDeviceIsReadAsItIs) {
  auto read = ReadFrom({.name = "", .kind = DeviceKind::kEmulated});
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(*read);
}

// A GPU, and kBytes of its memory.
class CudaPublishedImage : public testing::OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (context_ == nullptr) return;
    current_.emplace(driver_, context_->context());
    ASSERT_EQ(driver_.alloc(&there_, kBytes), cuda::kSuccess);
    ASSERT_EQ(driver_.copy_in(there_, source_.data(), kBytes), cuda::kSuccess);
    auto read =
        ReadFrom({.name = "", .uuid = uuid_, .kind = DeviceKind::kCuda});
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    read_ = std::move(read).value();
  }
  void TearDown() override {
    if (there_ == 0) return;
    EXPECT_EQ(driver_.free(there_), cuda::kSuccess);
  }

  const void* OnGpu(uint64_t offset) const {
    return reinterpret_cast<const void*>(there_ + offset);
  }

  const std::vector<std::byte> source_ = Pattern(kBytes, 7);
  std::optional<cuda::ScopedContext> current_;
  cuda::Address there_ = 0;
  ReadBytes read_;
};

TEST_F(CudaPublishedImage, IsReadFromTheGpuAndWhatIsOnTheHostFromThere) {
  const auto on_host = Pattern(kBytes, 8);
  // No page of the large ones is theirs alone.
  std::vector<SourceTensor> source = {
      Tensor("a", on_host.data(), 5), Tensor("b", OnGpu(0), kBytes - 7),
      Tensor("c", OnGpu(1), 3), Tensor("d", on_host.data(), kBytes)};
  source[0].on_host = source[3].on_host = true;
  auto image = BuildImage("g", source, read_, 4);
  source[1].data = source_.data();
  source[2].data = source_.data() + 1;
  ExpectFilled(std::move(image), source);
}

TEST_F(CudaPublishedImage, IsReadIntoMemoryThatCannotBePinned) {
  std::vector<std::byte> to(kBytes);
  constexpr unsigned kFlags =
      cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap;
  // It is pinned already.
  ASSERT_EQ(driver_.host_register(to.data(), kBytes, kFlags), cuda::kSuccess);
  const Status read = read_(OnGpu(0), to);
  EXPECT_TRUE(read.ok()) << read.ToString();
  EXPECT_TRUE(to == source_);
  // Who pinned it does so no more.
  EXPECT_EQ(driver_.host_unregister(to.data()), cuda::kSuccess);
}

}  // namespace hoist::published_image_test
