#include "daemon/io/uring_engine.h"

#include <algorithm>
#include <utility>

#include "daemon/base/status.h"

namespace hoistd {
namespace {

constexpr uint64_t kRingPieceBytes = uint64_t{1} << 20;

}  // namespace

UringEngine::UringEngine() : queue_(kRingPieceBytes) {}

absl::StatusOr<std::unique_ptr<UringEngine>> UringEngine::Create(
    const Options& options) {
  std::unique_ptr<UringEngine> engine(new UringEngine());
  const int workers = std::max(options.workers, 1);
  const uint64_t chunks =
      options.bounce_bytes / kRingPieceBytes / static_cast<uint64_t>(workers);
  const UringWorker::Options each = {
      .chunk_bytes = kRingPieceBytes,
      // A ring has at most 32,768 entries, and registers at most 1 GiB.
      .chunks = static_cast<unsigned>(std::clamp<uint64_t>(chunks, 1, 1024))};
  for (int i = 0; i < workers; ++i) {
    HOIST_ASSIGN_OR_RETURN(engine->workers_.emplace_back(),
                           UringWorker::Start(engine->queue_, each));
  }
  return engine;
}

UringEngine::~UringEngine() {
  queue_.Close();
  WakeAll();
}

void UringEngine::WakeAll() {
  for (const auto& worker : workers_) {
    if (worker != nullptr) worker->Wake();
  }
}

void UringEngine::Read(ReadRequest request, Done done) {
  queue_.Push(std::move(request), std::move(done));
  WakeAll();
}

void UringEngine::Write(WriteRequest request, Done done) {
  queue_.Push(std::move(request), std::move(done));
  WakeAll();
}

IoInfo UringEngine::info() const {
  IoInfo info = {.engine = "io_uring", .registered_buffers = true};
  for (const auto& worker : workers_) {
    const UringSetup& setup = worker->setup();
    info.registered_buffers &= setup.registered_buffers;
    for (const std::string& fallback : setup.fallbacks) {
      if (std::find(info.fallbacks.begin(), info.fallbacks.end(), fallback) ==
          info.fallbacks.end()) {
        info.fallbacks.push_back(fallback);
      }
    }
  }
  return info;
}

}  // namespace hoistd
