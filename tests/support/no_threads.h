// A process in which the system starts no thread.
#ifndef HOIST_TESTS_SUPPORT_NO_THREADS_H_
#define HOIST_TESTS_SUPPORT_NO_THREADS_H_

#include <pthread.h>

#include <cstddef>

#include "gtest/gtest.h"

namespace hoistd::testing {

// No thread of this process can start: its stack would be too large.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 46), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    EXPECT_EQ(pthread_setattr_default_np(&before_), 0);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_NO_THREADS_H_
