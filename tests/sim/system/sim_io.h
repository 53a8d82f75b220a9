// An I/O engine whose reads end at the world's command.
#ifndef HOIST_TESTS_SIM_SYSTEM_SIM_IO_H_
#define HOIST_TESTS_SIM_SYSTEM_SIM_IO_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "daemon/types/io_engine.h"
#include "tests/sim/system/mutant.h"

namespace hoistd::sim {

// During a read its memory holds garbage that cannot pass for weights.
//
// Threads:  one.
class SimIo final : public IoEngine {
 public:
  // `on_write` is called before memory is written.
  using OnWrite = std::function<void(std::span<const std::byte>)>;
  explicit SimIo(OnWrite on_write) : on_write_(std::move(on_write)) {}
  ~SimIo() override {
    while (under_way() > 0) End(0, absl::OkStatus());
  }

  void Read(ReadRequest request, Done done) override;
  // No spills in the simulation.
  void Write(WriteRequest, Done done) override {
    done(absl::UnimplementedError("the simulation spills nothing"));
  }
  IoInfo info() const override { return {.engine = "simulated"}; }

  size_t under_way() const { return reads_.size(); }
  // Ends the n-th read; not ok: after half of its bytes.
  void End(size_t n, const absl::Status& status);
  // Its process dies: each read is done, half done, or not begun.
  void Reap(std::mt19937_64& random);

 private:
  struct Pending {
    ReadRequest request;
    Done done;
  };

  // Fills each part, or half of it.
  void Fill(const ReadRequest& request, uint64_t skew, bool half, bool cut);

  const OnWrite on_write_;
  std::vector<Pending> reads_;
};

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SIM_IO_H_
