"""Sessions and leases."""

from __future__ import annotations

import contextlib
import ctypes as c
import dataclasses
import os
import re
import sys
import threading
from typing import (TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping,
                    Sequence)

from . import _c
from ._errors import HoistError, InvalidArgument, NotFound
from ._fixed_mapping import FixedMapping
from ._host_image import HostImage
from ._in_place import InPlace, InPlaceTensor
from ._in_place import create as create_in_place
from ._library import (DEVICE_KINDS, READERS, Owner, ask, call, choice, make,
                       milliseconds, sized, text)
from ._model import Group, Model, TensorInfo
from ._plan import Plan, PlanTerms, write_terms
from ._publish import Publication
from ._registration import Groups, Joined, Registration
from ._tensor import Tensor, _cuda_device

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TIERS = {"device": _c.TIER_DEVICE, "host": _c.TIER_HOST,
          "disk": _c.TIER_DISK}
_KINDS = {number: name for name, number in DEVICE_KINDS.items()}


@dataclasses.dataclass(frozen=True)
class Device:
    """One of the node's devices, by hoistd's number."""

    index: int
    kind: str  # "emulated" or "cuda".
    name: str
    uuid: bytes
    pool_bytes: int


def forget(model: Model | str, *, session: Session | None = None) -> None:
    """Drops a model of this user from hoistd, in every tier.

    model: the model or its name; attach names a module's weights "Class-..."
        (`Model.name`, and `hoistctl models`).
    session: None: one for this call, as connect() finds hoistd.

    FailedPrecondition: the model is in use. PermissionDenied: it belongs to
    another user. NotFound: there is no such model.
    """
    if session is None:
        with connect() as own:
            return forget(model, session=own)
    session.forget(session.model(model) if isinstance(model, str) else model)


def connect(socket: str | os.PathLike[str] | None = None, *,
            name: str | None = None, device_budget: int = 0,
            connect_deadline: float = 0.0,
            call_deadline: float = 600.0) -> Session:
    """Connects to hoistd.

    socket: its socket; None: $HOIST_SOCKET, else this user's own hoistd
        (`hoistd --user`), if it answers, else /run/hoist/hoistd.sock.
    name: for `hoistctl sessions`; None: $HOIST_CLIENT_NAME, else the name of
        the running script or module.
    device_budget: maximum bytes leased at once per device; 0: no limit.
    connect_deadline: seconds of retries while no hoistd listens.
    call_deadline: maximum seconds of a call without its own deadline. With one,
        a silent hoistd (stopped, or hung) ends it then, but not within 5 s.
    """
    if socket is None:
        # So that Session.reconnect uses the same socket.
        socket = os.environ.get("HOIST_SOCKET") or None
    options = sized(_c.ConnectOptions)
    options.socket_path = None if socket is None else text(socket)
    options.client_name = text(_program_name() if name is None else name)
    options.device_budget_bytes = device_budget
    options.connect_deadline_ms = milliseconds(connect_deadline)
    options.call_deadline_ms = max(1, milliseconds(call_deadline))
    handle = make("connect", "session_free", c.byref(options))
    return Session(handle, lambda: connect(
        socket, name=name, device_budget=device_budget,
        call_deadline=call_deadline))


class Session(Owner):
    """A connection with hoistd; closing it releases all its leases.

    The session ends with hoistd: from then on calls raise Unavailable, and
    leased memory is void. Any thread may use it; a waiting stage delays no
    other call. FailedPrecondition: in the child of a fork; connect again
    there.
    """

    def __init__(self, handle: c.c_void_p,
                 connect_again: Callable[[], Session]) -> None:
        self._own(handle, "session_free")
        self._connect_again = connect_again
        self._successor: Session | None = None
        self._succession = threading.Lock()
        self.id: int = ask("session_id", handle)  # hoistd's number of it.
        # hoistd's version, "0.1.0".
        self.daemon_version: str = ask("session_daemon_version",
                                       handle).decode()
        self.devices: list[Device] = []  # hoistd's.
        for index in range(ask("session_device_count", handle)):
            info = sized(_c.DeviceInfo)
            call("session_device", handle, index, c.byref(info))
            self.devices.append(Device(info.index, _KINDS[info.kind],
                                       info.name.decode(), bytes(info.uuid),
                                       info.pool_bytes))

    def _device(self, index: int) -> Device:
        for device in self.devices:
            if device.index == index:
                return device
        raise InvalidArgument(f"hoistd has no device {index}")

    def _gpu(self, wanted: Any) -> int:
        """hoistd's number of a GPU of torch's."""
        for device in self.devices:
            with contextlib.suppress(HoistError):  # It is not visible here.
                if device.kind == "cuda" and (
                        _cuda_device(device.uuid) == str(wanted)):
                    return device.index
        raise InvalidArgument(f"hoistd has no device {wanted} of torch's; "
                              "publish what is there as its .cpu()")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases all leases; their views become invalid."""
        ask("session_close", self._handle)

    def check(self) -> None:
        """Raises the error that further calls would raise: Unavailable after
        hoistd's end, FailedPrecondition after close() or in a fork. Sends no
        message."""
        call("session_check", self._handle)

    @property
    def wake_fd(self) -> int:
        """An eventfd of the session, readable after hoistd has asked for the
        plans that gave way (`hoistctl wake`); its reader resets it. -1: no
        descriptor is left."""
        return int(ask("session_wake_fd", self._handle))

    def reconnect(self) -> Session:
        """A session with the hoistd at the same socket: this one while it
        lives, else a new one that all callers share, without this one's models,
        leases and plans. Unavailable: no hoistd listens; call again."""
        try:
            self.check()
            return self
        except HoistError:
            pass
        with self._succession:
            self._successor = (self._connect_again() if self._successor is None
                               else self._successor.reconnect())
            return self._successor

    def register(self, path: str | os.PathLike[str], name: str | None = None,
                 groups: Groups = "block", readers: str | None = None,
                 joined: Mapping[str, Joined] | None = None) -> Model:
        """Registers a safetensors or GGUF file, or a folder of them, or attaches.

        A GGUF file's packed blocks are tensors of U8, whose last dimension is a
        row's bytes, as the gguf package has them; TensorInfo.block_type is their
        type. One part of a GGUF set ("m-00001-of-00003.gguf") stands for all.

        groups: "block", "module", "whole", or {group: [tensor, ...]}.
        readers: "owner", "everyone"; None: hoistd's default.
        joined: by name, tensors that the files hold in parts. Each is a group
            of its own; their parts are in no group.
        """
        if name is None:
            name = _model_name(os.fspath(path))
        registration = Registration(path, name, groups, joined or {}, readers)
        return self._model("register_model", c.byref(registration.options))

    def publish(self, model: str, group: str, tensors: Mapping[str, Any],
                readers: str | None = None, *, deadline: float = 60.0,
                of_session: bool = False,
                content: bytes | None = None) -> Model:
        """Adds one group of NumPy arrays or tensors to a published model, which
        is made if it does not exist. The tensors are on the CPU and on one of
        hoistd's GPUs, where the current stream has written them. The bytes are
        copied before this returns; tensors that share memory are stored once.

        The Model asks hoistd for its other groups, in their present state, and
        for its fingerprint, at their first use. FailedPrecondition: the session
        has ended by then, or is done with this object.

        deadline: seconds to wait for space on the host.
        of_session: the model ends with this session, and is private to its
            user; its name is "@42/MODEL", where 42 is the session.
        content: the expected Group.content, 32 bytes. DataLoss: hoistd computed
            another, and kept nothing.
        """
        publication = Publication(group, tensors)
        options = publication.options
        options.model = text(model)
        if publication.gpu is not None:
            options.device = self._gpu(publication.gpu)
        options.readers = choice(READERS, "readers", readers)
        options.deadline_ms = max(1, milliseconds(deadline))
        options.of_session = of_session
        options.content = None if content is None else _digest(content)
        return self._model("publish_group", c.byref(options))

    def model(self, name: str) -> Model:
        """A model that was registered or published earlier.

        "llama" is this user's, or else root's; "1000:llama" is user 1000's, who
        vouches for the weights. DataLoss: groups were lost when hoistd started;
        the text has their number, and the remedy.
        """
        return self._model("describe_model", text(name))

    def find_content(self, content: bytes) -> Model:
        """A published model of this content: this user's, else root's, else one
        that everyone may read. hoistd hashed its bytes itself. NotFound: there
        is none.

        content: a SHA-256, 32 bytes, as daemon/model/published_group.h defines.
        """
        return self._model("find_content", _digest(content))

    def forget(self, model: Model) -> None:
        """Drops a model of this user in every tier, and frees its name.

        FailedPrecondition: it is in use. PermissionDenied: another user's.
        """
        call("forget_model", self._handle, model._handle)

    def _model(self, verb: str, argument: Any) -> Model:
        handle = make(verb, "model_free", self._handle, argument)
        return Model(handle)

    def stage(self, group: Group, *, device: int = 0,
              deadline: float = 30.0) -> Lease:
        """Waits until the group is usable on the device.

        deadline: seconds to wait for space; 0: fail at once.
        """
        handle = make("stage", "lease_free", self._handle,
                      group.model._handle, group.index, device,
                      milliseconds(deadline))
        return Lease(self, group, handle)

    def host_image(self, group: Group) -> HostImage:
        """Reserves addresses of this process for the group's bytes, which
        HostImage.load brings; reads no byte and takes no memory yet."""
        handle = c.c_void_p()
        call("host_image_create", self._handle, group.model._handle,
             group.index, c.byref(handle))
        return HostImage(self, group, handle)

    def prefetch(self, groups: Group | Iterable[Group], *,
                 tier: str = "device", device: int = 0) -> None:
        """Requests groups of one model, in order of first use; returns when
        they are queued.

        tier: "device", "host"; or "disk", for a model that ends with this
            session: its groups leave the host, and return on request.
            PermissionDenied: it does not end with it. FailedPrecondition: some
            groups stay, being in use or not writable.
        """
        wanted = [groups] if isinstance(groups, Group) else list(groups)
        if wanted:
            call("prefetch", self._handle, *_indices(wanted),
                 choice(_TIERS, "tier", tier), device)

    def set_order(self, groups: Iterable[Group]) -> None:
        """Sets the order in which this session stages the groups, in a loop."""
        wanted = list(groups)
        if not wanted:
            raise InvalidArgument("the order is empty; see clear_order")
        call("set_order", self._handle, *_indices(wanted))

    @contextlib.contextmanager
    def spare(self, nbytes: int, *, device: int = 0, deadline: float = 10.0
              ) -> Iterator[None]:
        """Has hoistd's pool leave so many bytes of a device to this process
        within a block. The block begins once they are free.

        deadline: seconds to wait for plans to give way.

        ResourceExhausted: hoistd has less, or others kept it; the text names the
        bytes that it could leave. FailedPrecondition: another call of this
        session waits for a spare there. See hoist_spare.
        """
        call("spare", self._handle, device, nbytes, milliseconds(deadline))
        try:
            yield
        finally:
            with contextlib.suppress(HoistError):  # The session's end ends it.
                call("spare", self._handle, device, 0, 0)

    def set_plan(self, model: Model, *, budget: int = 0,
                 order: Iterable[Group] | None = None, device: int = 0,
                 deadline: float = 30.0, learn: bool = False,
                 gives_way: bool = False,
                 blocks: Sequence[Sequence[Group]] = (),
                 **terms: Unpack[PlanTerms]) -> Plan:
        """Stages the model's groups in a cyclic order, within a budget.

        budget: bytes of device memory; 0: the most that can be reserved.
        order: of one pass, may repeat groups; None: learned from the first.
        deadline: seconds to wait for space; 0: fail at once.
        learn: `order` is valid only until the first Plan.end_pass; the order is
            then learned from that pass.
        gives_way: hoistd may ask for the plan's memory: for an admin and, while
            the budget is 0, for others; see PlanInfo.
        blocks: groups that are staged together; the others are alone. The
            budget keeps a part of each block on the device.
        terms: see PlanTerms.
        """
        options = sized(_c.PlanOptions)
        options.device = device
        options.budget_bytes = budget
        if order is not None:
            wanted = list(order)
            if not wanted:
                raise InvalidArgument("the order is empty; None: it is learned")
            if any(group.model.id != model.id for group in wanted):
                raise InvalidArgument("the order has another model's groups")
            _, options.order, options.order_length = _indices(wanted)
        options.deadline_ms = milliseconds(deadline)
        options.learn = learn
        options.gives_way = gives_way
        if blocks:
            block_of = (c.c_uint32 * len(model.groups))(*range(len(model.groups)))
            for block in blocks:
                for group in block:
                    block_of[group.index] = block[0].index
            options.blocks, options.block_count = block_of, len(block_of)
        write_terms(options, terms)
        handle = make("set_plan", "plan_free", self._handle, model._handle,
                      c.byref(options))
        return Plan(self, model, handle)

    def check_in_place(self) -> None:
        """Unimplemented: this hoistd has no zero-copy memory; says why."""
        call("session_has_in_place", self._handle)

    def in_place(self, model: Model, tensors: Mapping[str, InPlaceTensor], *,
                 hot_bytes: int = 0, device: int = 0, deadline: float = 60.0,
                 counts: tuple[int, int] | None = None, cold: int = 0,
                 keep: object = None) -> InPlace:
        """Zero-copy tensors in pieces, the most touched of which are cached in
        device memory.

        tensors: by name, their parts.
        hot_bytes: device memory for hot pieces.
        deadline: seconds for all pieces to arrive on the host.
            They become hot and cold in InPlace.begin, and in advance.
        counts: device address and length of a uint32 array, which counts
            touches by unit; None: InPlace.touch reports them. `keep` stays
            alive while they are read.
        cold: host address of a byte for each count, which is 1 while a part of
            the unit is cold.

        Unimplemented: this hoistd has no zero-copy memory; says why.
        ResourceExhausted: it has too little (host.in_place in hoistd.toml).
        """
        return create_in_place(self, model, tensors, hot_bytes=hot_bytes,
                               device=device, deadline=deadline,
                               counts=counts, cold=cold, keep=keep)

    def fixed_mapping(self, groups: Iterable[Group], *,
                      device: int = 0) -> FixedMapping:
        """Reserves addresses of this process for groups of one model, to which
        FixedMapping.fill binds them; stages nothing yet."""
        wanted = list(groups)
        if not wanted:
            raise InvalidArgument("no groups to make a mapping for")
        return FixedMapping(
            self._device(device), wanted,
            make("fixed_mapping_create", "fixed_mapping_free", self._handle,
                 *_indices(wanted), device))

    def done_with(self, model: Model, *, forget: bool = False) -> None:
        """Declares that this Model object needs the model no more. The session
        is done with it once no other Model, lease, plan or host image of it is
        left. The model is then the first eviction victim; an unused published
        one is forgotten. A silently dropped Model stays in use until the
        session ends.

        forget: hoistd forgets this user's model once nothing uses it, unless a
            session asks for it before, or an admin has pinned it.
        """
        call("forget_unused_model" if forget else "done_with_model",
             self._handle, model._handle)

    def clear_order(self, model: Model) -> None:
        """Drops the order. The session is done with the model until its next
        request, regardless of its holdings: see done_with."""
        call("set_order", self._handle, model._handle, None, 0)


def _program_name() -> str:
    """A recognisable name, as every worker's program is "python"."""
    given = os.environ.get("HOIST_CLIENT_NAME")
    if given:
        return given
    script = getattr(sys, "argv", [""])[0]
    base = os.path.basename(script)
    if base == "__main__.py":  # python -m package
        base = os.path.basename(os.path.dirname(os.path.abspath(script)))
    # No program name: python -c, or an embedded interpreter.
    return base[:64] if base not in ("", "-c", "-") else "python"


def _model_name(path: str) -> str:
    """The folder's name, or the file's without its extension and its part's
    number."""
    base = os.path.basename(os.path.abspath(path))
    return re.sub(r"\.safetensors$|(-\d{5}-of-\d{5})?\.gguf$", "", base)


def _digest(content: bytes) -> c.Array[c.c_uint8]:
    if len(content) != 32:
        raise InvalidArgument(
            f"content has {len(content)} bytes; a SHA-256 has 32")
    return (c.c_uint8 * 32).from_buffer_copy(content)


def _indices(groups: list[Group]) -> tuple[Any, Any, int]:
    model = groups[0].model
    if any(group.model.id != model.id for group in groups):
        raise InvalidArgument("the groups are of several models")
    indices = (c.c_uint32 * len(groups))(*[group.index for group in groups])
    return model._handle, indices, len(groups)


class Lease(Owner, Mapping[str, Tensor]):
    """The right to use a group's tensors until release: a mapping by name.

    A context manager releases it at the end of its block. Otherwise it is
    released when the lease and all its views are gone.
    """

    def __init__(self, session: Session, group: Group,
                 handle: c.c_void_p) -> None:
        self._session = session
        self._own(handle, "lease_free")
        self.group = group
        self.id: int = ask("lease_id", handle)  # hoistd's number of it.
        self.nbytes: int = ask("lease_bytes", handle)  # Of the image.
        # True: nothing was copied for it.
        self.was_resident = bool(ask("lease_was_resident", handle))
        # hoistd's number of it.
        self.device: int = ask("lease_device", handle)
        self.device_kind: int = ask("lease_device_kind", handle)
        self.device_uuid = session._device(self.device).uuid
        self._count: int = ask("lease_tensor_count", handle)
        self._names: list[str] | None = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Releases the group. Work that reads it must have finished; its views
        become invalid."""
        call("lease_release", self._handle)

    def check(self) -> None:
        """Raises if the tensors may not be read: released, closed, forked, or
        hoistd has ended."""
        call("lease_check", self._handle)

    @property
    def address(self) -> int:
        """The device address of the image's first byte; 0: it is empty. Raises
        as `check` does."""
        address: int = ask("lease_data", self._handle) or 0
        if not address and self.nbytes:
            self.check()
        return address

    def __getitem__(self, name: str) -> Tensor:
        record = sized(_c.TensorInfo)
        call("lease_find_tensor", self._handle, text(name), c.byref(record))
        return Tensor(self, TensorInfo.of_record(record), record.data or 0)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self[name]
        except NotFound:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        if self._names is None:
            self._names = [info.name for info in self.group.tensors]
        return iter(self._names)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return (f"<hoist.Lease of {self.group.name!r}: {self._count} tensors, "
                f"{self.nbytes} bytes on device {self.device}>")
