"""Sessions and leases."""

from __future__ import annotations

import ctypes as c
import dataclasses
import os
import sys
import threading
from typing import (TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping,
                    Sequence)

from . import _library as lib
from ._berth import Berth
from ._berth import create as create_berth
from ._errors import HoistError, InvalidArgument, NotFound
from ._host_image import HostImage
from ._in_place import InPlace, InPlaceTensor
from ._in_place import create as create_in_place
from ._library import (READERS, ask, call, choice, make, milliseconds, sized,
                       text)
from ._model import Group, Model, TensorInfo
from ._plan import Plan, PlanTerms, write_terms
from ._publish import Publication
from ._registration import Groups, Joined, Registration
from ._tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TIERS = {"device": 1, "host": 2, "disk": 3}
_KINDS = {1: "emulated", 2: "cuda"}


@dataclasses.dataclass(frozen=True)
class Device:
    """One of the node's devices, by hoistd's own number."""

    index: int
    kind: str  # "emulated" or "cuda".
    name: str
    uuid: bytes
    pool_bytes: int


def forget(model: Model | str, *, session: Session | None = None) -> None:
    """Drops a model of this user's from hoistd, in every tier.

    model: it, or its name; "Class-..." is what attach calls a module's weights
        (`Model.name`, and `hoistctl models`).
    session: None: one for this call, as connect() finds hoistd.

    FailedPrecondition: somebody uses it. PermissionDenied: another user's.
    NotFound: there is no such model.
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
    name: what `hoistctl sessions` shows; None: $HOIST_CLIENT_NAME, else the
        name of the script or module that runs.
    device_budget: bytes that may be leased at once on a device; 0: no limit.
    connect_deadline: seconds to try again while no hoistd listens.
    call_deadline: seconds that a call without a deadline of its own may take.
    """
    if socket is None:
        # So that Session.reconnect looks where this did.
        socket = os.environ.get("HOIST_SOCKET") or None
    options = sized(lib.ConnectOptions)
    options.socket_path = None if socket is None else text(socket)
    options.client_name = text(_program_name() if name is None else name)
    options.device_budget_bytes = device_budget
    options.connect_deadline_ms = milliseconds(connect_deadline)
    options.call_deadline_ms = max(1, milliseconds(call_deadline))
    handle = make("connect", "session_free", c.byref(options))
    return Session(handle, lambda: connect(
        socket, name=name, device_budget=device_budget,
        call_deadline=call_deadline))


class Session:
    """A connection with hoistd; closing it releases all its leases.

    hoistd's end is the session's: from then on calls raise Unavailable, and
    what was leased may not be used any more. Any thread may use it; a stage that waits holds up no other. In the child of
    a fork it raises FailedPrecondition: connect again there.
    """

    def __init__(self, handle: c.c_void_p,
                 connect_again: Callable[[], Session]) -> None:
        self._handle = handle
        self._connect_again = connect_again
        self._successor: Session | None = None
        self._succession = threading.Lock()
        self._free = lib.load().hoist_session_free
        self.id: int = ask("session_id", handle)  # hoistd's number of it.
        # hoistd's, "0.1.0".
        self.daemon_version: str = ask("session_daemon_version",
                                       handle).decode()
        self.devices: list[Device] = []  # hoistd's.
        for index in range(ask("session_device_count", handle)):
            info = sized(lib.DeviceInfo)
            call("session_device", handle, index, c.byref(info))
            self.devices.append(Device(info.index, _KINDS[info.kind],
                                       info.name.decode(), bytes(info.uuid),
                                       info.pool_bytes))

    def __del__(self) -> None:
        free = getattr(self, "_free", None)
        if free is not None:
            free(self._handle)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases all leases: no view of them may be used any more."""
        ask("session_close", self._handle)

    def check(self) -> None:
        """Raises what makes every further call fail, if anything does:
        Unavailable where hoistd has ended it, FailedPrecondition where it was
        closed, or the process is a fork. Sends no message."""
        call("session_check", self._handle)

    def reconnect(self) -> Session:
        """A session with the hoistd that listens now where this one's did: this
        one while it lives, else one for all who ask, made by the first. Models,
        leases and plans of this one are none of its. Unavailable: nobody
        listens; ask again."""
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
        """Registers a safetensors file, or a folder of them, or attaches.

        groups: "block", "module", "whole", or {group: [tensor, ...]}.
        readers: "owner", "everyone"; None: as hoistd is configured.
        joined: tensors by name that the files hold in parts. They are in a
            group each; their parts are in none.
        """
        if name is None:
            name = _model_name(os.fspath(path))
        registration = Registration(path, name, groups, joined or {}, readers)
        return self._model("register_model", c.byref(registration.options))

    def publish(self, model: str, group: str, tensors: Mapping[str, Any],
                readers: str | None = None, *, deadline: float = 60.0,
                of_session: bool = False,
                content: bytes | None = None) -> Model:
        """Adds one group of NumPy arrays or CPU tensors to a published model,
        which is made if need be. Their bytes are copied before this returns;
        tensors that share memory are stored once.

        deadline: seconds to wait for space on the host.
        of_session: the model ends with this session, whatever ends that, and
            is its user's alone; it is called "@42/MODEL", where 42 is the
            session.
        content: 32 bytes that the group must be, as Group.content says it.
            DataLoss: hoistd found something else, and kept nothing of it.
        """
        _check_content(content)
        publication = Publication(tensors)
        options = sized(lib.PublishOptions)
        options.model = text(model)
        options.group = text(group)
        options.tensors = publication.records
        options.tensor_count = len(publication.records)
        options.readers = choice(READERS, "readers", readers)
        options.deadline_ms = max(1, milliseconds(deadline))
        options.of_session = of_session
        expected = None if content is None else c.create_string_buffer(
            content, 32)
        options.content = None if expected is None else c.cast(
            expected, c.c_char_p)
        return self._model("publish_group", c.byref(options))

    def model(self, name: str) -> Model:
        """A model that was registered or published before.

        "llama" is this user's, or else root's; "1000:llama" is user 1000's,
        whose weights are what that user made them.
        """
        return self._model("describe_model", text(name))

    def find_content(self, content: bytes) -> Model:
        """A published model of this content, whoever published it: this
        user's, else root's, else one that everyone may read. hoistd hashed its
        bytes itself. NotFound: there is none.

        content: 32 bytes, a SHA-256; of what, says
            daemon/model/published_group.h.
        """
        _check_content(content)
        return self._model("find_content", c.create_string_buffer(content, 32))

    def forget(self, model: Model) -> None:
        """Drops a model of this user's in every tier; its name is free then.

        FailedPrecondition: it is in use. PermissionDenied: another user's.
        """
        call("forget_model", self._handle, model._handle)

    def _model(self, verb: str, argument: Any) -> Model:
        handle = make(verb, "model_free", self._handle, argument)
        return Model(handle)

    def stage(self, group: Group, *, device: int = 0,
              deadline: float = 30.0) -> Lease:
        """Waits until the group can be used on the device.

        deadline: seconds to wait for space; 0: refuse at once.
        """
        handle = make("stage", "lease_free", self._handle,
                      group.model._handle, group.index, device,
                      milliseconds(deadline))
        return Lease(self, group, handle)

    def host_image(self, group: Group) -> HostImage:
        """Reserves addresses of this process for the group's bytes, which
        HostImage.load brings; no byte is read and no memory taken yet."""
        handle = c.c_void_p()
        call("host_image_create", self._handle, group.model._handle,
             group.index, c.byref(handle))
        return HostImage(self, group, handle)

    def prefetch(self, groups: Group | Iterable[Group], *,
                 tier: str = "device", device: int = 0) -> None:
        """Asks for groups of one model, in order of first need; returns when
        they are queued.

        tier: "device", "host"; or "disk", of a model that ends with this
            session: they leave the host, and come back when they are asked
            for. PermissionDenied: it does not end with it. FailedPrecondition:
            some stay there, being in use, or as they cannot be written.
        """
        wanted = [groups] if isinstance(groups, Group) else list(groups)
        if wanted:
            call("prefetch", self._handle, *_indices(wanted),
                 choice(_TIERS, "tier", tier), device)

    def set_order(self, groups: Iterable[Group]) -> None:
        """The order in which this session stages the groups, over and over."""
        wanted = list(groups)
        if not wanted:
            raise InvalidArgument("the order is empty; see clear_order")
        call("set_order", self._handle, *_indices(wanted))

    def set_plan(self, model: Model, *, budget: int = 0,
                 order: Iterable[Group] | None = None, device: int = 0,
                 deadline: float = 30.0, learn: bool = False,
                 **terms: Unpack[PlanTerms]) -> Plan:
        """Stages the model's groups in order, over and over, in a budget.

        budget: bytes of device memory; 0: as much as can be promised.
        order: of one pass, may repeat groups; None: learned from the first.
        deadline: seconds to wait for space; 0: refuse at once.
        learn: `order` serves only until the first Plan.end_pass, which ends
            the pass that the order is learned from.
        terms: see PlanTerms.
        """
        options = sized(lib.PlanOptions)
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
        write_terms(options, terms)
        handle = make("set_plan", "plan_free", self._handle, model._handle,
                      c.byref(options))
        return Plan(self, model, handle)

    def check_in_place(self) -> None:
        """Unimplemented: this hoistd has nothing that is read in place, and
        why."""
        call("session_has_in_place", self._handle)

    def in_place(self, model: Model, tensors: Mapping[str, InPlaceTensor], *,
                 hot_bytes: int = 0, device: int = 0, deadline: float = 60.0,
                 counts: tuple[int, int] | None = None,
                 keep: object = None) -> InPlace:
        """Tensors that the device reads where they lie, in pieces of which the
        most touched are in its own memory.

        tensors: by name, what each is made of.
        hot_bytes: of device memory, for hot pieces.
        deadline: seconds for all pieces to come to the host.
            They become hot and cold in InPlace.begin, and in advance.
        counts: address and length of uint32 on the device, to which whoever
            touches a unit adds; None: InPlace.touch tells. `keep` is kept for
            as long as they are read.

        Unimplemented: this hoistd has nothing that is read in place, and why.
        ResourceExhausted: it has not enough (host.in_place in hoistd.toml).
        """
        return create_in_place(self, model, tensors, hot_bytes=hot_bytes,
                               device=device, deadline=deadline,
                               counts=counts, keep=keep)

    def berth(self, groups: Iterable[Group], *, device: int = 0) -> Berth:
        """Reserves addresses of this process for groups of one model, which
        Berth.fill binds to them; nothing is staged yet."""
        return create_berth(self, list(groups), device)

    def done_with(self, model: Model) -> None:
        """Whoever has this object is done with the model, and so is the session
        once nothing else of it is held: no other Model, lease, plan or host
        image. hoistd then makes room with it first where it needs some, and a
        published one that nobody uses is forgotten. A Model that is dropped
        without a word leaves it used until the session ends."""
        call("done_with_model", self._handle, model._handle)

    def clear_order(self, model: Model) -> None:
        """No order any more; and this session is done with the model until it
        asks for it again, whatever is held of it: see done_with."""
        call("set_order", self._handle, model._handle, None, 0)


def _program_name() -> str:
    """As a person would call it: every worker's program is "python"."""
    given = os.environ.get("HOIST_CLIENT_NAME")
    if given:
        return given
    script = getattr(sys, "argv", [""])[0]
    base = os.path.basename(script)
    if base == "__main__.py":  # python -m package
        base = os.path.basename(os.path.dirname(os.path.abspath(script)))
    # Nothing was run by name: python -c, or an interpreter within a program.
    return base[:64] if base not in ("", "-c", "-") else "python"


def _model_name(path: str) -> str:
    """The folder's name, or the file's without its ending."""
    base = os.path.basename(os.path.abspath(path))
    return base.removesuffix(".safetensors")


def _check_content(content: bytes | None) -> None:
    if content is not None and len(content) != 32:
        raise InvalidArgument(
            f"content has {len(content)} bytes; a SHA-256 has 32")


def _indices(groups: list[Group]) -> tuple[Any, Any, int]:
    model = groups[0].model
    if any(group.model.id != model.id for group in groups):
        raise InvalidArgument("the groups are of several models")
    indices = (c.c_uint32 * len(groups))(*[group.index for group in groups])
    return model._handle, indices, len(groups)


class Lease(Mapping[str, Tensor]):
    """The right to use a group's tensors until release: a mapping by name.

    As a context manager it releases at the end. Without, it is released when
    it and all its views are gone.
    """

    def __init__(self, session: Session, group: Group,
                 handle: c.c_void_p) -> None:
        self._session = session
        self._handle = handle
        self._free = lib.load().hoist_lease_free
        self.group = group
        self.id: int = ask("lease_id", handle)  # hoistd's number of it.
        self.nbytes: int = ask("lease_bytes", handle)  # Of the image.
        # Nothing had to be copied for it.
        self.was_resident = bool(ask("lease_was_resident", handle))
        # hoistd's number of it.
        self.device: int = ask("lease_device", handle)
        self.device_kind: int = ask("lease_device_kind", handle)
        self.device_uuid = next(d.uuid for d in session.devices
                                if d.index == self.device)
        self._count: int = ask("lease_tensor_count", handle)
        self._names: list[str] | None = None

    def __del__(self) -> None:
        free = getattr(self, "_free", None)
        if free is not None:
            free(self._handle)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Gives the group back. Work that reads it must have finished, and its
        views must not be used any more."""
        call("lease_release", self._handle)

    def check(self) -> None:
        """Raises if the tensors may not be read: released, closed, forked, or
        hoistd is gone."""
        call("lease_check", self._handle)

    @property
    def address(self) -> int:
        """Of the image's first byte on the device; 0 if it may not be read, or
        is empty."""
        return ask("lease_data", self._handle) or 0

    def __getitem__(self, name: str) -> Tensor:
        record = sized(lib.TensorRecord)
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
