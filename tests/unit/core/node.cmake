hoist_test(NAME core_parts_test KIND unit
  SOURCES device_space_test.cc extent_map_test.cc need_book_test.cc order_test.cc
    promise_book_test.cc
    quota_test.cc residency_test.cc
  LIBS hoist_core)

hoist_test(NAME core_node_test KIND unit
  SOURCES node_deserted_test.cc node_explain_test.cc node_names_test.cc
    node_plan_test.cc node_published_test.cc
    node_quota_test.cc node_read_image_test.cc
    node_slabs_test.cc node_space_test.cc node_stage_test.cc
    ${PROJECT_SOURCE_DIR}/tests/support/node_rig.cc
    ${PROJECT_SOURCE_DIR}/tests/support/node_rig_plans.cc
  LIBS hoist_core)
