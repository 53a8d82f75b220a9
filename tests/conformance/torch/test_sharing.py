"""Workers of several users: nobody can give another other weights.

What is tried here gave the victim zeros, without an error, before models were
found by content and names were each user's own.
"""

from __future__ import annotations

import os
import pathlib
import traceback

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from conftest import KIND  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from models import Transformer  # noqa: E402

EVIL, VICTIM = 54321, 54322

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be others"),
    pytest.mark.skipif(KIND == "cuda", reason="a forked child has no CUDA"),
]


def as_user(uid, work):
    """Runs work() in a child of that uid; what it raises fails the test."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
        except BaseException:  # noqa: B902: pytest's own are none of its kind.
            said = traceback.format_exc().encode() or b"?"
        os.write(write, said[-4000:])
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    assert not said, said


@pytest.fixture
def shared(make_hoistd):
    """A hoistd that every user reaches, whose models everyone may read."""
    daemon = make_hoistd(mode="0666", extra='[models]\nreaders = "everyone"')
    pathlib.Path(daemon.folder.name).chmod(0o755)
    return daemon


def model_of(seed):
    torch.manual_seed(seed)
    return Transformer().eval()


def output(model):
    ids = torch.arange(6).reshape(2, 3)
    with torch.no_grad():
        return model(ids)


def attached_name(module):
    """What its weights are called in hoistd."""
    return hoist.nn._api.attach._attachment(module).model.name


def test_zeros_under_the_predictable_name_are_not_taken(shared):
    expected = output(model_of(1))

    def evil():
        module = model_of(1)
        hoist.attach(module)  # To learn the name; it is the user's own.
        with hoist.connect() as session:
            true = session.model(attached_name(module))
            hoist.detach(module)
            hoist.forget(true, session=session)
            for group in true:
                session.publish(true.name, group.name, {
                    info.name: torch.zeros(info.shape)
                    for info in group.tensors}, readers="everyone")

    def victim():
        module = model_of(1)
        hoist.attach(module)
        assert_equal_outputs(output(module), expected)

    as_user(EVIL, evil)
    as_user(VICTIM, victim)
    victim()  # Root too.


def test_the_same_weights_are_shared_between_users(shared):
    as_user(EVIL, lambda: hoist.attach(model_of(1)))
    held = shared.tier("HOST")["used_bytes"]
    expected = output(model_of(1))

    def other():
        module = model_of(1)
        hoist.attach(module)
        assert_equal_outputs(output(module), expected)
        with hoist.connect() as session:
            with pytest.raises(hoist.NotFound):
                session.model(attached_name(module))  # It is not theirs.
            found = session.model(f"{EVIL}:{attached_name(module)}")
            assert (found.owner, found.readers) == (EVIL, "everyone")
            with pytest.raises(hoist.PermissionDenied):
                session.forget(found)

    as_user(VICTIM, other)
    assert shared.tier("HOST")["used_bytes"] == held


def test_a_cast_is_not_taken_from_another_user(shared):
    """A cast is found by its name alone, among one's own and root's."""
    def evil():
        module = model_of(1)
        hoist.attach(module, storage_dtype=torch.float16)
        with hoist.connect() as session:
            cast = session.model(attached_name(module))
            hoist.detach(module)
            hoist.forget(cast, session=session)
            for group in cast:
                session.publish(cast.name, group.name, {
                    info.name: torch.zeros(
                        info.shape, dtype=torch.float16
                        if info.dtype == "F16" else torch.float32)
                    for info in group.tensors}, readers="everyone")

    def victim():
        module = model_of(1)
        hoist.attach(module, storage_dtype=torch.float16)
        assert_equal_outputs(output(module), expected)

    own = model_of(1)
    hoist.attach(own, storage_dtype=torch.float16)
    expected = output(own)
    name = attached_name(own)
    hoist.detach(own)
    hoist.forget(name)  # Root's would be taken, and is right.
    as_user(EVIL, evil)
    as_user(VICTIM, victim)


def test_nobody_adds_to_a_model_that_everyone_reads(shared):
    module = model_of(1)
    hoist.attach(module)
    name = attached_name(module)

    def evil():
        with hoist.connect() as session:
            assert session.model(name).owner == 0  # Root's, by its name.
            session.publish(name, "another", {"w": torch.zeros(8)},
                            readers="everyone")
            assert session.model(name).owner == EVIL  # A model of their own.

    as_user(EVIL, evil)
    with hoist.connect() as session:
        assert "another" not in session.model(name)


def test_what_only_its_owner_may_read_is_not_found_by_its_content(make_hoistd):
    daemon = make_hoistd(mode="0666")
    pathlib.Path(daemon.folder.name).chmod(0o755)
    as_user(EVIL, lambda: hoist.attach(model_of(1)))
    held = daemon.tier("HOST")["used_bytes"]

    def other():
        module = model_of(1)
        hoist.attach(module)
        with hoist.connect() as session:
            assert session.model(attached_name(module)).owner == VICTIM

    as_user(VICTIM, other)
    assert daemon.tier("HOST")["used_bytes"] == 2 * held
