#include "client/src/permit/copy_permit.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

namespace hoist {
namespace {

using permit::kMostAsked;
using permit::kPieceBytes;

// Limit of a wait on the CPU, never reached in practice. hoistd may grant late,
// behind other parties, and PermitLife ends waits that hoistd does not grant.
constexpr std::chrono::hours kWaitLimit{24};

uint32_t AtMost(uint32_t most, uint64_t bytes) {
  return static_cast<uint32_t>(std::min<uint64_t>(most, bytes));
}

}  // namespace

Result<std::unique_ptr<CopyPermit>> CopyPermit::Open(
    std::shared_ptr<Session> session,
    const hoist_copy_permit_options& options) {
  const DeviceFacts& device = *session->FindDevice(options.device);
  std::unique_ptr<StreamOrder> order;
  std::unique_ptr<StreamCopies> copies;
  if (device.kind == DeviceKind::kEmulated) {
    order = CreateEmulatedOrder(kWaitLimit);
    copies = CreateEmulatedCopies();
  } else {
    Result<std::unique_ptr<StreamOrder>> by_cuda = CreateCudaOrder(device.uuid);
    if (!by_cuda.ok()) return by_cuda.status();
    order = std::move(by_cuda).value();
    Result<std::unique_ptr<StreamCopies>> made = CreateCudaCopies(device.uuid);
    if (!made.ok()) return made.status();
    copies = std::move(made).value();
  }
  std::unique_ptr<CopyPermit> made(new CopyPermit(
      std::move(session), std::move(order), std::move(copies), options));
  if (Status s = made->life_.Open(); !s.ok()) return s;
  return made;
}

Result<CopyPermit::Page> CopyPermit::PageFor(cuda::Stream stream,
                                             uint64_t bytes) {
  Result<bool> capturing = order_->IsCapturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (capturing.value()) {
    return Status(Code::kFailedPrecondition,
                  "the stream is being captured, and a graph would ask for the "
                  "same bytes each time; copy before or after its launch");
  }
  Page page = life_.page();
  (page != nullptr ? stats_.granted_bytes : stats_.ungranted_bytes) += bytes;
  if (page == nullptr) return page;
  // Without this order, words of two streams would overtake each other.
  if (page.get() == last_page_ && stream != last_stream_ && !page->idle()) {
    if (Status s = order_->After(stream, last_stream_); !s.ok()) return s;
  }
  last_page_ = page.get();
  last_stream_ = stream;
  return page;
}

Status CopyPermit::Broken(PermitPage& page, Status why) {
  page.Abandon();
  life_.End();
  return why;
}

Status CopyPermit::Ask(PermitPage& page, uint32_t bytes, uint32_t first,
                       cuda::Stream stream) {
  page.Put(bytes);
  life_.Watch();
  const std::array<WordOp, 2> ops = {page.Ask(bytes), page.Granted(first)};
  return order_->Put(stream, ops);
}

// Asks for all bytes first, so that the next grant has arrived when a piece is
// copied.
Status CopyPermit::PutPieces(PermitPage& page, std::byte* to,
                             const std::byte* from, uint64_t bytes,
                             cuda::Stream stream) {
  while (bytes > 0) {
    uint32_t asked = AtMost(kMostAsked, bytes);
    uint32_t piece = AtMost(kPieceBytes, asked);
    Status put = Ask(page, asked, piece, stream);
    bytes -= asked;
    while (put.ok() && asked > 0) {
      put = copies_->ToDevice(to, from, piece, stream);
      if (!put.ok()) break;
      to += piece;
      from += piece;
      asked -= piece;
      const WordOp done = page.Done(piece);
      piece = AtMost(kPieceBytes, asked);
      if (asked == 0) {
        put = order_->Put(stream, std::array{done});
      } else {
        put = order_->Put(stream, std::array{done, page.Granted(piece)});
      }
    }
    if (!put.ok()) return Broken(page, put);
  }
  return Status();
}

// A thread waits for each piece before it asks for the next. So no thread is
// granted bytes that another thread waits for.
Status CopyPermit::CopyPieces(std::byte* to, const std::byte* from,
                              uint64_t bytes) {
  while (bytes > 0) {
    const uint32_t piece = AtMost(kPieceBytes, bytes);
    if (Status s = Begin(piece, nullptr); !s.ok()) return s;
    Status copied = copies_->ToDevice(to, from, piece, nullptr);
    if (Status s = End(piece, nullptr); !s.ok()) return s;
    if (!copied.ok()) return copied;
    to += piece;
    from += piece;
    bytes -= piece;
  }
  return Status();
}

Status CopyPermit::ToDevice(void* to, const void* from, uint64_t bytes,
                            cuda::Stream stream) {
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  if (order_->on_cpu()) return CopyPieces(target, source, bytes);
  const MutexLock lock(mu_);
  Result<Page> page = PageFor(stream, bytes);
  if (!page.ok()) return page.status();
  if (bytes == 0) return Status();
  if (page.value() == nullptr) {
    return copies_->ToDevice(to, from, bytes, stream);
  }
  return PutPieces(*page.value(), target, source, bytes, stream);
}

Status CopyPermit::ToHost(void* to, const void* from, uint64_t bytes,
                          cuda::Stream stream) {
  if (bytes == 0) return Status();
  Status put = copies_->ToHost(to, from, bytes, stream);
  if (put.ok()) AddToHost(bytes);
  return put;
}

void CopyPermit::AddToHost(uint64_t bytes) {
  to_host_bytes_ += bytes;
  if (const Page page = life_.page(); page != nullptr) page->AddRead(bytes);
}

Status CopyPermit::Await(PermitPage& page, uint32_t bytes,
                         cuda::Stream stream) {
  WordOp granted;
  {
    const MutexLock lock(mu_);
    page.Put(bytes);
    life_.Watch();
    const WordOp asked = page.Ask(bytes);
    granted = page.Granted(bytes);
    if (Status s = order_->Put(stream, std::array{asked}); !s.ok()) return s;
  }
  page.Wake();
  return order_->Put(stream, std::array{granted});
}

Status CopyPermit::Begin(uint64_t bytes, cuda::Stream stream) {
  if (bytes > kPieceBytes) {
    return Status(Code::kInvalidArgument,
                  std::to_string(bytes) + " bytes are begun at once, and " +
                      std::to_string(kPieceBytes) +
                      " is the most: begin and end a piece after the other, or "
                      "let hoist_copy_permit_to_device copy");
  }
  Page page;
  {
    const MutexLock lock(mu_);
    if (begun_bytes_ + bytes > kMostAsked) {
      return Status(Code::kFailedPrecondition,
                    std::to_string(begun_bytes_) +
                        " bytes are begun and not ended; end some first "
                        "(hoist_copy_permit_end)");
    }
    Result<Page> found = PageFor(stream, bytes);
    if (!found.ok()) return found.status();
    page = std::move(found).value();
    if (bytes == 0) return Status();
    if (begun_.empty() || begun_.back().page != page) {
      begun_.push_back({page, 0});
    }
    begun_.back().bytes += bytes;
    begun_bytes_ += bytes;
    if (page == nullptr) return Status();
    if (!order_->on_cpu()) {
      const auto piece = static_cast<uint32_t>(bytes);
      Status put = Ask(*page, piece, piece, stream);
      if (put.ok()) return put;
      begun_.back().bytes -= bytes;
      begun_bytes_ -= bytes;
      return Broken(*page, put);
    }
  }
  return Await(*page, static_cast<uint32_t>(bytes), stream);
}

Status CopyPermit::End(uint64_t bytes, cuda::Stream stream) {
  const MutexLock lock(mu_);
  if (bytes > begun_bytes_) {
    return Status(Code::kFailedPrecondition,
                  std::to_string(bytes) + " bytes are ended, and " +
                      std::to_string(begun_bytes_) +
                      " were begun (hoist_copy_permit_begin)");
  }
  begun_bytes_ -= bytes;
  while (bytes > 0) {
    Begun& oldest = begun_.front();
    const uint64_t part = std::min(bytes, oldest.bytes);
    bytes -= part;
    oldest.bytes -= part;
    const Page page = oldest.page;
    if (oldest.bytes == 0) begun_.pop_front();
    if (page == nullptr) continue;
    const WordOp done = page->Done(static_cast<uint32_t>(part));
    Status put = order_->Put(stream, std::array{done});
    if (!put.ok()) return Broken(*page, put);
    if (order_->on_cpu()) page->Wake();
  }
  return Status();
}

hoist_copy_permit_stats CopyPermit::stats() const {
  const Page page = life_.page();
  const MutexLock lock(mu_);
  hoist_copy_permit_stats stats = stats_;
  stats.to_host_bytes = to_host_bytes_;
  stats.grants = page != nullptr;
  if (page != nullptr) stats.wake_ups = page->wake_ups();
  return stats;
}

}  // namespace hoist
