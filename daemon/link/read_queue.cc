#include "daemon/link/read_queue.h"

#include <algorithm>
#include <utility>

#include "daemon/base/status.h"

namespace hoistd {

void ReadQueue::Add(DeviceRead read) {
  auto job = std::make_shared<Job>();
  job->read = std::move(read);
  job->status = failed_;
  if (!failed_.ok()) return Tell(*job);
  waiting_.push_back(std::move(job));
}

LinkPiece ReadQueue::TakePiece(uint64_t at_most) {
  const JobPtr job = waiting_.front();
  const std::span<std::byte> to = job->read.to.subspan(job->taken);
  LinkPiece piece;
  piece.bytes = std::min<uint64_t>(at_most, to.size());
  piece.from_offset = job->read.from_offset + job->taken;
  piece.to = to.first(piece.bytes);
  if (Traces(trace_)) AddPart(job->read.key, {}, piece.bytes, piece.parts);
  job->taken += piece.bytes;
  ++job->under_way;
  if (job->taken == job->read.to.size()) waiting_.pop_front();
  under_way_.push_back(job);
  return piece;
}

void ReadQueue::Refused(const absl::Status& why, bool queued) {
  const JobPtr job = under_way_.back();
  if (!queued) {
    under_way_.pop_back();
    --job->under_way;
  }
  Give(job, Annotate(why, "copy from the device"));
}

void ReadQueue::Ended(const absl::Status& status, absl::Time) {
  const JobPtr job = std::move(under_way_.front());
  under_way_.pop_front();
  --job->under_way;
  if (!status.ok()) return Give(job, status);
  const bool taken = job->taken == job->read.to.size();
  if (job->under_way == 0 && (taken || !job->status.ok())) Tell(*job);
}

void ReadQueue::Fail(absl::Status why) {
  failed_.Update(why);
  while (!waiting_.empty()) Give(JobPtr(waiting_.front()), why);
}

void ReadQueue::Give(const JobPtr& job, const absl::Status& why) {
  job->status.Update(why);
  std::erase(waiting_, job);
  if (job->under_way == 0) Tell(*job);
}

void ReadQueue::Tell(Job& job) {
  if (job.read.done == nullptr) return;
  std::exchange(job.read.done, nullptr)(job.status);
}

}  // namespace hoistd
