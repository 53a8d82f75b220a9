// What Admin.Trace sends, as the JSON Trace Event format, which
// https://ui.perfetto.dev and chrome://tracing open.
#ifndef HOIST_CLIENT_CTL_TRACE_JSON_H_
#define HOIST_CLIENT_CTL_TRACE_JSON_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "client/ctl/link_use.h"
#include "hoist/v1/admin.pb.h"

namespace hoist::ctl {

// Text as a JSON string, quotes included.
std::string JsonString(const std::string& text);

// A device's link in bytes a second, from the copies over it, in bins.
class LinkRate {
 public:
  static constexpr uint64_t kBinNs = 10'000'000;

  struct Sample {
    uint64_t at_ns = 0;
    uint64_t bytes_per_second = 0;
  };

  // Of one link in their order. What is known by now is appended to `samples`.
  void Add(uint64_t begin_ns, uint64_t end_ns, uint64_t bytes,
           std::vector<Sample>& samples);
  void Finish(std::vector<Sample>& samples);

 private:
  void Put(uint64_t bin, double bytes, std::vector<Sample>& samples);

  uint64_t bin_ = 0;
  double bytes_ = 0;  // In it.
  bool any_ = false;
};

// Writes as chunks come; Finish makes a whole document of what has come so far.
// Slices of one row do not overlap: what runs at once gets rows of its own.
//
// Threads:  one at a time.
// Bounds:   of events it keeps those that are open; of names, all.
class TraceJson {
 public:
  TraceJson();

  void Add(const v1::TraceChunk& chunk);
  // Once. What is still open lasts until the end.
  void Finish();
  // What was written since the last call.
  std::string Take() { return std::exchange(text_, {}); }

  uint64_t slices() const { return slices_; }
  uint64_t recorded_ns() const { return recorded_ns_; }
  uint64_t dropped_events() const { return dropped_events_; }
  // By device; whole after Finish.
  const std::map<uint32_t, LinkUse>& links() const { return links_; }

 private:
  using Kind = v1::TraceEvent::Kind;
  // Of those that are open.
  using Key = std::tuple<int, uint32_t, uint64_t, uint64_t, uint64_t>;
  // Rows for what may run at once.
  struct Row {
    struct Track {
      uint64_t tid = 0;
      uint64_t end_ns = 0;
    };
    std::vector<Track> tracks;
  };
  struct Place {
    uint64_t pid = 0;
    std::string row;
  };

  static Key KeyOf(const v1::TraceEvent& event);
  void AddNames(const v1::TraceChunk& chunk);
  void AddEvent(const v1::TraceEvent& event);
  void AddCopy(const v1::TraceEvent& event);
  void AddUsed(const v1::TraceEvent& event);
  void End(const v1::TraceEvent& event, bool ended);
  void AddRates(uint64_t device, const std::vector<LinkRate::Sample>& samples);

  // Their numbers; named when they are used first.
  uint64_t Daemon();
  uint64_t Disk();
  uint64_t Device(uint32_t device);
  uint64_t Session(uint64_t session);
  uint64_t Named(uint64_t& pid, const std::string& name, int sort);
  Place PlaceOf(const v1::TraceEvent& event);
  std::string GroupOf(const v1::TraceEvent& event) const;
  std::string NameOf(const v1::TraceEvent& event) const;
  std::string ArgsOf(const v1::TraceEvent& event, bool ended) const;

  void Slice(const Place& place, const v1::TraceEvent& event, bool ended);
  uint64_t TidFor(const Place& place, uint64_t begin_ns, uint64_t end_ns);
  void Metadata(uint64_t pid, uint64_t tid, std::string_view what,
                const std::string& key, const std::string& value);
  void Counter(uint64_t pid, std::string_view name, std::string_view unit,
               uint64_t at_ns, uint64_t value);
  void Object(const std::string& json);

  std::string text_;
  bool first_ = true;
  // Of processes and rows: viewers mix up a row whose number is a process's.
  uint64_t last_id_ = 0;
  uint64_t slices_ = 0;
  uint64_t recorded_ns_ = 0;
  uint64_t dropped_events_ = 0;
  uint64_t unnamed_groups_ = 0;
  uint64_t began_unix_ns_ = 0;
  std::vector<std::string> devices_;
  std::map<uint64_t, v1::TraceSession> sessions_;
  std::map<uint64_t, uint64_t> plans_;  // Their sessions.
  std::map<uint64_t, std::string> models_;
  std::map<std::pair<uint64_t, uint32_t>, std::string> groups_;
  uint64_t daemon_ = 0;  // Processes; 0: not used yet.
  uint64_t disk_ = 0;
  std::map<uint32_t, uint64_t> device_pids_;
  std::map<uint64_t, uint64_t> session_pids_;
  std::map<std::pair<uint64_t, std::string>, Row> rows_;  // By pid and name.
  std::map<uint64_t, LinkRate> rates_;                    // By device.
  std::map<uint32_t, LinkUse> links_;
  std::map<Key, v1::TraceEvent> open_;
};

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_TRACE_JSON_H_
