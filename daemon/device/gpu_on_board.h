// Whether this machine has a GPU, usable or not.
#ifndef HOIST_DAEMON_DEVICE_GPU_ON_BOARD_H_
#define HOIST_DAEMON_DEVICE_GPU_ON_BOARD_H_

#include <string>

namespace hoistd {

// NVIDIA's, by what shows it: its driver's files, or its PCI address where
// there is no driver. "": there is none. `root` stands before /dev, /proc and
// /sys; it is "" but in tests.
std::string GpuOnBoard(const std::string& root);

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_GPU_ON_BOARD_H_
