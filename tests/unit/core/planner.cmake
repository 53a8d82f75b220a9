find_package(absl REQUIRED)
hoist_test(NAME core_planner_test KIND unit
  SOURCES planner_test.cc ring_layout_test.cc subset_sum_test.cc
    cache_policies_test.cc
    ${PROJECT_SOURCE_DIR}/tests/support/cache_policies.cc
  LIBS hoist_core absl::strings)
