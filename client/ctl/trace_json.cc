#include "client/ctl/trace_json.h"

#include <algorithm>
#include <cstdio>

#include "client/ctl/text.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/wrappers.pb.h"

namespace hoist::ctl {
namespace {

using Event = v1::TraceEvent;

// The format counts in microseconds; no digit is lost.
std::string Microseconds(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%llu.%03u",
                static_cast<unsigned long long>(ns / 1000),
                static_cast<unsigned>(ns % 1000));
  return text;
}

const char* CategoryOf(Event::Kind kind) {
  switch (static_cast<int>(kind)) {
    case Event::KIND_COPY_IN:
    case Event::KIND_COPY_OUT:
    case Event::KIND_GRANTED_COPY:
    case Event::KIND_OWN_READ:
      return "copy";
    case Event::KIND_FILE_READ:
    case Event::KIND_SPILL_READ:
    case Event::KIND_CHECK:
      return "read";
    case Event::KIND_SPILL_WRITE:
      return "write";
    case Event::KIND_RECEIVE:
    case Event::KIND_DELIVER:
    case Event::KIND_PAGE_IN:
    case Event::KIND_PAGE_OUT:
      return "host";
    case Event::KIND_LANE_GAP:
    case Event::KIND_LINK_GAP:
      return "gap";
    case Event::KIND_SLOW_EVENT:
      return "engine";
  }
  return "wait";
}

}  // namespace

std::string JsonString(const std::string& text) {
  google::protobuf::StringValue value;
  value.set_value(text);
  std::string json;
  // Fails only for google.protobuf.Any.
  static_cast<void>(google::protobuf::util::MessageToJsonString(value, &json));
  return json;
}

void LinkRate::Put(uint64_t bin, double bytes, std::vector<Sample>& samples) {
  if (any_ && bin > bin_) {
    constexpr double kBinsASecond = 1e9 / double(kBinNs);
    samples.push_back(
        {bin_ * kBinNs, static_cast<uint64_t>(bytes_ * kBinsASecond)});
    if (bin > bin_ + 1) samples.push_back({(bin_ + 1) * kBinNs, 0});
    bytes_ = 0;
  }
  if (!any_ || bin > bin_) bin_ = bin;
  any_ = true;
  bytes_ += bytes;
}

void LinkRate::Add(uint64_t begin_ns, uint64_t end_ns, uint64_t bytes,
                   std::vector<Sample>& samples) {
  if (end_ns <= begin_ns) {
    Put(begin_ns / kBinNs, double(bytes), samples);
    return;
  }
  const double a_ns = double(bytes) / double(end_ns - begin_ns);
  for (uint64_t at = begin_ns; at < end_ns;) {
    const uint64_t bin = at / kBinNs;
    const uint64_t until = std::min(end_ns, (bin + 1) * kBinNs);
    Put(bin, a_ns * double(until - at), samples);
    at = until;
  }
}

void LinkRate::Finish(std::vector<Sample>& samples) {
  if (any_) Put(bin_ + 2, 0, samples);
}

TraceJson::TraceJson() { text_ = "{\"traceEvents\":[\n"; }

void TraceJson::Object(const std::string& json) {
  if (!first_) text_ += ",\n";
  first_ = false;
  text_ += json;
}

void TraceJson::Metadata(uint64_t pid, uint64_t tid, std::string_view what,
                         const std::string& key, const std::string& value) {
  Object("{\"ph\":\"M\",\"pid\":" + std::to_string(pid) +
         ",\"tid\":" + std::to_string(tid) + ",\"name\":\"" +
         std::string(what) + "\",\"args\":{\"" + key + "\":" + value + "}}");
}

void TraceJson::Counter(uint64_t pid, std::string_view name,
                        std::string_view unit, uint64_t at_ns, uint64_t value) {
  Object("{\"ph\":\"C\",\"pid\":" + std::to_string(pid) + ",\"name\":\"" +
         std::string(name) + "\",\"ts\":" + Microseconds(at_ns) +
         ",\"args\":{\"" + std::string(unit) + "\":" + std::to_string(value) +
         "}}");
}

uint64_t TraceJson::Named(uint64_t& pid, const std::string& name, int sort) {
  if (pid != 0) return pid;
  pid = ++last_id_;
  Metadata(pid, 0, "process_name", "name", JsonString(name));
  Metadata(pid, 0, "process_sort_index", "sort_index", std::to_string(sort));
  return pid;
}

uint64_t TraceJson::Daemon() { return Named(daemon_, "hoistd", 1); }

uint64_t TraceJson::Disk() { return Named(disk_, "disk and host", 3); }

uint64_t TraceJson::Device(uint32_t device) {
  std::string name = "device " + std::to_string(device);
  if (device < devices_.size()) name += " (" + devices_[device] + ")";
  return Named(device_pids_[device], name, 2);
}

uint64_t TraceJson::Session(uint64_t session) {
  if (session == 0) return Daemon();
  const auto found = sessions_.find(session);
  std::string name = "session " + std::to_string(session);
  if (found != sessions_.end()) {
    name = found->second.client_name() + ", pid " +
           ProcessText(found->second.pid()) + " (" + name + ")";
  }
  return Named(session_pids_[session], name, 4);
}

void TraceJson::AddNames(const v1::TraceChunk& chunk) {
  if (chunk.began_unix_ns() != 0) began_unix_ns_ = chunk.began_unix_ns();
  for (const std::string& device : chunk.devices()) {
    links_[static_cast<uint32_t>(devices_.size())];
    devices_.push_back(device);
  }
  for (const v1::TraceSession& one : chunk.sessions()) {
    sessions_[one.id()] = one;
  }
  for (const v1::TracePlan& one : chunk.plans()) {
    plans_[one.id()] = one.session_id();
  }
  for (const v1::TraceModel& one : chunk.models()) {
    models_[one.id()] = one.name();
  }
  for (const v1::TraceGroup& one : chunk.groups()) {
    groups_[{one.model_id(), one.group()}] = one.name();
  }
}

void TraceJson::Add(const v1::TraceChunk& chunk) {
  AddNames(chunk);
  for (const Event& event : chunk.events()) AddEvent(event);
  recorded_ns_ = std::max(recorded_ns_, chunk.recorded_ns());
  dropped_events_ = std::max(dropped_events_, chunk.dropped_events());
  unnamed_groups_ = std::max(unnamed_groups_, chunk.unnamed_groups());
}

TraceJson::Key TraceJson::KeyOf(const Event& event) {
  // A lane waits for one group at a time, but many loads for the host.
  const bool by_group = event.kind() == Event::KIND_HOST_WAIT;
  return {event.kind(), event.device(), event.plan_id(), event.request(),
          by_group ? event.group() : 0};
}

void TraceJson::AddEvent(const Event& event) {
  switch (static_cast<int>(event.kind())) {
    case Event::KIND_UNSPECIFIED:
      return;
    case Event::KIND_HOST_USED:
    case Event::KIND_DEVICE_USED:
      return AddUsed(event);
    case Event::KIND_COPY_IN:
    case Event::KIND_COPY_OUT:
    case Event::KIND_GRANTED_COPY:
      return AddCopy(event);
  }
  if (event.open()) {
    open_[KeyOf(event)] = event;
    return;
  }
  open_.erase(KeyOf(event));
  End(event, /*ended=*/true);
}

void TraceJson::End(const Event& event, bool ended) {
  if (event.kind() == Event::KIND_LINK_GAP) {
    links_[event.device()].AddGap(event.why(), event.duration_ns());
  }
  Slice(PlaceOf(event), event, ended);
}

void TraceJson::AddUsed(const Event& event) {
  const bool host = event.kind() == Event::KIND_HOST_USED;
  Counter(host ? Disk() : Device(event.device()),
          host ? "host pool used" : "device used", "bytes", event.begin_ns(),
          event.bytes());
}

void TraceJson::AddCopy(const Event& event) {
  const bool granted = event.kind() == Event::KIND_GRANTED_COPY;
  Slice({Device(event.device()), granted ? "workers' copies" : "copies"}, event,
        /*ended=*/true);
  if (event.plan_id() != 0) {
    Slice(PlaceOf(event), event, /*ended=*/true);
    --slices_;  // The same bytes.
  }
  links_[event.device()].AddCopy(event.begin_ns(), event.duration_ns());
  if (event.failed()) return;
  std::vector<LinkRate::Sample> samples;
  rates_[event.device()].Add(event.begin_ns(),
                             event.begin_ns() + event.duration_ns(),
                             event.bytes(), samples);
  AddRates(event.device(), samples);
}

void TraceJson::AddRates(uint64_t device,
                         const std::vector<LinkRate::Sample>& samples) {
  for (const LinkRate::Sample& sample : samples) {
    Counter(Device(static_cast<uint32_t>(device)), "link rate",
            "bytes a second", sample.at_ns, sample.bytes_per_second);
  }
}

TraceJson::Place TraceJson::PlaceOf(const Event& event) {
  const auto of_plan = [&](const char* what) {
    const auto plan = plans_.find(event.plan_id());
    const uint64_t session = event.session_id() != 0 ? event.session_id()
                             : plan != plans_.end()  ? plan->second
                                                     : 0;
    return Place{Session(session),
                 "plan " + std::to_string(event.plan_id()) + " " + what};
  };
  switch (static_cast<int>(event.kind())) {
    case Event::KIND_COPY_IN:
    case Event::KIND_COPY_OUT:
      return of_plan("copies");
    case Event::KIND_OWN_READ:
      return {Device(event.device()), "workers' copies back"};
    case Event::KIND_LINK_GAP:
      return {Device(event.device()), "idle"};
    case Event::KIND_LANE_WAIT:
      return of_plan("waits");
    case Event::KIND_LANE_GAP:
      return of_plan("gaps");
    case Event::KIND_HOST_WAIT:
      return of_plan("waits for the host");
    case Event::KIND_FILE_READ:
    case Event::KIND_SPILL_READ:
    case Event::KIND_CHECK:
      return {Disk(), "disk reads"};
    case Event::KIND_SPILL_WRITE:
      return {Disk(), "disk writes"};
    case Event::KIND_RECEIVE:
    case Event::KIND_DELIVER:
      return {Disk(), "images to and from clients"};
    case Event::KIND_PAGE_IN:
    case Event::KIND_PAGE_OUT:
      return {Disk(), "pageable memory"};
    case Event::KIND_BRING:
      return {Daemon(), "loads and pins"};
    case Event::KIND_SLOW_EVENT:
      return {Daemon(), "engine"};
  }
  return {Session(event.session_id()), "requests"};
}

std::string TraceJson::GroupOf(const Event& event) const {
  const auto found = groups_.find({event.model_id(), event.group()});
  if (found != groups_.end()) return found->second;
  if (event.model_id() == 0) return "";
  return "group " + std::to_string(event.group());
}

std::string TraceJson::NameOf(const Event& event) const {
  const std::string group = GroupOf(event);
  switch (static_cast<int>(event.kind())) {
    case Event::KIND_COPY_OUT:
      return "read back " + group;
    case Event::KIND_GRANTED_COPY:
      return "granted to session " + std::to_string(event.session_id());
    case Event::KIND_OWN_READ:
      return "read by session " + std::to_string(event.session_id());
    case Event::KIND_SPILL_READ:
      return "spilled " + group;
    case Event::KIND_PAGE_IN:
      return "bring back " + group;
    case Event::KIND_PAGE_OUT:
      return "put aside " + group;
    case Event::KIND_CHECK:
      return "check " + group;
    case Event::KIND_RECEIVE:
      // What it is to be is not known yet.
      return group.empty() ? "receive an image" : "receive " + group;
    case Event::KIND_DELIVER:
      return "deliver " + group;
    case Event::KIND_STAGE:
      return "stage " + group;
    case Event::KIND_READ_IMAGE:
      return "read " + group;
    case Event::KIND_PUBLISH:
      return "publish";
    case Event::KIND_SET_PLAN:
      return "set a plan";
    case Event::KIND_LANE_GAP:
    case Event::KIND_LINK_GAP:
      return WhyText(event.why());
    case Event::KIND_SLOW_EVENT:
      return "an event of more than 5 ms";
  }
  return group.empty() ? "unknown group" : group;
}

std::string TraceJson::ArgsOf(const Event& event, bool ended) const {
  std::string args;
  const auto add = [&](const char* key, const std::string& json) {
    args += (args.empty() ? "\"" : ",\"") + std::string(key) + "\":" + json;
  };
  const auto add_number = [&](const char* key, uint64_t number) {
    if (number != 0) add(key, std::to_string(number));
  };
  if (event.model_id() != 0) {
    const auto model = models_.find(event.model_id());
    add("model", model != models_.end() ? JsonString(model->second)
                                        : std::to_string(event.model_id()));
    add("group", JsonString(GroupOf(event)));
  }
  add_number("bytes", event.bytes());
  add_number("session", event.session_id());
  add_number("plan", event.plan_id());
  if (event.kind() == Event::KIND_COPY_IN) {
    add("for", event.plan_id() != 0 ? "\"a plan\""
               : event.background() ? "\"a load\""
                                    : "\"who waits\"");
  }
  if (event.failed()) add("failed", "true");
  if (!ended) add("ended", "false");
  return "{" + args + "}";
}

// The one that was free last, so that few are needed.
uint64_t TraceJson::TidFor(const Place& place, uint64_t begin_ns,
                           uint64_t end_ns) {
  Row& row = rows_[{place.pid, place.row}];
  Row::Track* best = nullptr;
  for (Row::Track& track : row.tracks) {
    if (track.end_ns > begin_ns) continue;
    if (best == nullptr || track.end_ns > best->end_ns) best = &track;
  }
  if (best == nullptr) {
    best = &row.tracks.emplace_back();
    best->tid = ++last_id_;
    const size_t count = row.tracks.size();
    const std::string name =
        count == 1 ? place.row : place.row + " " + std::to_string(count);
    Metadata(place.pid, best->tid, "thread_name", "name", JsonString(name));
    Metadata(place.pid, best->tid, "thread_sort_index", "sort_index",
             std::to_string(best->tid));
  }
  best->end_ns = end_ns;
  return best->tid;
}

void TraceJson::Slice(const Place& place, const Event& event, bool ended) {
  const uint64_t begin = event.begin_ns();
  const uint64_t tid = TidFor(place, begin, begin + event.duration_ns());
  Object("{\"ph\":\"X\",\"pid\":" + std::to_string(place.pid) +
         ",\"tid\":" + std::to_string(tid) + ",\"ts\":" + Microseconds(begin) +
         ",\"dur\":" + Microseconds(event.duration_ns()) + ",\"cat\":\"" +
         CategoryOf(event.kind()) + "\",\"name\":" + JsonString(NameOf(event)) +
         ",\"args\":" + ArgsOf(event, ended) + "}");
  ++slices_;
}

void TraceJson::Finish() {
  for (auto& [key, event] : std::exchange(open_, {})) {
    Event so_far = event;
    so_far.set_duration_ns(recorded_ns_ -
                           std::min(recorded_ns_, event.begin_ns()));
    End(so_far, /*ended=*/false);
  }
  for (auto& [device, rate] : rates_) {
    std::vector<LinkRate::Sample> samples;
    rate.Finish(samples);
    AddRates(device, samples);
  }
  text_ += "\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"hoistctl\":" +
           JsonString(HOIST_VERSION) +
           ",\"began_unix_ns\":" + std::to_string(began_unix_ns_) +
           ",\"recorded_us\":" + Microseconds(recorded_ns_) +
           ",\"dropped_events\":" + std::to_string(dropped_events_) +
           ",\"unnamed_groups\":" + std::to_string(unnamed_groups_) + "}}\n";
}

}  // namespace hoist::ctl
