find_package(absl REQUIRED)
find_package(nlohmann_json REQUIRED)
hoist_test(NAME core_model_test KIND unit
  SOURCES grouping_test.cc model_builder_test.cc source_tensor_test.cc model_memory_test.cc model_name_test.cc
    model_published_group_test.cc safetensors_index_test.cc
    safetensors_mutation_test.cc safetensors_test.cc
    ${PROJECT_SOURCE_DIR}/tests/support/safetensors_writer.cc
  LIBS hoist_core nlohmann_json::nlohmann_json absl::str_format)
