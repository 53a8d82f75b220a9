"""Which modules are staged together.

A group is a set of modules with their triggers: the modules whose forward calls
need it staged. Modules without a forward (lists, dictionaries) trigger nothing;
their contents belong to the parent or the children.
"""

from __future__ import annotations

import dataclasses
from typing import (Any, Callable, Iterable, Iterator, Literal, Mapping,
                    Sequence, Union)

from torch import nn

from ..._errors import InvalidArgument

Groups = Union[Literal["block", "leaf"], tuple[Literal["block"], int],
               Mapping[str, Sequence[str]],
               Callable[[str, nn.Module], Union[str, None]]]

_MODES = ('"block", ("block", 2), "leaf", {group: [modules]} or a function of '
          "(name, module)")


@dataclasses.dataclass
class ModuleGroup:
    """Modules whose weights are one group."""

    name: str
    triggers: list[nn.Module] = dataclasses.field(default_factory=list)
    # Their own weights, without their children's.
    owners: list[nn.Module] = dataclasses.field(default_factory=list)
    # A module that several groups' modules hold and call.
    shared: bool = False


def group_modules(root: nn.Module, groups: Groups,
                  excluded: set[nn.Module]) -> list[ModuleGroup]:
    """Groups such that every module with weights of its own is in one.

    InvalidArgument: no such rule, or names without a module.
    """
    tree = _Tree(root, excluded)
    if isinstance(groups, Mapping):
        return _named(tree, groups)
    if callable(groups):
        return _called(tree, groups)
    if groups == "leaf":
        return _leaves(tree)
    if groups == "block":
        return _blocks(tree, 1)
    if (isinstance(groups, tuple) and len(groups) == 2
            and groups[0] == "block" and isinstance(groups[1], int)
            and groups[1] >= 1):
        return _blocks(tree, groups[1])
    raise InvalidArgument(f"groups={groups!r} is none of {_MODES}")


def blocks_of(root: nn.Module) -> list[nn.Module]:
    """The blocks of "block" groups that are elements of a row, in the tree's
    order; for uncalled ones, their called children."""
    tree = _Tree(root, set())
    found = _Blocks(tree, 1)
    found.visit(root)
    return [trigger for element in found.elements
            for trigger in _triggers(tree, element)]


def is_called(module: nn.Module) -> bool:
    """False for lists and dictionaries, which have no forward."""
    forward = getattr(module.forward, "__func__", module.forward)
    return forward is not nn.Module.forward


class _Tree:
    """The modules that hoist manages, by name; each once."""

    def __init__(self, root: nn.Module, excluded: set[nn.Module]) -> None:
        self.root = root
        self.names = {module: name for name, module in root.named_modules()
                      if module not in excluded}
        self._parents: dict[nn.Module, list[nn.Module]] = {}
        for module in self.names:
            for child in module.children():
                self._parents.setdefault(child, []).append(module)

    def children(self, module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if child in self.names:
                yield child

    def below(self, module: nn.Module) -> Iterator[nn.Module]:
        """The module, and all below it."""
        for found in module.modules():
            if found in self.names:
                yield found

    def above(self, module: nn.Module) -> Iterator[nn.Module]:
        """The module, and all ancestors up to the root."""
        found = {module: None}
        queue = [module]
        for one in queue:
            yield one
            for parent in self._parents.get(one, ()):
                if parent not in found:
                    found[parent] = None
                    queue.append(parent)

    def shared_above(self, module: nn.Module) -> nn.Module | None:
        """The nearest of the module and its ancestors with several parents."""
        found: nn.Module | None = module
        while found is not None:
            parents = self._parents.get(found, ())
            if len(parents) > 1:
                return found
            found = parents[0] if parents else None
        return None

    def callers(self, module: nn.Module) -> list[nn.Module]:
        """The module, or its nearest called ancestors, on each way to it."""
        if is_called(module) or module is self.root:
            return [module]
        return list(dict.fromkeys(
            caller for parent in self._parents[module]
            for caller in self.callers(parent)))

    def reached_without(self, module: nn.Module,
                        triggers: set[nn.Module]) -> bool:
        """True if a way from the root reaches it without any of these."""
        return module not in triggers and (module is self.root or any(
            self.reached_without(parent, triggers)
            for parent in self._parents[module]))

    def has_own(self, module: nn.Module) -> bool:
        return any(value is not None for value in
                   [*module._parameters.values(), *module._buffers.values()])

    def has_any(self, module: nn.Module) -> bool:
        return any(map(self.has_own, self.below(module)))


def _triggers(tree: _Tree, module: nn.Module) -> Iterator[nn.Module]:
    """The module, or its called children if it is not called itself."""
    if is_called(module):
        yield module
        return
    for child in tree.children(module):
        yield from _triggers(tree, child)


def _whole(tree: _Tree, name: str, module: nn.Module) -> ModuleGroup:
    """A subtree as one group."""
    return ModuleGroup(name, list(_triggers(tree, module)),
                       [found for found in tree.below(module)
                        if tree.has_own(found)])


def _is_row(tree: _Tree, module: nn.Module) -> bool:
    """Several modules with weights: in a list, a sequence, or a dictionary with
    numbers as names."""
    return _is_list(module) and sum(map(tree.has_any,
                                        tree.children(module))) >= 2


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.Sequential)) or (
        isinstance(module, nn.ModuleDict) and _is_numbered(module))


def _is_numbered(module: nn.Module) -> bool:
    return all(name.isascii() and name.isdigit() for name in module._modules)


def _holds_blocks(tree: _Tree, module: nn.Module) -> bool:
    """A row; or a list of one element without a row below it."""
    if _is_row(tree, module):
        return True
    return (_is_list(module) and _is_numbered(module)
            and any(map(tree.has_any, tree.children(module)))
            and not any(_is_row(tree, one) for one in tree.below(module)))


def _blocks(tree: _Tree, together: int) -> list[ModuleGroup]:
    """Each element of the outermost rows, and each largest subtree beside them;
    the own weights of a module above rows are a group.

    hoistd has the same rule for names (daemon/model/grouping.h, kBlock, defines
    it). tests/cases/block_groups.txt tests both, and lists the cases that only
    modules can tell.
    """
    found = _Blocks(tree, together)
    found.visit(tree.root)
    return _once(tree, found.groups)


class _Blocks:
    """The results of `_blocks` so far."""

    def __init__(self, tree: _Tree, together: int) -> None:
        self._tree = tree
        self._together = together
        self._done: set[nn.Module] = set()
        self.groups: list[ModuleGroup] = []
        self.elements: list[nn.Module] = []  # Of rows; each is a group.

    def visit(self, module: nn.Module) -> None:
        if module in self._done:
            return
        self._done.add(module)
        tree = self._tree
        name = tree.names[module] or "model"
        if not self._has_blocks(module):
            self.groups.append(_whole(tree, name, module))
            return
        if tree.has_own(module):
            self.groups.append(ModuleGroup(name, [module], [module]))
        if _holds_blocks(tree, module):
            self._visit_row(module)
            return
        for child in tree.children(module):
            self.visit(child)

    def _has_blocks(self, module: nn.Module) -> bool:
        return any(_holds_blocks(self._tree, found)
                   for found in self._tree.below(module))

    def _visit_row(self, row: nn.Module) -> None:
        run: list[nn.Module] = []
        for child in self._tree.children(row):
            if child in self._done:
                continue
            if row is self._tree.root and self._has_blocks(child):
                self.visit(child)  # A sequence around a model is no row.
                continue
            self._done.add(child)
            run.append(child)
        for at in range(0, len(run), self._together):
            self._add_row(run[at:at + self._together])

    def _add_row(self, several: list[nn.Module]) -> None:
        self.elements += several
        made = [_whole(self._tree, self._tree.names[one], one)
                for one in several]
        first = made[0]
        for more in made[1:]:
            first.triggers += more.triggers
            first.owners += more.owners
        if len(made) > 1:
            first.name += "+" + str(len(made))
        self.groups.append(first)


def _leaves(tree: _Tree) -> list[ModuleGroup]:
    """Modules with weights of their own. Children are included unless they are
    a row, since such a module (nn.MultiheadAttention) may use a child's weights
    without a call."""
    groups: list[ModuleGroup] = []
    done: set[nn.Module] = set()
    left = [tree.root]
    while left:
        module = left.pop()
        if module in done:
            continue
        done.add(module)
        name = tree.names[module] or "model"
        if tree.has_own(module):
            if not any(_is_row(tree, found) for found in tree.below(module)):
                groups.append(_whole(tree, name, module))
                done.update(tree.below(module))
                continue
            groups.append(ModuleGroup(name, [module], [module]))
        left += reversed(list(tree.children(module)))
    return _once(tree, groups)


def _named(tree: _Tree,
           groups: Mapping[str, Sequence[str]]) -> list[ModuleGroup]:
    """The caller's names: the innermost wins, and modules without a name are
    grouped by leaf."""
    by_name = {name: module for module, name in tree.names.items()}
    chosen: dict[nn.Module, str] = {}
    for group, names in groups.items():
        for name in [names] if isinstance(names, str) else names:
            if name not in by_name:
                raise InvalidArgument(
                    f'groups: "{group}" names the module "{name}", which is '
                    "not there; it has " + ", ".join(sorted(by_name)[1:20]))
            if by_name[name] in chosen:
                raise InvalidArgument(
                    f'groups: the module "{name}" is in "{group}" and in '
                    f'"{chosen[by_name[name]]}"')
            chosen[by_name[name]] = group
    return _chosen(tree, chosen)


def _called(tree: _Tree, rule: Callable[[str, nn.Module], Any]
            ) -> list[ModuleGroup]:
    chosen = {}
    for module, name in tree.names.items():
        group = rule(name, module)
        if group is None:
            continue
        if not isinstance(group, str):
            raise InvalidArgument(
                f'groups: the function gave {group!r} for "{name}"; it gives '
                "a group's name, or None")
        chosen[module] = group
    return _chosen(tree, chosen)


def _chosen(tree: _Tree, chosen: Mapping[nn.Module, str]) -> list[ModuleGroup]:
    groups: dict[str, ModuleGroup] = {}
    done: set[nn.Module] = set()
    left: list[tuple[nn.Module, str | None]] = [(tree.root, None)]
    while left:
        module, group = left.pop()
        if module in done:
            continue
        done.add(module)
        own = chosen.get(module)
        if own is not None:
            made = groups.setdefault(own, ModuleGroup(own))
            made.triggers += _triggers(tree, module)
            group = own
        if tree.has_own(module):
            name = group or tree.names[module] or "model"
            made = groups.setdefault(name, ModuleGroup(name))
            made.owners.append(module)
            if group is None:
                made.triggers += _triggers(tree, module)
        left += [(child, group)
                 for child in reversed(list(tree.children(module)))]
    return _once(tree, groups.values())


def _once(tree: _Tree, groups: Iterable[ModuleGroup]) -> list[ModuleGroup]:
    """Groups with weights: unique names, each owner in one group, and each
    owner below a trigger on every way from the root."""
    found, names = [], set()
    for group in _with_shared(tree, _first_owners(groups)):
        if not group.owners:
            continue
        while group.name in names:
            group.name += "'"
        names.add(group.name)
        triggers = {one for one in group.triggers
                    if is_called(one) or one is tree.root}
        for owner in group.owners:
            if tree.reached_without(owner, triggers):
                triggers.update(tree.callers(tree.shared_above(owner) or
                                             owner))
        group.triggers = [one for one in tree.names if one in triggers]
        found.append(group)
    return found


def _first_owners(groups: Iterable[ModuleGroup]) -> Iterator[ModuleGroup]:
    """A module in several groups stays in the first one."""
    placed: set[nn.Module] = set()
    for group in groups:
        group.owners = [owner for owner in dict.fromkeys(group.owners)
                        if owner not in placed]
        placed.update(group.owners)
        yield group


def _with_shared(tree: _Tree, groups: Iterable[ModuleGroup]
                 ) -> list[ModuleGroup]:
    """The groups; before each, as groups of their own, its modules that other
    groups' modules call too."""
    groups = list(groups)
    found = []
    for group in groups:
        own = set(group.triggers)
        apart: dict[nn.Module, ModuleGroup] = {}
        for owner in group.owners:
            top = tree.shared_above(owner)
            if top is None or not tree.reached_without(owner, own):
                continue
            others = {one for other in groups if other is not group
                      for one in other.triggers}
            if others.isdisjoint(tree.above(top)):
                continue
            apart.setdefault(top, ModuleGroup(
                tree.names[top], list(_triggers(tree, top)), shared=True)
            ).owners.append(owner)
        placed = {owner for one in apart.values() for owner in one.owners}
        group.owners = [one for one in group.owners if one not in placed]
        found += [*apart.values(), group]
    return found
