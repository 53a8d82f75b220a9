#include "daemon/link/copy_trace.h"

namespace hoistd {

void AddPart(GroupKey key, SessionId session, uint64_t bytes,
             std::vector<TracedPart>& parts) {
  if (!parts.empty() && parts.back().key == key) {
    parts.back().bytes += bytes;
    return;
  }
  parts.push_back({key, session, bytes});
}

absl::Time CopyTrace::Share(absl::Time begin, absl::Time end, uint64_t bytes,
                            uint64_t left) {
  if (bytes >= left || begin >= end) return std::max(begin, end);
  return begin + (end - begin) * (double(bytes) / double(left));
}

void CopyTrace::Tell(const LinkParty& party, uint64_t bytes,
                     const std::vector<TracedPart>& parts, bool failed,
                     absl::Time begin, absl::Time end) {
  TraceEvent event;
  event.kind = party.reads ? TraceKind::kCopyOut : TraceKind::kCopyIn;
  event.failed = failed;
  event.background = party.of == LinkClass::kBackground;
  event.device = device_;
  event.plan = party.plan;
  if (parts.empty()) {  // Queued before the recording.
    event.bytes = bytes;
    event.begin = begin;
    event.end = end;
    return recorder_->Add(event);
  }
  uint64_t left = bytes;
  for (const TracedPart& part : parts) {
    event.bytes = part.bytes;
    event.model = part.key.model;
    event.group = part.key.group;
    event.session = part.session;
    event.begin = begin;
    event.end = begin = Share(begin, end, part.bytes, left);
    left -= std::min(left, part.bytes);
    recorder_->Add(event);
  }
}

}  // namespace hoistd
