#include "tests/bench/recording.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

#include "tests/bench/basics.h"
#include "tests/bench/report.h"

namespace hoist::bench {
namespace {

using Row = std::pair<int64_t, int64_t>;  // Process and thread.

// "copies" or "idle" of device 0, by its row.
std::map<Row, std::string> RowsOfDevice(const Json& events) {
  int64_t device = -1;
  for (const Json& one : events) {
    if (one["ph"] == "M" && one["name"] == "process_name" &&
        one["args"]["name"].get<std::string>().starts_with("device 0 ")) {
      device = one["pid"];
    }
  }
  std::map<Row, std::string> rows;
  for (const Json& one : events) {
    if (one["ph"] == "M" && one["name"] == "thread_name" &&
        one["pid"] == device) {
      rows[{one["pid"], one["tid"]}] = one["args"]["name"];
    }
  }
  return rows;
}

}  // namespace

Recording::Recording(const Daemon& daemon)
    : path_(daemon.folder() + "/trace.json"), log_(path_ + ".log") {
  std::filesystem::remove(log_);
  process_ = std::make_unique<ChildProcess>(
      ChildSpec{.arguments = {daemon.ctl(), "--socket",
                              daemon.folder() + "/hoistd.grpc.sock", "trace",
                              "record", "--for", "10min", "--out", path_},
                .log = log_});
  while (ReadText(log_).find("recording for") == std::string::npos) {
    if (!process_->Running()) {
      Fail("hoistctl trace did not start; it said:\n" + ReadText(log_));
    }
    SleepFor(0.002);
  }
}

std::vector<LinkGap> Recording::Finish() {
  process_->End(SIGINT);
  const Json all = Json::parse(ReadText(path_), nullptr, false);
  if (all.is_discarded()) Fail("hoistctl trace said:\n" + ReadText(log_));
  const Json& events = all["traceEvents"];
  const std::map<Row, std::string> rows = RowsOfDevice(events);
  double first = std::numeric_limits<double>::infinity(), last = 0;
  std::vector<std::pair<double, LinkGap>> gaps;  // By their begin.
  for (const Json& one : events) {
    if (one["ph"] != "X") continue;
    const auto row = rows.find({one["pid"], one["tid"]});
    if (row == rows.end()) continue;
    const double begin = one["ts"], microseconds = one["dur"];
    if (row->second == "idle") {
      gaps.push_back({begin, {one["name"], microseconds / 1e6}});
    } else if (row->second == "copies") {
      first = std::min(first, begin);
      last = std::max(last, begin);
    }
  }
  std::vector<LinkGap> found;
  for (auto& [begin, gap] : gaps) {
    if (first < begin && begin < last) found.push_back(std::move(gap));
  }
  return found;
}

}  // namespace hoist::bench
