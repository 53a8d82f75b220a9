// Queues what the link copies in pieces, whichever way.
#ifndef HOIST_DAEMON_LINK_JOB_QUEUE_H_
#define HOIST_DAEMON_LINK_JOB_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/base/status.h"
#include "daemon/link/copy_trace.h"
#include "daemon/link/link_customer.h"
#include "daemon/trace/recorder.h"

namespace hoistd {

// `Load` has `key`, `run_count()`, kWhat ("copy to ...") and `done`, which is
// called once, when none of its pieces is in flight.
//
// Threads:  as LinkCustomer; `done` is called on the link's thread too.
// Bounds:   the caller bounds the queue.
template <typename Load>
class JobQueue : public LinkCustomer {
 public:
  // A load partly taken, or not started.
  struct Job {
    explicit Job(Load given) : load(std::move(given)) {}
    bool taken() const { return run == load.run_count(); }

    Load load;
    size_t run = 0;     // Earlier runs are taken,
    uint64_t at = 0;    // and this many bytes of it.
    int under_way = 0;  // Its pieces in flight.
    absl::Status status;
  };
  using JobPtr = std::shared_ptr<Job>;  // Shared with pieces in flight.

  explicit JobQueue(const TraceRecorder* trace) : trace_(trace) {}

  void Add(JobPtr job) {
    if (!failed_.ok()) job->status.Update(failed_);
    if (job->status.ok() && !job->taken()) {
      waiting_.push_back(std::move(job));
    } else if (job->under_way == 0) {
      Tell(*job);
    }
  }

  bool Look(absl::Time) override { return false; }
  bool HasPiece() override { return !waiting_.empty(); }
  void Refused(const absl::Status& why) override {
    const Jobs jobs = under_way_.back();
    for (const JobPtr& job : jobs) Give(job, Annotate(why, Load::kWhat));
  }
  void Ended(const absl::Status& status, absl::Time) override {
    const Jobs jobs = std::move(under_way_.front());
    under_way_.pop_front();
    for (const JobPtr& job : jobs) {
      --job->under_way;
      if (!status.ok()) {
        Give(job, status);
      } else if (job->under_way == 0 && (job->taken() || !job->status.ok())) {
        Tell(*job);
      }
    }
  }
  void Fail(absl::Status why) override {
    failed_.Update(why);
    while (!waiting_.empty()) Give(JobPtr(waiting_.front()), why);
  }
  bool quiet(bool held_back) const override {
    return waiting_.empty() || held_back;
  }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  TraceWhy why_idle() const override { return TraceWhy::kNotDue; }
  void SetSleeping(bool) override {}

 protected:
  using Jobs = std::vector<JobPtr>;

  // Books so many bytes of the first waiting job's run, which has `run_bytes`.
  void Take(uint64_t bytes, uint64_t run_bytes, Jobs& jobs, LinkPiece& piece) {
    const JobPtr job = waiting_.front();
    if (Traces(trace_)) AddPart(job->load.key, {}, bytes, piece.parts);
    job->at += bytes;
    if (job->at == run_bytes) {
      ++job->run;
      job->at = 0;
    }
    if (jobs.empty() || jobs.back() != job) {
      ++job->under_way;
      jobs.push_back(job);
    }
    if (job->taken()) waiting_.pop_front();
  }

  std::deque<JobPtr> waiting_;  // Each has bytes still to take.
  std::deque<Jobs> under_way_;  // By piece.

 private:
  // Ends the job; nothing more is taken of it.
  void Give(const JobPtr& job, const absl::Status& why) {
    job->status.Update(why);
    std::erase(waiting_, job);
    if (job->under_way == 0) Tell(*job);
  }
  static void Tell(Job& job) {
    if (job.load.done == nullptr) return;
    std::exchange(job.load.done, nullptr)(job.status);
  }

  const TraceRecorder* const trace_;
  absl::Status failed_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_JOB_QUEUE_H_
