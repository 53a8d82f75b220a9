#include "tests/bench/layer_work.h"

#include <algorithm>
#include <cstring>

#include "tests/bench/basics.h"
#include "tests/bench/synthetic.h"

namespace hoist::bench {
namespace {

constexpr int kWarmUps = 2;
constexpr int kRuns = 5;

// "55GB/s" and the like; 0: none given.
double ParseRate(const std::string& text) {
  size_t used = 0;
  const double number = std::stod(text, &used);
  const std::string unit = text.substr(used);
  if (unit == "GB/s") return number * 1e9;
  if (unit == "MB/s") return number * 1e6;
  if (unit == "MiB/s") return number * static_cast<double>(kMiB);
  if (unit == "GiB/s") return number * static_cast<double>(kGiB);
  if (number != 0) Fail("--link: a number with MB/s, MiB/s, GB/s or GiB/s");
  return 0;
}

double MemcpyRate() {
  constexpr uint64_t kBytes = 128 * kMiB;  // Beyond the CPU's caches.
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  std::vector<double> rates;
  for (int i = 0; i < 9; ++i) {
    const double begin = Now();
    std::memcpy(to.data(), from.data(), kBytes);
    const double took = Now() - begin;
    if (to[kBytes / 2] != 1) Fail("memcpy did not copy");
    rates.push_back(static_cast<double>(kBytes) / took);
  }
  return Median(rates);
}

}  // namespace

Compute ParseCompute(const std::string& text) {
  if (text == "none") return Compute::kNone;
  if (text == "gemm") return Compute::kGemm;
  return Compute::kRead;
}

double MeasuredLink(Gpu* gpu, const RunOptions& options, uint64_t piece_bytes) {
  if (gpu != nullptr) return gpu->LinkRate(piece_bytes);
  const double given = ParseRate(options.link);
  return given > 0 ? given : MemcpyRate();
}

LayerWork::LayerWork(Gpu* gpu, Compute compute, const std::string& cublas,
                     size_t sums)
    : gpu_(gpu), compute_(compute), host_sums_(sums) {
  if (compute == Compute::kGemm) {
    if (gpu == nullptr) Fail("--compute gemm needs a GPU");
    gemm_ = std::make_unique<Gemm>(*gpu, cublas);
  }
  if (gpu != nullptr) sums_ = gpu->Alloc(std::max<size_t>(sums, 1) * 8);
}

LayerWork::~LayerWork() {
  if (gpu_ != nullptr) gpu_->Free(sums_);
}

void LayerWork::FitTokens(uint64_t group_bytes, double seconds) {
  const double took = ResidentPassSeconds(8, group_bytes) / 8;
  const double wanted = tokens_ * seconds / took;
  tokens_ = static_cast<int>(
      std::clamp(wanted / 128, 1.0, double{Gemm::kMostTokens} / 128));
  tokens_ *= 128;
}

void LayerWork::Run(cuda::Stream stream, const void* data, uint64_t bytes,
                    size_t sum) {
  if (compute_ == Compute::kNone) return;
  if (gpu_ == nullptr) {
    host_sums_[sum] += Checksum(data, bytes);
    return;
  }
  const auto address = reinterpret_cast<cuda::Address>(data);
  if (compute_ == Compute::kGemm) {
    gemm_->Enqueue(stream, address, bytes, tokens_);
  } else {
    gpu_->LaunchChecksum(stream, address, bytes, sums_ + sum * 8);
  }
}

double LayerWork::ResidentPassSeconds(uint32_t groups, uint64_t group_bytes) {
  if (compute_ == Compute::kNone) return 0;
  std::vector<uint64_t> words(group_bytes / 8);
  FillGroup(0, words);
  std::vector<double> seconds;
  if (gpu_ == nullptr) {
    for (int run = -kWarmUps; run < kRuns; ++run) {
      const double begin = Now();
      for (uint32_t g = 0; g < groups; ++g) {
        Run(nullptr, words.data(), group_bytes, 0);
      }
      if (run >= 0) seconds.push_back(Now() - begin);
    }
    host_sums_[0] = 0;
    return Median(seconds);
  }
  // Enough copies that the L2 cache serves none of them.
  const uint64_t copies = std::max<uint64_t>(2, 512 * kMiB / group_bytes);
  const cuda::Address weights = gpu_->Alloc(copies * group_bytes);
  for (uint64_t i = 0; i < copies; ++i) {
    gpu_->CopyIn(weights + i * group_bytes, words.data(), group_bytes);
  }
  const cuda::Stream stream = gpu_->NewStream();
  const cuda::Event begin = gpu_->NewEvent(), end = gpu_->NewEvent();
  for (int run = -kWarmUps; run < kRuns; ++run) {
    gpu_->Record(begin, stream);
    for (uint32_t g = 0; g < groups; ++g) {
      const cuda::Address at = weights + g % copies * group_bytes;
      Run(stream, reinterpret_cast<const void*>(at), group_bytes, 0);
    }
    gpu_->Record(end, stream);
    const double took = gpu_->SecondsBetween(begin, end);
    if (run >= 0) seconds.push_back(took);
  }
  gpu_->Free(weights);
  gpu_->Require(gpu_->driver().set_bytes(sums_, 0, 8), "cuMemsetD8");
  return Median(seconds);
}

std::vector<uint64_t> LayerWork::Sums() const {
  std::vector<uint64_t> sums = host_sums_;
  if (gpu_ != nullptr && !sums.empty()) {
    gpu_->CopyOut(sums.data(), sums_, sums.size() * 8);
  }
  return sums;
}

}  // namespace hoist::bench
