#include "client/ctl/disk_rate.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>

#include "hoist/shared/unique_fd.h"
#include "hoist/shared/weight_files.h"

namespace hoist::ctl {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kMostEntries = 100'000;
constexpr int kThreads = 8;
constexpr size_t kPiece = size_t{4} << 20;
constexpr uint64_t kMostBytes = uint64_t{4} << 30;
constexpr std::chrono::seconds kMostTime(2);

UniqueFd Open(const std::string& path, bool& direct) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  direct = fd.valid();
  if (!direct) fd = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return fd;
}

// What one thread reads of the pieces that are left.
void ReadPieces(int fd, uint64_t end, Clock::time_point until,
                std::atomic<uint64_t>& next, std::atomic<uint64_t>& done) {
  constexpr size_t kAlignment = 4096;
  const std::unique_ptr<void, decltype(&std::free)> buffer(
      std::aligned_alloc(kAlignment, kPiece), &std::free);
  if (buffer == nullptr) return;
  while (Clock::now() < until) {
    const uint64_t at = next.fetch_add(kPiece);
    if (at >= end) return;
    const ssize_t got = pread(fd, buffer.get(), kPiece, static_cast<off_t>(at));
    if (got <= 0) return;
    done += static_cast<uint64_t>(got);
  }
}

}  // namespace

std::string LargestModel(const std::vector<std::string>& folders) {
  std::string largest;
  uint64_t most = 0;
  int entries = 0;
  const auto consider = [&](const fs::path& path) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error || bytes <= most) return;
    largest = path.string();
    most = bytes;
  };
  for (const std::string& folder : folders) {
    std::error_code error;
    if (fs::is_regular_file(folder, error)) consider(folder);
    fs::recursive_directory_iterator each(
        folder, fs::directory_options::skip_permission_denied, error);
    while (!error && each != fs::recursive_directory_iterator() &&
           ++entries <= kMostEntries) {
      if (IsWeightFile(each->path().filename().string())) {
        consider(each->path());
      }
      each.increment(error);
    }
  }
  return largest;
}

std::optional<DiskRate> MeasureDisk(const std::string& path) {
  DiskRate rate;
  rate.path = path;
  const UniqueFd fd = Open(path, rate.direct);
  struct stat found;
  if (!fd.valid() || fstat(fd.get(), &found) != 0) return std::nullopt;
  const uint64_t end =
      std::min(static_cast<uint64_t>(found.st_size), kMostBytes);
  const Clock::time_point begin = Clock::now();
  std::atomic<uint64_t> next = 0, done = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(
        [&] { ReadPieces(fd.get(), end, begin + kMostTime, next, done); });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = Clock::now() - begin;
  rate.bytes = done;
  if (rate.bytes == 0 || took.count() <= 0) return std::nullopt;
  rate.bytes_per_second =
      static_cast<uint64_t>(static_cast<double>(rate.bytes) / took.count());
  return rate;
}

}  // namespace hoist::ctl
