#include "daemon/core/residency.h"

#include <string>

#include "gtest/gtest.h"

namespace hoistd::residency_test {

using S = Residency;
using E = ResidencyEvent;

// Every state with every event; `law` gets from, event and what came of it.
template <typename Law>
void ForEach(Law law) {
  for (int s = 0; s < kResidencyCount; ++s) {
    for (int e = 0; e < kResidencyEventCount; ++e) {
      const S from = static_cast<S>(s);
      const E event = static_cast<E>(e);
      SCOPED_TRACE("state " + std::to_string(s) + ", event " +
                   std::to_string(e));
      law(from, event, NextState(from, event));
    }
  }
}

bool Comes(S state) { return state == S::kReserved || state == S::kFilling; }
bool Rests(S state) { return state == S::kArrived || state == S::kPresent; }
bool Spills(S state) { return state == S::kSpilling || state == S::kLeaving; }

TEST(Residency, NoCopyIsLost) {
  ForEach([](S from, E, std::optional<S> to) {
    EXPECT_NE(to, S::kLost);
    if (from == S::kLost) {
      EXPECT_FALSE(to.has_value());
    }
  });
}

TEST(Residency, AFailedFillLeavesNothing) {
  ForEach([](S from, E event, std::optional<S> to) {
    if (event != E::kFillFailed) return;
    EXPECT_EQ(to.has_value(), Comes(from));
    if (to.has_value()) {
      EXPECT_EQ(*to, S::kAbsent);
    }
  });
}

TEST(Residency, WhatIsBeingCopiedIsNeverDroppedOrForgotten) {
  ForEach([](S from, E event, std::optional<S> to) {
    if (!Spills(from) && !Comes(from)) return;
    if (event == E::kDrop || event == E::kForget) {
      EXPECT_FALSE(to.has_value());
    }
  });
}

TEST(Residency, ASpillLeavesTheCopyThereHoweverItEnds) {
  ForEach([](S from, E event, std::optional<S> to) {
    if (event == E::kSpillDone) {
      EXPECT_EQ(to.has_value(), Spills(from));
      if (to.has_value()) {
        EXPECT_EQ(*to, S::kPresent);
      }
    }
    if (event == E::kSpillStart) {
      EXPECT_EQ(to.has_value(), Rests(from));
    }
  });
}

TEST(Residency, BytesArriveOnlyWhereSpaceIsHeld) {
  ForEach([](S from, E event, std::optional<S> to) {
    if (to == S::kArrived) {
      EXPECT_TRUE(Comes(from));
      EXPECT_EQ(event, E::kFillDone);
    }
    if (to == S::kFilling) {
      EXPECT_TRUE(Comes(from));
    }
    if (from == S::kAbsent && to.has_value() && to != S::kAbsent) {
      EXPECT_EQ(to, event == E::kAdopt ? S::kPresent : S::kReserved);
    }
  });
}

TEST(Residency, ACopyIsUnusedUntilItsFirstUse) {
  ForEach([](S from, E event, std::optional<S> to) {
    if (event == E::kUse) {
      EXPECT_EQ(to.has_value(), Rests(from) || Spills(from));
      EXPECT_NE(to, S::kArrived);
    } else if (from != S::kArrived && event != E::kFillDone) {
      EXPECT_NE(to, S::kArrived);
    }
  });
}

TEST(Residency, OnlyASpillingCopyLeavesAndNothingCallsItBack) {
  ForEach([](S from, E event, std::optional<S> to) {
    if (event == E::kLeave) {
      EXPECT_EQ(to.has_value(), Spills(from));
    }
    if (to == S::kLeaving) {
      EXPECT_TRUE(event == E::kLeave || from == S::kLeaving);
    }
    if (from == S::kLeaving && to.has_value() && event != E::kSpillDone) {
      EXPECT_EQ(*to, S::kLeaving);
    }
  });
}

TEST(Residency, OnlyPresentBytesAreDropped) {
  ForEach([](S from, E event, std::optional<S> to) {
    if (event != E::kDrop) return;
    EXPECT_EQ(to.has_value(), Rests(from));
    if (to.has_value()) {
      EXPECT_EQ(*to, S::kAbsent);
    }
  });
}

}  // namespace hoistd::residency_test
