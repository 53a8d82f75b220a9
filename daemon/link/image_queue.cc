#include "daemon/link/image_queue.h"

#include <algorithm>
#include <utility>

#include "daemon/base/status.h"

namespace hoistd {

void ImageQueue::Add(JobPtr job) {
  if (!failed_.ok()) job->status.Update(failed_);
  if (!job->status.ok() || Taken(*job)) {
    if (job->under_way == 0) Tell(*job);
    return;
  }
  waiting_.push_back(std::move(job));
}

ImageQueue::JobPtr ImageQueue::Remove(TransferId id) {
  const auto found = std::ranges::find_if(
      waiting_, [id](const JobPtr& job) { return job->load.id == id; });
  if (found == waiting_.end()) return nullptr;
  JobPtr job = std::move(*found);
  waiting_.erase(found);
  return job;
}

LinkPiece ImageQueue::TakePiece(uint64_t at_most) {
  LinkPiece piece;
  Jobs& jobs = under_way_.emplace_back();
  while (!waiting_.empty() && piece.bytes < at_most &&
         piece.runs.size() < kRunsAPiece) {
    const JobPtr job = waiting_.front();
    const HostRun& run = job->load.runs[job->run];
    const uint64_t bytes =
        std::min<uint64_t>(at_most - piece.bytes, run.from.size() - job->at);
    piece.Add(run.to_offset + job->at, run.from.subspan(job->at, bytes));
    if (Traces(trace_)) AddPart(job->load.key, {}, bytes, piece.parts);
    job->at += bytes;
    if (job->at == run.from.size()) {
      ++job->run;
      job->at = 0;
    }
    if (jobs.empty() || jobs.back() != job) {
      ++job->under_way;
      jobs.push_back(job);
    }
    if (Taken(*job)) waiting_.pop_front();
  }
  return piece;
}

void ImageQueue::Refused(const absl::Status& why, bool queued) {
  const Jobs jobs = under_way_.back();
  if (!queued) under_way_.pop_back();
  for (const JobPtr& job : jobs) {
    if (!queued) --job->under_way;
    Give(job, Annotate(why, "copy to the device"));
  }
}

void ImageQueue::Ended(const absl::Status& status, absl::Time) {
  const Jobs jobs = std::move(under_way_.front());
  under_way_.pop_front();
  for (const JobPtr& job : jobs) {
    --job->under_way;
    if (!status.ok()) {
      Give(job, status);
    } else if (job->under_way == 0 && (Taken(*job) || !job->status.ok())) {
      Tell(*job);
    }
  }
}

void ImageQueue::Fail(absl::Status why) {
  failed_.Update(why);
  while (!waiting_.empty()) Give(JobPtr(waiting_.front()), why);
}

void ImageQueue::Give(const JobPtr& job, const absl::Status& why) {
  job->status.Update(why);
  std::erase(waiting_, job);
  if (job->under_way == 0) Tell(*job);
}

void ImageQueue::Tell(Job& job) {
  if (job.load.done == nullptr) return;
  std::exchange(job.load.done, nullptr)(job.status);
}

}  // namespace hoistd
