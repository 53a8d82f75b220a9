#include "daemon/mover/mover.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "absl/synchronization/notification.h"
#include "daemon/base/check.h"
#include "daemon/base/gather.h"
#include "daemon/base/overloaded.h"
#include "daemon/base/status.h"
#include "daemon/io_helper/file_calls.h"
#include "daemon/mover/content_hash.h"
#include "daemon/mover/image_copy.h"
#include "daemon/mover/read_plan.h"
#include "daemon/mover/receive.h"

namespace hoistd {
namespace {

// Checks each file that was read, once. If a file changed during the read, its
// bytes are of no single version.
absl::Status CheckUnchanged(const SourceFiles& files,
                            const std::vector<SheetRead>& reads) {
  std::set<uint32_t> read;
  for (const SheetRead& part : reads) read.insert(part.from.file);
  for (const uint32_t file : read) {
    HOIST_RETURN_IF_ERROR(files[file]->CheckUnchanged());
  }
  return absl::OkStatus();
}

std::optional<User> ParkedFor(const SourceFiles& files) {
  for (const auto& file : files) {
    if (file->parked_for().has_value()) return file->parked_for();
  }
  return std::nullopt;
}

// Reads a group with a parked file, on a thread that may block.
absl::Status ReadGroup(IoHelper& run, IoEngine& io, const SourceFiles& files,
                       PlannedReads reads) {
  for (auto& [index, requests] : reads) {
    const SourceFile& file = *files[index];
    if (file.parked_for().has_value()) {
      HOIST_RETURN_IF_ERROR(ReadByHelper(run, file, std::move(requests)));
      continue;
    }
    for (ReadRequest& request : requests) {
      request.file = file.io();
      absl::Notification over;
      absl::Status status;
      io.Read(std::move(request), [&](absl::Status s) {
        status = std::move(s);
        over.Notify();
      });
      over.WaitForNotification();
      HOIST_RETURN_IF_ERROR(status);
    }
    HOIST_RETURN_IF_ERROR(file.CheckUnchanged());
  }
  return absl::OkStatus();
}

// Enough threads for a good part of the memory bandwidth; the other CPUs are
// for workers.
int CopyThreads(const MoverParts& parts) {
  if (parts.copy_threads > 0) return parts.copy_threads;
  return static_cast<int>(
      std::clamp(std::thread::hardware_concurrency() / 4, 2u, 8u));
}

// Runs `copy` for each piece of an image, by its offset and bytes, on the
// executor's threads; then `done`, with the first error. An empty image is one
// empty piece.
template <typename Copy>
void InPieces(Executor& threads, uint64_t image_bytes, Copy copy,
              Gather::Done done) {
  constexpr uint64_t kPiece = ImageCopy::kPieceBytes;
  const uint64_t pieces =
      std::max<uint64_t>(1, (image_bytes + kPiece - 1) / kPiece);
  auto gather = std::make_shared<Gather>(pieces, std::move(done));
  for (uint64_t at = 0; at < pieces * kPiece; at += kPiece) {
    const uint64_t bytes = std::min<uint64_t>(kPiece, image_bytes - at);
    threads.Post([gather, copy, at, bytes] { gather->Part(copy(at, bytes)); });
  }
}

}  // namespace

Mover::Mover(MoverParts parts, OnDone on_done)
    : parts_(std::move(parts)),
      on_done_(std::move(on_done)),
      reads_({kReadsUnderWay, kSmallReadsUnderWay}),
      spills_({kSpillsUnderWay}),
      receives_({CopyThreads(parts_)}),
      checks_({1, kSmallReadsUnderWay}),
      device_checks_({1}),
      images_({kImagesUnderWay}) {
  for (Link* link : parts_.links) {
    read_memory_.push_back(std::make_unique<ReadMemory>(link->device()));
  }
}

Mover::~Mover() = default;

absl::Status Mover::StartThreads() {
  Threads& threads = ThreadsOr(parts_.threads);
  HOIST_ASSIGN_OR_RETURN(receivers_, threads.MakeExecutor(CopyThreads(parts_)));
  HOIST_ASSIGN_OR_RETURN(copy_threads_,
                         threads.MakeExecutor(CopyThreads(parts_)));
  return absl::OkStatus();
}

void Mover::AddFiles(ModelId model, std::shared_ptr<const SourceFiles> files) {
  files_[model] = std::move(files);
}

void Mover::DropFiles(ModelId model) { files_.erase(model); }

TransferQueue& Mover::QueueOf(const Transfer& transfer) {
  return std::visit(
      Overloaded{
          [&](const FilesToHost&) -> TransferQueue& {
            // One owner's hanging reads must not block others.
            const std::optional<User> owner =
                ParkedFor(*files_.at(transfer.key.model));
            if (!owner.has_value()) return reads_;
            constexpr size_t kRead = static_cast<size_t>(HelperCallKind::kRead);
            constexpr QueueWidth kWidth = {
                static_cast<int>(IoHelpers::kWidth[kRead])};
            return parked_reads_.try_emplace(*owner, kWidth).first->second;
          },
          [&](const SpillToHost&) -> TransferQueue& { return reads_; },
          [&](const ClientToHost&) -> TransferQueue& { return receives_; },
          [&](const CheckOnHost&) -> TransferQueue& { return checks_; },
          [&](const CheckOnDevice&) -> TransferQueue& {
            return device_checks_;
          },
          [&](const CheckOnPageable&) -> TransferQueue& { return checks_; },
          [&](const CheckOnDisk&) -> TransferQueue& { return checks_; },
          [&](const HostToSpill&) -> TransferQueue& { return spills_; },
          [&](const HostToDevice&) -> TransferQueue& {
            HOIST_CHECK(false);  // Its link has its own queue.
          },
          [&](const InPlaceToDevice&) -> TransferQueue& { HOIST_CHECK(false); },
          [&](const HostToClient&) -> TransferQueue& { return images_; },
          [&](const HostToPageable&) -> TransferQueue& { return images_; },
          [&](const PageableToHost&) -> TransferQueue& { return images_; },
      },
      transfer.way);
}

void Mover::Start(Transfer transfer) {
  if (const auto* way = transfer.by<HostToDevice>()) {
    return Carry(transfer, *way);
  }
  if (const auto* way = transfer.by<InPlaceToDevice>()) {
    return Carry(transfer, *way);
  }
  TransferQueue& queue = QueueOf(transfer);
  queue_of_[transfer.id] = &queue;
  queue.Add(std::move(transfer));
  while (std::optional<Transfer> next = queue.Next()) Run(*next);
}

void Mover::Hurry(TransferId id) {
  const auto queue = queue_of_.find(id);
  if (queue != queue_of_.end()) queue->second->Hurry(id);
  const auto link = link_of_.find(id);
  if (link != link_of_.end()) link->second->Hurry(id);
}

void Mover::Finished(TransferId id, bool failed, absl::Time ended) {
  if (!traced_.empty()) TraceEnd(id, failed, ended);
  if (link_of_.erase(id) > 0) return;
  const auto found = queue_of_.find(id);
  HOIST_CHECK(found != queue_of_.end());
  TransferQueue& queue = *found->second;
  queue_of_.erase(found);
  queue.Finished(id);
  while (std::optional<Transfer> next = queue.Next()) Run(*next);
  std::erase_if(parked_reads_, [](const auto& of) { return of.second.idle(); });
}

void Mover::Run(const Transfer& transfer) {
  if (Traces(parts_.trace)) TraceBegin(transfer);
  std::visit([&](const auto& way) { Carry(transfer, way); }, transfer.way);
}

void Mover::Report(TransferId id, absl::Status status, TransferResult result) {
  on_done_(id, std::move(status), result);
}

std::span<std::byte> Mover::HostOf(const Transfer& transfer,
                                   uint64_t offset) const {
  return parts_.host.subspan(offset, transfer.group->image_bytes);
}

std::vector<HostRun> Mover::RunsOf(const ImageRanges& ranges,
                                   uint64_t to_offset) const {
  std::vector<HostRun> runs;
  runs.reserve(ranges.size());
  for (const ImageRange& range : ranges) {
    runs.push_back({to_offset + range.image_offset,
                    parts_.host.subspan(range.host_offset, range.bytes)});
  }
  return runs;
}

void Mover::Carry(const Transfer& transfer, const FilesToHost& way) {
  const auto files = files_.find(transfer.key.model);
  HOIST_CHECK(files != files_.end());
  if (const std::optional<User> owner = ParkedFor(*files->second)) {
    return ReadParked(transfer, way, *owner);
  }
  PlannedReads reads =
      PlanReads(transfer.model->sheets, way.reads, parts_.host);
  auto done = [this, id = transfer.id, model = transfer.model,
               parts = way.reads,
               of = files->second](const absl::Status& read) {
    absl::Status status = CheckUnchanged(*of, parts);
    status.Update(read);
    if (status.ok()) ZeroPadding(model->sheets, parts, parts_.host);
    Report(id, std::move(status));
  };
  if (reads.empty()) return done(absl::OkStatus());
  size_t count = 0;
  for (const auto& [file, requests] : reads) count += requests.size();
  auto gather = std::make_shared<Gather>(count, std::move(done));
  for (auto& [file, requests] : reads) {
    for (ReadRequest& request : requests) {
      request.file = (*files->second)[file]->io();
      parts_.io->Read(std::move(request), [gather](const absl::Status& status) {
        gather->Part(status);
      });
    }
  }
}

void Mover::ReadParked(const Transfer& transfer, const FilesToHost& way,
                       User owner) {
  HOIST_CHECK(parts_.io_helpers != nullptr);
  parts_.io_helpers->Post(
      owner, HelperCallKind::kRead,
      [this, id = transfer.id, model = transfer.model, parts = way.reads,
       files = files_.at(transfer.key.model)](absl::StatusOr<IoHelper*> run) {
        absl::Status status = run.status();
        if (run.ok()) {
          status = ReadGroup(**run, *parts_.io, *files,
                             PlanReads(model->sheets, parts, parts_.host));
        }
        if (status.ok()) ZeroPadding(model->sheets, parts, parts_.host);
        Report(id, std::move(status));
      });
}

void Mover::Carry(const Transfer& transfer, const SpillToHost& way) {
  HOIST_CHECK(parts_.store != nullptr);
  parts_.store->Get(
      way.from, HostOf(transfer, way.host_offset),
      [this, id = transfer.id](absl::Status s) { Report(id, std::move(s)); });
}

void Mover::Carry(const Transfer& transfer, const ClientToHost& way) {
  const uint64_t bytes = transfer.group->image_bytes;
  if (way.host_offset.has_value()) {
    const std::span<std::byte> to = HostOf(transfer, *way.host_offset);
    return InPieces(
        *receivers_, bytes,
        [memfd = way.memfd, to](uint64_t at, uint64_t piece) {
          return ReceiveImage(memfd->get(), at, to.subspan(at, piece));
        },
        [this, transfer, to](absl::Status received) {
          if (received.ok()) return Hash(transfer, to, nullptr);
          Report(transfer.id, std::move(received));
        });
  }
  receivers_->Post([this, transfer, memfd = way.memfd, bytes] {
    absl::StatusOr<hoist::Mapping> mapped = MapImage(memfd->get(), bytes);
    if (!mapped.ok()) return Report(transfer.id, mapped.status());
    auto held = std::make_shared<hoist::Mapping>(*std::move(mapped));
    Hash(transfer, held->span(), held);
  });
}

// Runs on a thread of receivers_; others may help. Keeps `held` until the
// report.
void Mover::Hash(const Transfer& transfer, std::span<const std::byte> image,
                 std::shared_ptr<hoist::Mapping> held) {
  auto hash = std::make_shared<ContentHash>(
      transfer.group, image,
      [this, id = transfer.id, held = std::move(held)](const Content& content) {
        TransferResult result;
        result.content = content;
        Report(id, absl::OkStatus(), result);
      });
  // Idle threads help; this one does not wait for them.
  const auto helpers =
      std::min(static_cast<size_t>(CopyThreads(parts_)), hash->pieces());
  for (size_t i = 1; i < helpers; ++i) {
    receivers_->Post([hash] { hash->Help(); });
  }
  hash->Help(/*last=*/true);
}

void Mover::Carry(const Transfer& transfer, const CheckOnHost& way) {
  receivers_->Post([this, transfer, way] {
    Hash(transfer, HostOf(transfer, way.host_offset), nullptr);
  });
}

void Mover::Carry(const Transfer& transfer, const CheckOnDevice& way) {
  const uint32_t device = way.device.number();
  DeviceHash::Parts parts;
  parts.link = parts_.links[device];
  parts.executor = receivers_.get();
  parts.memory = read_memory_[device].get();
  parts.key = transfer.key;
  std::make_shared<DeviceHash>(
      parts, transfer.group, way.device_offset,
      [this, id = transfer.id](const absl::StatusOr<Content>& content) {
        TransferResult result;
        if (content.ok()) result.content = *content;
        Report(id, content.status(), result);
      })
      ->Start();
}

void Mover::Carry(const Transfer& transfer, const CheckOnPageable& way) {
  receivers_->Post([this, transfer, way] {
    Hash(transfer,
         parts_.pageable.subspan(way.pageable_offset,
                                 transfer.group->image_bytes),
         nullptr);
  });
}

void Mover::Carry(const Transfer& transfer, const CheckOnDisk& way) {
  HOIST_CHECK(parts_.store != nullptr);
  parts_.store->Verify(way.from, [this, id = transfer.id](absl::Status status) {
    Report(id, std::move(status));
  });
}

void Mover::Carry(const Transfer& transfer, const HostToSpill& way) {
  HOIST_CHECK(parts_.store != nullptr);
  auto meta = std::make_shared<SpillMeta>();
  const uint32_t index = transfer.key.group.number();
  meta->model = transfer.model->name;
  meta->owner = way.owner;
  meta->readers = way.readers;
  meta->group_index = transfer.key.group;
  meta->group_content = transfer.model->group_contents[index];
  meta->group = *transfer.group;
  parts_.store->Put(std::move(meta), HostOf(transfer, way.host_offset),
                    [this, id = transfer.id](absl::StatusOr<SpillId> spill) {
                      TransferResult result;
                      if (spill.ok()) result.spill = *spill;
                      Report(id, spill.status(), result);
                    });
}

void Mover::Carry(const Transfer& transfer, const HostToDevice& way) {
  CopyIn(transfer, way.device, RunsOf(way.from, way.device_offset));
}

void Mover::Carry(const Transfer& transfer, const InPlaceToDevice& way) {
  const std::span<const std::byte> from =
      parts_.in_place.subspan(way.from_offset, transfer.group->image_bytes);
  CopyIn(transfer, way.device, {{way.device_offset, from}});
}

void Mover::CopyIn(const Transfer& transfer, DeviceIndex device,
                   std::vector<HostRun> runs) {
  Link* const link = parts_.links[device.number()];
  link_of_[transfer.id] = link;
  ImageLoad load;
  load.id = transfer.id;
  load.key = transfer.key;
  load.runs = std::move(runs);
  load.urgent = transfer.urgent;
  load.done = [this, id = transfer.id](absl::Status s) {
    Report(id, std::move(s));
  };
  link->Copy(std::move(load));
}

void Mover::Carry(const Transfer& transfer, const HostToClient& way) {
  auto copy = std::make_shared<ImageCopy>(
      way.memfd, transfer.group->image_bytes, RunsOf(way.from, 0),
      [this, id = transfer.id](absl::Status s) { Report(id, std::move(s)); });
  const auto helpers =
      std::min(static_cast<uint64_t>(CopyThreads(parts_)), copy->pieces());
  for (uint64_t i = 0; i < helpers; ++i) {
    copy_threads_->Post([copy] { copy->Help(); });
  }
}

void Mover::Carry(const Transfer& transfer, const HostToPageable& way) {
  const auto from = HostOf(transfer, way.host_offset);
  const auto to = parts_.pageable.subspan(way.pageable_offset, from.size());
  if (!parts_.make_pages) return CopyInMemory(transfer.id, from, to);
  copy_threads_->Post([this, id = transfer.id, from, to] {
    if (absl::Status made = parts_.make_pages(to); !made.ok()) {
      return Report(id, std::move(made));
    }
    CopyInMemory(id, from, to);
  });
}

void Mover::Carry(const Transfer& transfer, const PageableToHost& way) {
  const auto to = HostOf(transfer, way.host_offset);
  CopyInMemory(transfer.id,
               parts_.pageable.subspan(way.pageable_offset, to.size()), to);
}

void Mover::CopyInMemory(TransferId id, std::span<const std::byte> from,
                         std::span<std::byte> to) {
  InPieces(
      *copy_threads_, from.size(),
      [from, to](uint64_t at, uint64_t bytes) {
        if (bytes > 0) std::memcpy(to.data() + at, from.data() + at, bytes);
        return absl::OkStatus();
      },
      [this, id](absl::Status s) { Report(id, std::move(s)); });
}

void Mover::Unspill(SpillId id) {
  if (parts_.store == nullptr) return;
  // A failed removal leaves an orphan, removed at the next start.
  parts_.store->Remove(id, [](absl::Status status) { status.IgnoreError(); });
}

}  // namespace hoistd
