#include "daemon/stream/copy_queue.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/memory/memory.h"
#include "daemon/base/status.h"
#include "hoist/shared/packet_socket.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kLine = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<CopyQueue>> CopyQueue::Create(Device& device) {
  HOIST_ASSIGN_OR_RETURN(
      const hoist::UniqueFd fd,
      ToAbsl(hoist::CreateMemfd("hoist-copies", kPageBytes)));
  HOIST_ASSIGN_OR_RETURN(
      hoist::Mapping page,
      ToAbsl(hoist::Mapping::OfFd(fd.get(), kPageBytes,
                                  hoist::Mapping::Access::kReadWrite)));
  auto queue = absl::WrapUnique(new CopyQueue(device, std::move(page)));
  HOIST_RETURN_IF_ERROR(device.RegisterHost(queue->page_.span()));
  queue->registered_ = true;
  for (size_t i = 0; i < kStreams; ++i) {
    queue->streams_[i].by_stream =
        new (queue->page_.data() + i * kLine) Word(0);
    HOIST_ASSIGN_OR_RETURN(queue->streams_[i].copies, device.CreateStream());
  }
  return queue;
}

CopyQueue::~CopyQueue() {
  for (Stream& stream : streams_) stream.copies.reset();  // They write words.
  if (!registered_) return;
  const absl::Status status = device_.UnregisterHost(page_.span());
  if (!status.ok()) {
    spdlog::warn("a page of words stays registered: {}", status.ToString());
  }
}

int CopyQueue::BestStream() const {
  const size_t first = streams_[0].pieces.size();
  const size_t second = streams_[1].pieces.size();
  if (first != second) return first < second ? 0 : 1;
  return next_;
}

absl::Status CopyQueue::Add(Piece piece, bool& queued) {
  const int index = piece.stream;
  Stream& stream = streams_.at(static_cast<size_t>(index));
  queued = false;
  HOIST_RETURN_IF_ERROR(stream.copies->CopyIn(piece.to_offset, piece.from));
  queued = true;
  const uint64_t number = ++stream.last;
  std::vector<WordWrite> words = std::move(piece.words);
  words.push_back({stream.by_stream, static_cast<uint32_t>(number)});
  const absl::Status status = stream.copies->WriteWords(words);
  if (!status.ok()) {
    // The copy is under way all the same: the stream's thread tells its end.
    stream.copies->Then([word = &stream.by_thread,
                         number](const absl::Status&) { word->store(number); });
  }
  stream.pieces.push_back(std::move(piece));
  ++under_way_;
  next_ = (index + 1) % kStreams;
  return status;
}

std::vector<Piece> CopyQueue::Ended() {
  std::vector<Piece> ended;
  for (Stream& stream : streams_) {
    uint64_t number = stream.by_thread.load(std::memory_order_acquire);
    // How many more the word speaks of; absurd if it lags.
    const uint32_t more = stream.by_stream->load(std::memory_order_acquire) -
                          static_cast<uint32_t>(stream.ended);
    if (more <= stream.pieces.size()) {
      number = std::max(number, stream.ended + more);
    }
    while (stream.ended < number && !stream.pieces.empty()) {
      ++stream.ended;
      --under_way_;
      ended.push_back(std::move(stream.pieces.front()));
      stream.pieces.pop_front();
    }
  }
  return ended;
}

std::vector<Piece> CopyQueue::GiveUp() {
  std::vector<Piece> left;
  for (Stream& stream : streams_) {
    for (Piece& piece : stream.pieces) left.push_back(std::move(piece));
    stream.pieces.clear();
    stream.ended = stream.last;
  }
  under_way_ = 0;
  return left;
}

absl::Status CopyQueue::Health() {
  for (Stream& stream : streams_) {
    HOIST_RETURN_IF_ERROR(stream.copies->Health());
  }
  return absl::OkStatus();
}

}  // namespace hoistd
