// The node at a glance.
#ifndef HOIST_CLIENT_CTL_PICTURE_H_
#define HOIST_CLIENT_CTL_PICTURE_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "hoist/v1/admin.pb.h"

namespace hoist::ctl {

// "[####......]": the part of the whole, in so many characters. What is there
// at all shows, and only what is full is shown full.
std::string Bar(uint64_t part, uint64_t whole, size_t columns);

// "hoistd 0.1.0, pid 7, up 3 min, draining", and how many there are of what.
void PrintHead(const v1::NodeStatus& status, std::ostream& out);
// What each tier has, and whose most of it is.
void PrintTiers(const v1::NodeStatus& status, std::ostream& out);
// "counters: file read 96.0 MiB/s, stages 1/s": those that are not zero, by
// the names of their fields. `per` follows each.
void PrintCounters(const v1::Counters& counters, std::string_view per,
                   std::ostream& out);
// Why devices have less than their pool, and what gives it back.
void PrintWithheld(
    const google::protobuf::RepeatedPtrField<v1::WithheldPool>& pools,
    std::ostream& out);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_PICTURE_H_
