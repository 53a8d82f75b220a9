"""hoist.sglang in SGLang's own registry of formats and hooks."""

from __future__ import annotations

import pathlib
import re
import types

import pytest

registry = pytest.importorskip("sglang.srt.plugins.hook_registry")
choices = pytest.importorskip("sglang.srt.arg_groups.choices")

import hoist  # noqa: E402
from hoist.sglang import Options, register  # noqa: E402

VERIFY = "sglang.srt.configs.load_config.LoadConfig._verify_load_format"
LOADER = "sglang.srt.model_loader.loader.get_model_loader"


@pytest.fixture
def hooks():
    register()
    return {target: [hook for kind, hook, _ in found
                     if kind is registry.HookType.AROUND]
            for target, found in registry.HookRegistry._hooks.items()}


def test_the_format_is_legal_and_registered_once(hooks):
    register()
    assert choices.LOAD_FORMAT_CHOICES.count("hoist") == 1
    assert len(hooks[VERIFY]) == len(hooks[LOADER]) == 1


def test_other_formats_are_sglangs_own_business(hooks):
    config = types.SimpleNamespace(load_format="auto")
    asked = []
    (verify,), (loader,) = hooks[VERIFY], hooks[LOADER]
    verify(asked.append, config)
    assert asked == [config]
    assert loader(lambda *given: given, config, "model") == (config, "model")


def test_hoists_own_format_does_not_reach_sglangs_enum(hooks):
    (verify,) = hooks[VERIFY]
    verify(lambda config: pytest.fail("SGLang was asked"),
           types.SimpleNamespace(load_format="hoist"))


def test_the_guides_command_names_it():
    guide = (pathlib.Path(__file__).parents[2]
             / "client/python/hoist/sglang/README.md").read_text()
    [command] = re.findall(r"^python -m sglang\S*launch_server (.*)$", guide,
                           re.M)
    words = command.split()
    register()
    assert words[words.index("--load-format") + 1] in (
        choices.LOAD_FORMAT_CHOICES)


def test_options_that_do_not_do_are_told():
    assert Options.of('{"deadline": 5}').deadline == 5
    with pytest.raises(hoist.InvalidArgument, match='no "budget"'):
        Options.of({"budget": 1})
