// What a command line says, and the requests that it makes.
#ifndef HOIST_CLIENT_CTL_PARSED_H_
#define HOIST_CLIENT_CTL_PARSED_H_

#include <cstdint>
#include <string>

#include "client/ctl/commands.h"
#include "hoist/v1/admin.pb.h"

namespace hoist::ctl {

// What the options of all commands are read into.
struct Parsed {
  std::string socket;
  bool json = false;
  double timeout_s = 5;
  std::string path;
  std::string name;
  std::string model;
  std::string group;
  std::string tier;
  uint32_t device = 0;
  std::string grouping = "block";
  std::string readers;
  double deadline_s = 0;
  double wait_s = 5;
  double idle_s = 0;
  uint64_t session = 0;
  bool kill = false;
  double every_s = 1;
  uint64_t count = 0;
  bool forget = false;
  bool resume = false;
  bool repair = false;
  std::string shell;
  v1::SetShareRequest share;
  DoctorOptions doctor;
  FeaturesOptions features;
  std::string action;
  double for_s = 10;
  std::string out;
};

uint64_t Milliseconds(double seconds);
v1::CopySelector CopiesOf(const Parsed& parsed);
v1::LoadRequest LoadOf(const Parsed& parsed);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_PARSED_H_
