#include "daemon/io/create_io_engine.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/io/thread_engine.h"
#include "daemon/io/uring_engine.h"

namespace hoistd {
namespace {

// Sends direct files to one engine and buffered ones to the other. Without a
// `direct` engine, `buffered` gets both. Thread-safe, as they are.
class PerFileEngine final : public IoEngine {
 public:
  PerFileEngine(std::unique_ptr<IoEngine> direct,
                std::unique_ptr<IoEngine> buffered, std::string fallback)
      : direct_(std::move(direct)),
        buffered_(std::move(buffered)),
        fallback_(std::move(fallback)) {}

  void Read(ReadRequest request, Done done) override {
    IoEngine& engine = Of(request.file);
    engine.Read(std::move(request), std::move(done));
  }
  void Write(WriteRequest request, Done done) override {
    IoEngine& engine = Of(request.file);
    engine.Write(std::move(request), std::move(done));
  }
  IoInfo info() const override {
    IoInfo info = buffered_->info();
    if (direct_ != nullptr) {
      info = direct_->info();
      info.engine += "+threads";
    }
    if (!fallback_.empty()) info.fallbacks.push_back(fallback_);
    return info;
  }

 private:
  IoEngine& Of(const IoFile& file) {
    return direct_ != nullptr && file.direct_fd >= 0 ? *direct_ : *buffered_;
  }

  std::unique_ptr<IoEngine> direct_;
  std::unique_ptr<IoEngine> buffered_;
  const std::string fallback_;
};

absl::Status Check(const IoOptions& options) {
  if (options.uring_workers < 0 || options.uring_workers > 16) {
    return absl::InvalidArgumentError("uring_workers must be 0 to 16");
  }
  if (options.threads < 0 || options.threads > 256) {
    return absl::InvalidArgumentError("I/O threads must be 0 to 256");
  }
  if (options.bounce_bytes < (1 << 20) ||
      options.bounce_bytes > (uint64_t{1} << 30)) {
    return absl::InvalidArgumentError(
        "bounce_bytes must be 1 MiB to 1 GiB; io_uring registers no more");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> CreateIoEngine(
    const IoOptions& options) {
  HOIST_RETURN_IF_ERROR(Check(options));
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  const int threads =
      options.threads > 0 ? options.threads : std::clamp(cpus / 2, 4, 8);
  UringEngine::Options uring = {.bounce_bytes = options.bounce_bytes,
                                .workers = options.uring_workers};
  if (uring.workers == 0) uring.workers = cpus >= 4 ? 2 : 1;

  if (options.choice == IoChoice::kUring) {
    auto engine = UringEngine::Create(uring);
    if (!engine.ok()) {
      return Annotate(engine.status(),
                      "io_uring is not available (\"auto\" or \"threads\" "
                      "would be enough)");
    }
    return std::unique_ptr<IoEngine>(*std::move(engine));
  }
  HOIST_ASSIGN_OR_RETURN(std::unique_ptr<IoEngine> buffered,
                         ThreadEngine::Create(threads));
  if (options.choice == IoChoice::kThreads) return buffered;
  auto direct = UringEngine::Create(uring);
  std::string fallback;
  if (!direct.ok()) {
    fallback = absl::StrCat("no io_uring, threads instead: ",
                            direct.status().message());
  }
  return std::make_unique<PerFileEngine>(
      direct.ok() ? *std::move(direct) : nullptr, std::move(buffered),
      std::move(fallback));
}

}  // namespace hoistd
