// How hoistctl writes sizes, times and names.
#ifndef HOIST_CLIENT_CTL_TEXT_H_
#define HOIST_CLIENT_CTL_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "hoist/shared/size_text.h"
#include "hoist/v1/types.pb.h"

namespace hoist::ctl {

// "350 ms", "12 s", "3 min 5 s", "2 h 10 min", "3 d 4 h".
std::string HumanTime(uint64_t ms);
// "no cap", "at most 10.0 GiB/s".
std::string CapText(uint64_t max_bytes_per_second);
// "weight 3, priority 0, at most 10.0 GiB/s".
std::string ShareText(const hoist::v1::Share& share);
// A tenant's name, else the uid.
std::string UserName(const std::string& tenant, uint32_t uid);
// What PrintableLength does not show, as "\x1b", so that a name that a client
// chose cannot steer the terminal.
std::string Shown(std::string_view text);
// Columns that the text takes; a code point is taken for one.
size_t Columns(std::string_view text);
// "device 0", "host", "disk".
std::string TierName(hoist::v1::Tier tier, uint32_t device);
// "present" for RESIDENCY_PRESENT and so on.
std::string ResidencyName(hoist::v1::Residency residency);
std::string Hex(std::string_view bytes);

// A session's process: its pid, or "outside", where hoistd's pid namespace has
// no number for it.
std::string ProcessText(uint32_t pid);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_TEXT_H_
