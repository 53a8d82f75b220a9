hoist_test(NAME core_lane_test KIND unit
  SOURCES lane_schedule_test.cc link_share_test.cc
  LIBS hoist_core)
