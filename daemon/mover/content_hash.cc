#include "daemon/mover/content_hash.h"

namespace hoistd {

void ContentHash::Help(bool last) {
  size_t done = last ? 1 : 0;
  for (size_t i = next_.fetch_add(1); i < plan_.pieces.size();
       i = next_.fetch_add(1)) {
    digests_[i] = Sha256()
                      .Bytes(image_.subspan(plan_.pieces[i].offset,
                                            plan_.pieces[i].bytes))
                      .Finish();
    ++done;
  }
  if (done > 0 && left_.fetch_sub(done) == done) Finish();
}

void ContentHash::Finish() { report_(GroupContent(*group_, plan_, digests_)); }

}  // namespace hoistd
