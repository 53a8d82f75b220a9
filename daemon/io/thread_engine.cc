#include "daemon/io/thread_engine.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/io/piece_io.h"

namespace hoistd {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

// Returns what the call returned, or -errno.
int64_t Make(const IoCall& call) {
  const auto offset = static_cast<off_t>(call.offset);
  ssize_t result = 0;
  switch (call.kind) {
    case IoCall::Kind::kNone:
      return 0;
    case IoCall::Kind::kRead:
      result = pread(call.fd, call.to.data(), call.to.size(), offset);
      break;
    case IoCall::Kind::kReadVector:
      result = preadv(call.fd, call.into.data(),
                      static_cast<int>(call.into.size()), offset);
      break;
    case IoCall::Kind::kWrite:
      result = pwrite(call.fd, call.from.data(), call.from.size(), offset);
      break;
    case IoCall::Kind::kSync:
      result = fdatasync(call.fd);
      break;
  }
  return result < 0 ? -errno : result;
}

}  // namespace

ThreadEngine::ThreadEngine() : queue_(kPieceBytes) {}

absl::StatusOr<std::unique_ptr<ThreadEngine>> ThreadEngine::Create(
    int threads) {
  std::vector<AlignedBuffer> bounces;
  for (int i = 0; i < threads; ++i) {
    HOIST_ASSIGN_OR_RETURN(bounces.emplace_back(),
                           AlignedBuffer::Create(kPieceBytes));
  }
  std::unique_ptr<ThreadEngine> engine(new ThreadEngine());
  for (AlignedBuffer& bounce : bounces) {
    HOIST_ASSIGN_OR_RETURN(engine->threads_.emplace_back(),
                           StartThread([self = engine.get(),
                                        memory = std::move(bounce)]() mutable {
                             self->Work(std::move(memory));
                           }));
  }
  return engine;
}

ThreadEngine::~ThreadEngine() {
  queue_.Close();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadEngine::Read(ReadRequest request, Done done) {
  queue_.Push(std::move(request), std::move(done));
}

void ThreadEngine::Write(WriteRequest request, Done done) {
  queue_.Push(std::move(request), std::move(done));
}

IoInfo ThreadEngine::info() const { return {.engine = "threads"}; }

void ThreadEngine::Work(AlignedBuffer bounce) {
  while (std::optional<Piece> piece = queue_.Take()) {
    PieceIo io(*std::move(piece), bounce.span());
    std::optional<absl::Status> status;
    while (!status) status = io.Result(Make(io.Next()));
    queue_.Finish(io.TakePiece(), *status);
  }
}

}  // namespace hoistd
