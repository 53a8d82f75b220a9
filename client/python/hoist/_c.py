"""libhoist's C API for ctypes. Written by declare.py from include/hoist/c.

A struct has its C name without `hoist_`, in the letters of a class; a constant
its own without `HOIST_`.
"""

from __future__ import annotations

import ctypes as c
from typing import Any

OK = 0
CANCELLED = 1
UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
ALREADY_EXISTS = 6
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
DATA_LOSS = 15
UNAUTHENTICATED = 16
DEVICE_EMULATED = 1
DEVICE_CUDA = 2
GROUPS_BLOCK = 1
GROUPS_MODULE = 2
GROUPS_WHOLE = 3
GROUPS_EXPLICIT = 4
READERS_DEFAULT = 0
READERS_OWNER = 1
READERS_EVERYONE = 2
BOOL = 1
U8 = 2
I8 = 3
U16 = 4
I16 = 5
U32 = 6
I32 = 7
U64 = 8
I64 = 9
F16 = 10
BF16 = 11
F32 = 12
F64 = 13
C64 = 14
C128 = 15
F8_E4M3 = 16
F8_E5M2 = 17
F8_E8M0 = 18
F8_E4M3FNUZ = 19
F8_E5M2FNUZ = 20
F6_E2M3 = 21
F6_E3M2 = 22
F4 = 23
TIER_DEVICE = 1
TIER_HOST = 2
TIER_DISK = 3
PLANNED_RESIDENT = 1
PLANNED_STREAMED = 2
PLANNED_NOT = 3
ATTACHMENT_READY = 1
ATTACHMENT_ENDED = 2
ATTACHMENT_RENEWING = 3
ATTACHMENT_ASLEEP = 4


class ConnectOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("socket_path", c.c_char_p),
        ("client_name", c.c_char_p), ("device_budget_bytes", c.c_uint64),
        ("connect_deadline_ms", c.c_uint64), ("call_deadline_ms", c.c_uint64)]


class DeviceInfo(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("index", c.c_uint32), ("kind", c.c_int),
        ("name", c.c_char_p), ("uuid", c.c_uint8 * 16), ("pool_bytes", c.c_uint64)]


class GroupSpec(c.Structure):
    _fields_ = [
        ("name", c.c_char_p), ("tensors", c.POINTER(c.c_char_p)),
        ("tensor_count", c.c_size_t)]


class JoinedPart(c.Structure):
    _fields_ = [
        ("tensor", c.c_char_p), ("offset_bytes", c.c_uint64),
        ("size_bytes", c.c_uint64), ("count", c.c_uint64),
        ("stride_bytes", c.c_uint64)]


class JoinedTensor(c.Structure):
    _fields_ = [
        ("name", c.c_char_p), ("rank", c.c_int), ("shape", c.POINTER(c.c_int64)),
        ("parts", c.POINTER(JoinedPart)), ("part_count", c.c_size_t)]


class RegisterOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("name", c.c_char_p), ("path", c.c_char_p),
        ("grouping", c.c_int), ("groups", c.POINTER(GroupSpec)),
        ("group_count", c.c_size_t), ("readers", c.c_int),
        ("joined", c.POINTER(JoinedTensor)), ("joined_count", c.c_size_t)]


class PublishTensor(c.Structure):
    _fields_ = [
        ("name", c.c_char_p), ("dtype", c.c_int), ("rank", c.c_int),
        ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)),
        ("data", c.c_void_p)]


class PublishOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("model", c.c_char_p), ("group", c.c_char_p),
        ("tensors", c.POINTER(PublishTensor)), ("tensor_count", c.c_size_t),
        ("readers", c.c_int), ("deadline_ms", c.c_uint64), ("on_device", c.c_int),
        ("device", c.c_uint32), ("of_session", c.c_int),
        ("content", c.POINTER(c.c_uint8)), ("host_tensors", c.POINTER(c.c_uint8))]


class GroupInfo(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("name", c.c_char_p),
        ("image_bytes", c.c_uint64), ("tensor_count", c.c_uint32),
        ("content", c.POINTER(c.c_uint8))]


class TensorInfo(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("name", c.c_char_p), ("dtype", c.c_int),
        ("rank", c.c_int), ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)), ("offset_bytes", c.c_uint64),
        ("size_bytes", c.c_uint64), ("data", c.c_void_p),
        ("block_type", c.c_char_p)]


class PlanOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("device", c.c_uint32),
        ("budget_bytes", c.c_uint64), ("order", c.POINTER(c.c_uint32)),
        ("order_length", c.c_size_t), ("deadline_ms", c.c_uint64),
        ("stage_deadline_ms", c.c_uint64), ("weight", c.c_uint32),
        ("priority", c.c_int32), ("max_bytes_per_second", c.c_uint64),
        ("learn", c.c_int), ("gives_way", c.c_int),
        ("blocks", c.POINTER(c.c_uint32)), ("block_count", c.c_size_t)]


class PlanInfo(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("id", c.c_uint64), ("device", c.c_uint32),
        ("budget_bytes", c.c_uint64), ("resident_bytes", c.c_uint64),
        ("ring_bytes", c.c_uint64), ("streamed_bytes", c.c_uint64),
        ("group_count", c.c_uint32), ("streamed_count", c.c_uint32),
        ("lead", c.c_uint32), ("learning", c.c_int), ("generation", c.c_uint64),
        ("asked_to_give_way", c.c_int), ("idle_ms", c.c_uint64)]


class PlanStats(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("stages", c.c_uint64),
        ("resident_stages", c.c_uint64), ("ready_stages", c.c_uint64),
        ("skipped", c.c_uint64), ("unplanned", c.c_uint64),
        ("host_waits", c.c_uint64), ("wake_ups", c.c_uint64)]


class InPlaceTensor(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("groups", c.POINTER(c.c_uint32)),
        ("group_count", c.c_size_t), ("units", c.c_uint32),
        ("first_count", c.c_uint64), ("bytes", c.c_uint64),
        ("scratch_bytes", c.c_uint64), ("scratch", c.c_uint32)]


class InPlaceOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("device", c.c_uint32),
        ("hot_budget_bytes", c.c_uint64), ("deadline_ms", c.c_uint64),
        ("counts", c.c_void_p), ("count_length", c.c_uint64),
        ("cold", c.POINTER(c.c_uint8))]


class InPlaceStats(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("bytes", c.c_uint64),
        ("hot_budget_bytes", c.c_uint64), ("hot_bytes", c.c_uint64),
        ("piece_count", c.c_uint32), ("hot_piece_count", c.c_uint32),
        ("moves", c.c_uint64), ("touched_hot_bytes", c.c_uint64),
        ("touched_cold_bytes", c.c_uint64)]


class CopyPermitOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("device", c.c_uint32),
        ("weight", c.c_uint32), ("priority", c.c_int32),
        ("max_bytes_per_second", c.c_uint64)]


class CopyPermitStats(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("granted_bytes", c.c_uint64),
        ("ungranted_bytes", c.c_uint64), ("to_host_bytes", c.c_uint64),
        ("wake_ups", c.c_uint64), ("grants", c.c_int)]


class ArenaOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("device", c.c_uint32), ("bytes", c.c_uint64),
        ("deadline_ms", c.c_uint64)]


class ArenaBlock(c.Structure):
    _fields_ = [("address", c.c_void_p), ("bytes", c.c_uint64)]


class ArenaStats(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("bytes", c.c_uint64),
        ("used_bytes", c.c_uint64), ("peak_used_bytes", c.c_uint64),
        ("largest_free_bytes", c.c_uint64), ("pinned_bytes", c.c_uint64),
        ("blocks", c.c_uint64), ("takes", c.c_uint64), ("waits", c.c_uint64)]


class AttachmentOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("name", c.c_char_p),
        ("files", c.POINTER(RegisterOptions)), ("content", c.POINTER(c.c_uint8)),
        ("connect", c.POINTER(ConnectOptions)), ("plan", c.POINTER(PlanOptions)),
        ("residents", c.POINTER(c.c_uint32)), ("resident_count", c.c_size_t),
        ("renew_deadline_ms", c.c_uint64), ("session", c.c_void_p),
        ("model", c.c_void_p)]


class AttachmentInfo(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("state", c.c_int), ("renewals", c.c_uint64),
        ("generation", c.c_uint64)]


# hoist_<name>: (result, arguments' types). Those that can fail give a code
# and fill a last argument of type hoist_error**.
CALLS: dict[str, tuple[Any, list[Any]]] = {
    "error_code": (c.c_int, [c.c_void_p]),
    "error_message": (c.c_char_p, [c.c_void_p]),
    "error_free": (None, [c.c_void_p]),
    "code_name": (c.c_char_p, [c.c_int]),
    "version": (c.c_char_p, []),
    "connect": (c.c_int, [
        c.POINTER(ConnectOptions), c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "set_patience": (c.c_uint64, [c.c_uint64]),
    "session_share": (c.c_int, [
        c.c_void_p, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "session_close": (None, [c.c_void_p]),
    "session_free": (None, [c.c_void_p]),
    "session_check": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "session_wake_fd": (c.c_int, [c.c_void_p]),
    "session_id": (c.c_uint64, [c.c_void_p]),
    "session_daemon_version": (c.c_char_p, [c.c_void_p]),
    "session_device_count": (c.c_size_t, [c.c_void_p]),
    "session_device": (c.c_int, [
        c.c_void_p, c.c_size_t, c.POINTER(DeviceInfo), c.POINTER(c.c_void_p)]),
    "register_model": (c.c_int, [
        c.c_void_p, c.POINTER(RegisterOptions), c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "describe_model": (c.c_int, [
        c.c_void_p, c.c_char_p, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "find_content": (c.c_int, [
        c.c_void_p, c.POINTER(c.c_uint8), c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "forget_model": (c.c_int, [c.c_void_p, c.c_void_p, c.POINTER(c.c_void_p)]),
    "dtype_name": (c.c_char_p, [c.c_int]),
    "dtype_bits": (c.c_int, [c.c_int]),
    "publish_group": (c.c_int, [
        c.c_void_p, c.POINTER(PublishOptions), c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "group_content": (c.c_int, [
        c.POINTER(PublishOptions), c.POINTER(c.c_uint8), c.POINTER(c.c_void_p)]),
    "model_content": (c.c_int, [
        c.POINTER(c.c_uint8), c.c_size_t, c.POINTER(c.c_uint8),
        c.POINTER(c.c_void_p)]),
    "done_with_model": (c.c_int, [
        c.c_void_p, c.c_void_p, c.POINTER(c.c_void_p)]),
    "forget_unused_model": (c.c_int, [
        c.c_void_p, c.c_void_p, c.POINTER(c.c_void_p)]),
    "model_free": (None, [c.c_void_p]),
    "model_id": (c.c_uint64, [c.c_void_p]),
    "model_name": (c.c_char_p, [c.c_void_p]),
    "model_fingerprint": (c.POINTER(c.c_uint8), [c.c_void_p]),
    "model_owner": (c.c_uint32, [c.c_void_p]),
    "model_owner_tenant": (c.c_char_p, [c.c_void_p]),
    "model_readers": (c.c_int, [c.c_void_p]),
    "model_image_bytes": (c.c_uint64, [c.c_void_p]),
    "model_is_published": (c.c_int, [c.c_void_p]),
    "model_group_count": (c.c_uint32, [c.c_void_p]),
    "model_group": (c.c_int, [
        c.c_void_p, c.c_uint32, c.POINTER(GroupInfo), c.POINTER(c.c_void_p)]),
    "model_tensor": (c.c_int, [
        c.c_void_p, c.c_uint32, c.c_uint32, c.POINTER(TensorInfo),
        c.POINTER(c.c_void_p)]),
    "model_find_groups": (c.c_int, [
        c.c_void_p, c.POINTER(c.c_char_p), c.c_size_t, c.POINTER(c.c_uint32),
        c.POINTER(c.c_void_p)]),
    "model_find_tensor": (c.c_int, [
        c.c_void_p, c.c_char_p, c.POINTER(c.c_uint32), c.POINTER(c.c_uint32),
        c.POINTER(c.c_void_p)]),
    "stage": (c.c_int, [
        c.c_void_p, c.c_void_p, c.c_uint32, c.c_uint32, c.c_uint64,
        c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "lease_release": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "lease_free": (None, [c.c_void_p]),
    "lease_check": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "lease_data": (c.c_void_p, [c.c_void_p]),
    "lease_bytes": (c.c_uint64, [c.c_void_p]),
    "lease_id": (c.c_uint64, [c.c_void_p]),
    "lease_group": (c.c_uint32, [c.c_void_p]),
    "lease_device": (c.c_uint32, [c.c_void_p]),
    "lease_device_kind": (c.c_int, [c.c_void_p]),
    "lease_was_resident": (c.c_int, [c.c_void_p]),
    "lease_tensor_count": (c.c_uint32, [c.c_void_p]),
    "lease_tensor": (c.c_int, [
        c.c_void_p, c.c_uint32, c.POINTER(TensorInfo), c.POINTER(c.c_void_p)]),
    "lease_find_tensor": (c.c_int, [
        c.c_void_p, c.c_char_p, c.POINTER(TensorInfo), c.POINTER(c.c_void_p)]),
    "prefetch": (c.c_int, [
        c.c_void_p, c.c_void_p, c.POINTER(c.c_uint32), c.c_size_t, c.c_int,
        c.c_uint32, c.POINTER(c.c_void_p)]),
    "set_order": (c.c_int, [
        c.c_void_p, c.c_void_p, c.POINTER(c.c_uint32), c.c_size_t,
        c.POINTER(c.c_void_p)]),
    "spare": (c.c_int, [
        c.c_void_p, c.c_uint32, c.c_uint64, c.c_uint64, c.POINTER(c.c_void_p)]),
    "fetch_start": (c.c_int, [
        c.c_void_p, c.c_void_p, c.POINTER(c.c_uint32), c.c_size_t, c.c_uint32,
        c.c_uint64, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "fetch_wait": (c.c_int, [
        c.c_void_p, c.c_uint64, c.POINTER(c.c_size_t), c.POINTER(c.c_void_p)]),
    "fetch_event_fd": (c.c_int, [c.c_void_p]),
    "fetch_cancel": (None, [c.c_void_p]),
    "fetch_free": (None, [c.c_void_p]),
    "host_image_create": (c.c_int, [
        c.c_void_p, c.c_void_p, c.c_uint32, c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "host_image_load": (c.c_int, [
        c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p)]),
    "host_image_move": (c.c_int, [
        c.c_void_p, c.c_void_p, c.c_void_p, c.c_uint32, c.POINTER(c.c_void_p)]),
    "host_image_drop": (None, [c.c_void_p]),
    "host_image_is_loaded": (c.c_int, [c.c_void_p]),
    "host_image_data": (c.c_void_p, [c.c_void_p]),
    "host_image_bytes": (c.c_uint64, [c.c_void_p]),
    "host_image_free": (None, [c.c_void_p]),
    "set_plan": (c.c_int, [
        c.c_void_p, c.c_void_p, c.POINTER(PlanOptions), c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "plan_stage": (c.c_int, [
        c.c_void_p, c.c_uint32, c.c_void_p, c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "plan_stage_in_turn": (c.c_int, [
        c.c_void_p, c.c_uint32, c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "plan_done": (c.c_int, [
        c.c_void_p, c.c_uint32, c.c_void_p, c.POINTER(c.c_void_p)]),
    "plan_check": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "plan_event_fd": (c.c_int, [
        c.c_void_p, c.POINTER(c.c_int), c.POINTER(c.c_void_p)]),
    "plan_end_pass": (c.c_int, [
        c.c_void_p, c.POINTER(c.c_int), c.POINTER(c.c_void_p)]),
    "plan_set_budget": (c.c_int, [
        c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p)]),
    "plan_set_order": (c.c_int, [
        c.c_void_p, c.POINTER(c.c_uint32), c.c_size_t, c.POINTER(c.c_void_p)]),
    "plan_free": (None, [c.c_void_p]),
    "plan_describe": (c.c_int, [
        c.c_void_p, c.POINTER(PlanInfo), c.POINTER(c.c_void_p)]),
    "plan_group_kind": (c.c_int, [
        c.c_void_p, c.c_uint32, c.POINTER(c.c_int), c.POINTER(c.c_void_p)]),
    "plan_tensor": (c.c_int, [
        c.c_void_p, c.c_uint32, c.c_uint32, c.POINTER(TensorInfo),
        c.POINTER(c.c_void_p)]),
    "plan_find_tensor": (c.c_int, [
        c.c_void_p, c.c_uint32, c.c_char_p, c.POINTER(TensorInfo),
        c.POINTER(c.c_void_p)]),
    "plan_get_stats": (c.c_int, [
        c.c_void_p, c.POINTER(PlanStats), c.POINTER(c.c_void_p)]),
    "session_has_in_place": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "in_place_create": (c.c_int, [
        c.c_void_p, c.c_void_p, c.POINTER(InPlaceTensor), c.c_size_t,
        c.POINTER(InPlaceOptions), c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "in_place_free": (None, [c.c_void_p]),
    "in_place_address": (c.c_int, [
        c.c_void_p, c.c_size_t, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "in_place_begin": (c.c_int, [
        c.c_void_p, c.c_void_p, c.POINTER(c.c_void_p)]),
    "in_place_end": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "in_place_touch": (c.c_int, [
        c.c_void_p, c.c_size_t, c.POINTER(c.c_uint32), c.POINTER(c.c_uint32),
        c.c_size_t, c.POINTER(c.c_void_p)]),
    "in_place_advance": (c.c_int, [
        c.c_void_p, c.c_int, c.POINTER(c.c_void_p)]),
    "in_place_pending": (c.c_uint32, [c.c_void_p]),
    "in_place_set_budget": (c.c_int, [
        c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p)]),
    "in_place_check": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "in_place_check_hot": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "in_place_get_stats": (c.c_int, [
        c.c_void_p, c.POINTER(InPlaceStats), c.POINTER(c.c_void_p)]),
    "fixed_mapping_create": (c.c_int, [
        c.c_void_p, c.c_void_p, c.POINTER(c.c_uint32), c.c_size_t, c.c_uint32,
        c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "fixed_mapping_fill": (c.c_int, [
        c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(c.c_uint32), c.c_size_t,
        c.c_uint64, c.POINTER(c.c_void_p)]),
    "fixed_mapping_empty": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "fixed_mapping_address": (c.c_int, [
        c.c_void_p, c.c_size_t, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "fixed_mapping_free": (None, [c.c_void_p]),
    "copy_permit_open": (c.c_int, [
        c.c_void_p, c.POINTER(CopyPermitOptions), c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "copy_permit_to_device": (c.c_int, [
        c.c_void_p, c.c_void_p, c.c_void_p, c.c_uint64, c.c_void_p,
        c.POINTER(c.c_void_p)]),
    "copy_permit_to_host": (c.c_int, [
        c.c_void_p, c.c_void_p, c.c_void_p, c.c_uint64, c.c_void_p,
        c.POINTER(c.c_void_p)]),
    "copy_permit_begin": (c.c_int, [
        c.c_void_p, c.c_uint64, c.c_void_p, c.POINTER(c.c_void_p)]),
    "copy_permit_end": (c.c_int, [
        c.c_void_p, c.c_uint64, c.c_void_p, c.POINTER(c.c_void_p)]),
    "copy_permit_add_to_host": (c.c_int, [
        c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p)]),
    "copy_permit_get_stats": (c.c_int, [
        c.c_void_p, c.POINTER(CopyPermitStats), c.POINTER(c.c_void_p)]),
    "copy_permit_free": (None, [c.c_void_p]),
    "arena_open": (c.c_int, [
        c.c_void_p, c.POINTER(ArenaOptions), c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "arena_close": (None, [c.c_void_p]),
    "arena_take": (c.c_int, [
        c.c_void_p, c.c_uint64, c.c_void_p, c.POINTER(ArenaBlock),
        c.POINTER(c.c_void_p)]),
    "arena_give": (c.c_int, [
        c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(c.c_void_p)]),
    "arena_get_stats": (c.c_int, [
        c.c_void_p, c.POINTER(ArenaStats), c.POINTER(c.c_void_p)]),
    "attach": (c.c_int, [
        c.POINTER(AttachmentOptions), c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "attachment_free": (None, [c.c_void_p]),
    "attachment_stage": (c.c_int, [
        c.c_void_p, c.c_uint32, c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p),
        c.POINTER(c.c_void_p)]),
    "attachment_done": (c.c_int, [
        c.c_void_p, c.c_uint32, c.c_void_p, c.POINTER(c.c_void_p)]),
    "attachment_end_pass": (c.c_int, [
        c.c_void_p, c.POINTER(c.c_int), c.POINTER(c.c_void_p)]),
    "attachment_check": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "attachment_renew": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "attachment_set_budget": (c.c_int, [
        c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p)]),
    "attachment_set_order": (c.c_int, [
        c.c_void_p, c.POINTER(c.c_uint32), c.c_size_t, c.POINTER(c.c_void_p)]),
    "attachment_event_fd": (c.c_int, [c.c_void_p]),
    "attachment_describe": (c.c_int, [
        c.c_void_p, c.POINTER(AttachmentInfo), c.POINTER(c.c_void_p)]),
    "attachment_plan": (c.c_int, [
        c.c_void_p, c.POINTER(PlanInfo), c.POINTER(c.c_void_p)]),
    "attachment_group_kind": (c.c_int, [
        c.c_void_p, c.c_uint32, c.POINTER(c.c_int), c.POINTER(c.c_void_p)]),
    "attachment_get_stats": (c.c_int, [
        c.c_void_p, c.POINTER(PlanStats), c.POINTER(c.c_void_p)]),
    "attachment_model": (c.c_int, [
        c.c_void_p, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "attachment_tensor": (c.c_int, [
        c.c_void_p, c.c_uint32, c.c_uint32, c.POINTER(TensorInfo),
        c.POINTER(c.c_void_p)]),
}
