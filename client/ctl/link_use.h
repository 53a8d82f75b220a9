// What a device's link did during a recording.
#ifndef HOIST_CLIENT_CTL_LINK_USE_H_
#define HOIST_CLIENT_CTL_LINK_USE_H_

#include <cstdint>
#include <map>

#include "client/ctl/table.h"
#include "google/protobuf/struct.pb.h"
#include "hoist/v1/admin.pb.h"

namespace hoist::ctl {

// For people.
const char* WhyText(v1::TraceEvent::Why why);

// Times in nanoseconds. Copies that overlap count once.
//
// Threads:  one at a time.
class LinkUse {
 public:
  // A copy to or from the device, in about the order of their ends.
  void AddCopy(uint64_t begin_ns, uint64_t duration_ns);
  void AddGap(v1::TraceEvent::Why why, uint64_t duration_ns);

  // A row for the copies, for each cause of gaps, and for shorter gaps.
  static Table Heading();
  void AddRows(uint32_t device, uint64_t recorded_ns, Table& table) const;
  google::protobuf::Value Json(uint32_t device) const;

 private:
  struct Gaps {
    uint64_t count = 0;
    uint64_t ns = 0;
    uint64_t longest_ns = 0;
  };

  uint64_t copied_ns_ = 0;
  uint64_t copied_until_ns_ = 0;
  std::map<v1::TraceEvent::Why, Gaps> gaps_;
};

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_LINK_USE_H_
