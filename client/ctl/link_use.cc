#include "client/ctl/link_use.h"

#include <algorithm>
#include <cstdio>
#include <string>

namespace hoist::ctl {
namespace {

using Event = v1::TraceEvent;

std::string Milliseconds(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", static_cast<double>(ns) / 1e6);
  return text;
}

std::string Percent(uint64_t part, uint64_t whole) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %%",
                whole == 0 ? 0
                           : 100 * static_cast<double>(part) /
                                 static_cast<double>(whole));
  return text;
}

double Seconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

}  // namespace

const char* WhyText(Event::Why why) {
  switch (static_cast<int>(why)) {
    case Event::WHY_HOST:
      return "not on the host";
    case Event::WHY_SLOT:
      return "its place is in use";
    case Event::WHY_KERNELS:
      return "its last use is not done";
    case Event::WHY_TURN:
      return "not its turn on the link";
    case Event::WHY_PINNING:
      return "its source is pinned";
    case Event::WHY_DRIVER:
      return "a driver call";
    case Event::WHY_THREAD:
      return "the link's thread was not run";
  }
  return "no copy is due";
}

void LinkUse::AddCopy(uint64_t begin_ns, uint64_t duration_ns) {
  const uint64_t end_ns = begin_ns + duration_ns;
  if (end_ns <= copied_until_ns_) return;
  copied_ns_ += end_ns - std::max(begin_ns, copied_until_ns_);
  copied_until_ns_ = end_ns;
}

void LinkUse::AddGap(Event::Why why, uint64_t duration_ns) {
  Gaps& gaps = gaps_[why];
  ++gaps.count;
  gaps.ns += duration_ns;
  gaps.longest_ns = std::max(gaps.longest_ns, duration_ns);
}

Table LinkUse::Heading() {
  return Table({">DEVICE", "LINK", ">TIME", ">MS", ">LONGEST", ">GAPS"});
}

void LinkUse::AddRows(uint32_t device, uint64_t recorded_ns,
                      Table& table) const {
  const std::string name = std::to_string(device);
  const auto add = [&](const std::string& what, uint64_t ns,
                       const std::string& longest, const std::string& count) {
    table.Add({name, what, Percent(ns, recorded_ns), Milliseconds(ns), longest,
               count});
  };
  add("copies", copied_ns_, "", "");
  uint64_t told = copied_ns_;
  for (const auto& [why, gaps] : gaps_) {
    add(std::string("idle: ") + WhyText(why), gaps.ns,
        Milliseconds(gaps.longest_ns), std::to_string(gaps.count));
    told += gaps.ns;
  }
  add("idle: gaps below 1 ms", recorded_ns - std::min(recorded_ns, told), "",
      "");
}

google::protobuf::Value LinkUse::Json(uint32_t device) const {
  google::protobuf::Value all;
  auto& link = *all.mutable_struct_value()->mutable_fields();
  link["device"].set_number_value(device);
  link["copied_seconds"].set_number_value(Seconds(copied_ns_));
  auto& list = *link["gaps"].mutable_list_value();
  for (const auto& [why, gaps] : gaps_) {
    auto& one = *list.add_values()->mutable_struct_value()->mutable_fields();
    one["why"].set_string_value(Event::Why_Name(why));
    one["count"].set_number_value(static_cast<double>(gaps.count));
    one["seconds"].set_number_value(Seconds(gaps.ns));
    one["longest_seconds"].set_number_value(Seconds(gaps.longest_ns));
  }
  return all;
}

}  // namespace hoist::ctl
