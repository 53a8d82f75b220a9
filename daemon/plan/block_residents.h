// The residents of a plan whose groups are staged in blocks.
#ifndef HOIST_DAEMON_PLAN_BLOCK_RESIDENTS_H_
#define HOIST_DAEMON_PLAN_BLOCK_RESIDENTS_H_

#include <cstdint>
#include <vector>

namespace hoistd {

struct BlockProblem {
  std::vector<uint64_t> bytes;  // Of each group; none is 0.
  // The groups of each block, by first use; each group is in one.
  std::vector<std::vector<uint32_t>> blocks;
  uint64_t budget = 0;  // At least the two largest blocks.
  uint64_t slack = 0;   // At most what those leave.
};

struct BlockResidents {
  std::vector<bool> resident;  // By group.
  uint64_t ring_bytes = 0;
};

// Pure. Each block streams at most the same number of bytes, the least for
// which residents and ring fit in the budget: the ring holds the two largest
// streamed parts, so it shrinks as more of each block stays. What the budget
// then leaves keeps further groups, spread over the blocks. Not exact: the
// number of bytes is one of 256 steps of the largest block.
BlockResidents ChooseInBlocks(const BlockProblem& problem);

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_BLOCK_RESIDENTS_H_
