#include "client/ctl/picture.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "client/ctl/table.h"
#include "client/ctl/text.h"
#include "google/protobuf/message.h"

namespace hoist::ctl {
namespace {

constexpr size_t kBarColumns = 22;
constexpr size_t kMostHolders = 3;

std::string DeviceNameOf(const v1::NodeStatus& status, uint32_t index) {
  for (const v1::Device& device : status.devices()) {
    if (device.index() == index) return device.name();
  }
  return "";
}

std::string Breakdown(const v1::NodeStatus& status,
                      const v1::TierStatus& tier) {
  std::string what;
  if (tier.tier() == v1::TIER_DEVICE) {
    what = Shown(DeviceNameOf(status, tier.device()));
  }
  const auto add = [&](uint64_t bytes, const char* text) {
    if (bytes == 0) return;
    if (!what.empty()) what += "; ";
    what += HumanBytes(bytes) + text;
  };
  if (tier.full_ms() > 0) what = "full for " + HumanTime(tier.full_ms());
  add(tier.shared_bytes(), " shared by several groupings");
  add(tier.doubled_bytes(), " doubled for several groupings");
  add(tier.unsaved_bytes(), " published that no disk has");
  add(tier.arena_bytes(), " in arenas");
  add(tier.kept_arena_bytes(), " kept for their users' next");
  return what;
}

// "llama 12.0 GiB, slab slack 1.0 MiB, 4 more 30.0 MiB": models, the largest
// first.
std::string HeldBy(const v1::TierStatus& tier) {
  std::map<std::string, uint64_t> by_model;
  for (const v1::Holder& holder : tier.holders()) {
    by_model[holder.name().substr(0, holder.name().find('/'))] +=
        holder.bytes();
  }
  std::vector<std::pair<std::string, uint64_t>> holders(by_model.begin(),
                                                        by_model.end());
  std::ranges::stable_sort(holders, std::greater<>(),
                           &std::pair<std::string, uint64_t>::second);
  std::string text;
  uint64_t others = 0;
  for (size_t i = 0; i < holders.size(); ++i) {
    if (i >= kMostHolders) {
      others += holders[i].second;
      continue;
    }
    if (!text.empty()) text += ", ";
    text += Shown(holders[i].first) + " " + HumanBytes(holders[i].second);
  }
  if (others > 0) {
    text += ", " + std::to_string(holders.size() - kMostHolders) + " more " +
            HumanBytes(others);
  }
  return text;
}

// What a full disk threatens, and the remedy.
void PrintFullDisk(const v1::NodeStatus& status, std::ostream& out) {
  uint64_t unsaved = 0;
  for (const v1::TierStatus& tier : status.tiers()) {
    unsaved += tier.unsaved_bytes();
    if (tier.full_ms() == 0) continue;
    out << "the disk is full: " << HumanBytes(unsaved)
        << " published are on no disk. Room for that much in disk.spill_dir "
           "and "
           "disk.spill_capacity would be enough, or `hoistctl evict "
           "--forget`\n";
  }
}

}  // namespace

std::string Bar(uint64_t part, uint64_t whole, size_t columns) {
  const size_t inner = columns - 2;
  size_t filled = 0;
  if (whole > 0) {
    const double share = static_cast<double>(part) / static_cast<double>(whole);
    filled = std::min(inner,
                      static_cast<size_t>(share * static_cast<double>(inner)));
    if (part > 0) filled = std::max<size_t>(filled, 1);
  }
  return "[" + std::string(filled, '#') + std::string(inner - filled, '.') +
         "]";
}

void PrintHead(const v1::NodeStatus& status, std::ostream& out) {
  out << "hoistd " << Shown(status.version()) << ", pid " << status.pid()
      << ", up " << HumanTime(status.uptime_ms())
      << (status.draining() ? ", draining" : "") << '\n'
      << status.models() << " models, " << status.sessions() << " sessions, "
      << status.leases() << " leases\n";
}

void PrintTiers(const v1::NodeStatus& status, std::ostream& out) {
  Table table({"TIER", "USE", ">CAPACITY", ">USED", ">LEASED", ">PINNED",
               ">LARGEST FREE", "WHAT"});
  for (const v1::TierStatus& tier : status.tiers()) {
    table.Add({TierName(tier.tier(), tier.device()),
               Bar(tier.used_bytes(), tier.capacity_bytes(), kBarColumns),
               HumanBytes(tier.capacity_bytes()), HumanBytes(tier.used_bytes()),
               HumanBytes(tier.leased_bytes()), HumanBytes(tier.pinned_bytes()),
               HumanBytes(tier.largest_free_bytes()), Breakdown(status, tier)});
  }
  table.Print(out);
  PrintWithheld(status.withheld(), out);
  PrintFullDisk(status, out);
  for (const v1::TierStatus& tier : status.tiers()) {
    const std::string held = HeldBy(tier);
    if (held.empty()) continue;
    out << TierName(tier.tier(), tier.device()) << ": " << held << '\n';
  }
}

void PrintCounters(const v1::Counters& counters, std::string_view per,
                   std::ostream& out) {
  const google::protobuf::Reflection& fields = *counters.GetReflection();
  const char* before = "counters: ";
  for (int i = 0; i < counters.GetDescriptor()->field_count(); ++i) {
    const auto* field = counters.GetDescriptor()->field(i);
    const uint64_t value = fields.GetUInt64(counters, field);
    if (value == 0) continue;
    std::string name(field->name());
    std::string shown = std::to_string(value);
    if (const size_t at = name.find("_bytes"); at != std::string::npos) {
      name.erase(at, 6);
      shown = HumanBytes(value);
    } else if (name.ends_with("_us")) {
      name.resize(name.size() - 3);
      shown = value < 1000 ? shown + " us" : HumanTime(value / 1000);
    }
    std::ranges::replace(name, '_', ' ');
    out << std::exchange(before, ", ") << name << ' ' << shown << per;
  }
  if (*before == ',') out << '\n';
}

void PrintWithheld(
    const google::protobuf::RepeatedPtrField<v1::WithheldPool>& pools,
    std::ostream& out) {
  for (const v1::WithheldPool& pool : pools) {
    const std::string device = TierName(v1::TIER_DEVICE, pool.device());
    const uint64_t others = pool.bytes() - pool.spared_bytes();
    if (pool.spared_bytes() > 0) {
      out << device << ": " << HumanBytes(pool.spared_bytes())
          << " of the pool are left to workers that lack memory\n";
    }
    if (others == 0) continue;
    out << device << ": other programs and device.headroom ("
        << HumanBytes(pool.headroom_bytes()) << ") have " << HumanBytes(others)
        << " of the pool; it grows once " << HumanBytes(pool.growth_bytes())
        << " more have been free for " << HumanTime(pool.growth_ms()) << '\n';
  }
}

}  // namespace hoist::ctl
