#include "daemon/link/copy_queue.h"

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
  queue->by_stream_ = new (queue->page_.data()) Word(0);
  HOIST_ASSIGN_OR_RETURN(queue->copies_, device.CreateStream());
  return queue;
}

CopyQueue::~CopyQueue() {
  copies_.reset();  // It writes the word.
  if (!registered_) return;
  const absl::Status status = device_.UnregisterHost(page_.span());
  if (!status.ok()) {
    SPDLOG_WARN("a page of words stays registered: {}", status.ToString());
  }
}

absl::Status CopyQueue::Add(LinkParty party, LinkPiece piece, absl::Time now) {
  absl::Status status;
  for (const HostRows& rows : piece.rows) {
    status = copies_->CopyRowsIn(rows);
    if (!status.ok()) break;
  }
  if (!piece.to.empty()) {
    status = copies_->CopyOut(piece.to, piece.from_offset);
  }
  const uint64_t number = ++last_;
  std::vector<WordWrite>& words = piece.words;
  words.push_back({by_stream_, static_cast<uint32_t>(number)});
  if (status.ok()) status = copies_->WriteWords(words);
  if (!status.ok()) {
    // What is in flight stays so; the stream's thread reports its end.
    copies_->Then(
        [this, number](const absl::Status&) { by_thread_.store(number); });
  }
  pieces_.push_back({.party = party,
                     .bytes = piece.bytes,
                     .queued = now,
                     .parts = std::move(piece.parts)});
  return status;
}

void CopyQueue::Note(absl::Time ended, absl::Time began) {
  for (Queued& piece : pieces_) piece.ended = std::min(piece.ended, ended);
  pieces_.back().ended = absl::InfiniteFuture();
  pieces_.back().queued = began;
}

uint64_t CopyQueue::Reached() const {
  uint64_t number = by_thread_.load(std::memory_order_acquire);
  // How far the word is ahead; a huge number if it is behind.
  const uint32_t more = by_stream_->load(std::memory_order_acquire) -
                        static_cast<uint32_t>(ended_);
  if (more <= pieces_.size()) number = std::max(number, ended_ + more);
  return std::max(number, ended_);
}

std::vector<CopyQueue::Queued> CopyQueue::Ended() {
  std::vector<Queued> ended;
  const uint64_t number = Reached();
  while (ended_ < number && !pieces_.empty()) {
    ++ended_;
    ended.push_back(std::move(pieces_.front()));
    pieces_.pop_front();
  }
  return ended;
}

std::vector<CopyQueue::Queued> CopyQueue::GiveUp() {
  std::vector<Queued> left(pieces_.begin(), pieces_.end());
  pieces_.clear();
  ended_ = last_;
  return left;
}

}  // namespace hoistd
