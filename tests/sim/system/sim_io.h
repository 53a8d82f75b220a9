// An I/O engine whose reads end when the world says so.
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

// While a read is under way its memory holds nothing that anybody could take
// for weights.
//
// Threads:  one.
class SimIo final : public IoEngine {
 public:
  // `on_write` is told of memory that is about to be written.
  using OnWrite = std::function<void(std::span<const std::byte>)>;
  explicit SimIo(OnWrite on_write) : on_write_(std::move(on_write)) {}
  ~SimIo() override {
    while (under_way() > 0) End(0, absl::OkStatus());
  }

  void Read(ReadRequest request, Done done) override;
  // Nothing spills here.
  void Write(WriteRequest, Done done) override {
    done(absl::UnimplementedError("the simulation spills nothing"));
  }
  IoInfo info() const override { return {.engine = "simulated"}; }

  size_t under_way() const { return reads_.size(); }
  // The n-th of them ends; not ok: after half of its bytes.
  void End(size_t n, const absl::Status& status);
  // Its process dies: each was done by then, or half of it, or none.
  void Reap(std::mt19937_64& random);

 private:
  struct Pending {
    ReadRequest request;
    Done done;
  };

  // Of each part all, or half.
  void Fill(const ReadRequest& request, uint64_t skew, bool half, bool cut);

  const OnWrite on_write_;
  std::vector<Pending> reads_;
};

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SIM_IO_H_
