#include "daemon/link/image_queue.h"

#include <algorithm>
#include <utility>

namespace hoistd {

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
         piece.rows.size() < kRunsAPiece) {
    const Job& job = *waiting_.front();
    const HostRun& run = job.load.runs[job.run];
    const uint64_t bytes =
        std::min<uint64_t>(at_most - piece.bytes, run.from.size() - job.at);
    piece.Add(run.to_offset + job.at, run.from.subspan(job.at, bytes));
    Take(bytes, run.from.size(), jobs, piece);
  }
  return piece;
}

}  // namespace hoistd
