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
  std::vector<uint32_t> pass;  // Of blocks; no two steps in a row are equal.
  uint64_t budget = 0;         // At least the two largest blocks.
  uint64_t slack = 0;          // At most what those leave.
};

struct BlockResidents {
  std::vector<bool> resident;  // By group.
  uint64_t ring_bytes = 0;
};

// Pure. Each block streams at most the same number of bytes, the least for
// which residents and ring fit in the budget: the ring holds the two largest
// streamed parts, so it shrinks as more of each block stays. Every second block
// streams a step less where that copies less in all; the ring then holds any
// two in a row. What the budget leaves lowers others by that step, and keeps
// further groups; both spread over the blocks. If an odd number would stream,
// the smallest stays where it fits. Not exact: the number of bytes is one of
// 256 steps of the largest block.
BlockResidents ChooseInBlocks(const BlockProblem& problem);

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_BLOCK_RESIDENTS_H_
