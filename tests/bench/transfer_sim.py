#!/usr/bin/env python3
"""How long until the last of many nodes has a model: a simulation.

    transfer_sim.py [--nodes 1,10,100,1000] [--gib 140] ...

Nodes that lack a model get it, group by group, from one that has it. Each node
sends over one link and receives over one, both as fast as the other; a group
holds both for its bytes over the rate, and is there one latency and one
overhead later (what hoistd does for a group: a request, a checksum, its
books). A node sends on a group once it has all of it. Who sends to whom:

    all    the source sends to every node, each group to all in turn
    chain  each node sends to the next
    tree   each node sends to two others, each group to one and then the other

The window is the number of groups that a sender may have sent to a receiver
and not heard of; its word takes one latency. It assumes links that do not
meet anywhere else, equal groups and nodes, and nobody who fails.

Beside each time is that of a closed formula, which is exact under the same
assumptions.
"""

import argparse
import dataclasses
import heapq
import sys

GIB = 1 << 30
SHAPES = ("all", "chain", "tree")


@dataclasses.dataclass(frozen=True)
class Net:
    """Of each link and node: bytes a second, seconds, seconds a group."""

    rate: float
    latency: float
    overhead: float
    window: int

    def __post_init__(self):
        if not (self.rate > 0 and self.latency >= 0 and self.overhead >= 0):
            raise ValueError("the rate must be above 0, and latency and "
                             "overhead no less than 0")
        if self.window < 1:
            raise ValueError("the window must be a group or more")


def check_sizes(nodes, groups, group_bytes):
    if nodes < 1 or groups < 1 or group_bytes <= 0:
        raise ValueError("a transfer needs a node, a group and a byte or more")


def children(shape, node, nodes):
    """To whom a node sends; 0 is the source, others are 1 to `nodes`."""
    if shape == "all":
        return range(1, nodes + 1) if node == 0 else ()
    if shape == "chain":
        return range(node + 1, min(node + 2, nodes + 1))
    if shape == "tree":
        # The source's only child is 1, whose are 2 and 3, and so on.
        return ([1] if node == 0 else
                [to for to in (2 * node, 2 * node + 1) if to <= nodes])
    raise ValueError(f'there is no shape "{shape}"; there are '
                     + ", ".join(SHAPES))


class Sender:
    """A node's link out: which group it sends next, and to whom."""

    def __init__(self, to, has):
        self.to = to
        self.has = has  # Groups that it has in full; they come in order.
        self.next = 0  # Of the sequence: group 0 to each, group 1 to each.
        self.busy = False
        self.unheard = dict.fromkeys(to, 0)

    def takes(self, groups, window):
        """(receiver, group) that may be sent now, or None."""
        group, turn = divmod(self.next, len(self.to)) if self.to else (0, 0)
        if (self.busy or not self.to or group >= min(self.has, groups)
                or self.unheard[self.to[turn]] >= window):
            return None
        return self.to[turn], group


def simulate(shape, nodes, groups, group_bytes, net):
    """Seconds until the last node has the last group, event by event."""
    check_sizes(nodes, groups, group_bytes)
    senders = [Sender(list(children(shape, node, nodes)),
                      groups if node == 0 else 0)
               for node in range(nodes + 1)]
    wire = group_bytes / net.rate
    events, count, last = [], 0, 0.0

    def post(when, kind, sender, receiver):
        nonlocal count
        count += 1
        heapq.heappush(events, (when, count, kind, sender, receiver))

    def go_on(sender, now):
        chosen = senders[sender].takes(groups, net.window)
        if chosen is None:
            return
        one = senders[sender]
        one.busy = True
        one.next += 1
        one.unheard[chosen[0]] += 1
        post(now + wire, "sent", sender, chosen[0])

    go_on(0, 0.0)
    while events:
        now, _, kind, sender, receiver = heapq.heappop(events)
        if kind == "sent":
            senders[sender].busy = False
            post(now + net.latency + net.overhead, "there", sender, receiver)
        elif kind == "there":
            senders[receiver].has += 1
            last = now
            go_on(receiver, now)
            post(now + net.latency, "heard", sender, receiver)
        else:
            senders[sender].unheard[receiver] -= 1
        go_on(sender, now)
    return last


def steady(groups, cycle, round_trip, window):
    """When the last group sets out: a sender takes `cycle` for a group, and
    after `window` of them waits for word of the first."""
    whole, left = divmod(groups - 1, window)
    return max((groups - 1) * cycle, whole * round_trip + left * cycle)


def formula(shape, nodes, groups, group_bytes, net):
    """The same in closed form: when the last group sets out, and its way.

    With s a group's seconds on a link and d what comes after, the slowest
    sender takes a group each N s (all), s (chain), or 2 s (tree). The way of a
    group is N s + d, or N (s + d), or, in a tree, s + d a level and s more
    where it is a sender's second.
    """
    check_sizes(nodes, groups, group_bytes)
    wire = group_bytes / net.rate
    after = net.latency + net.overhead
    if shape == "all":
        cycle, way = nodes * wire, nodes * wire + after
    elif shape == "chain":
        cycle, way = wire, nodes * (wire + after)
    elif shape == "tree":
        # A node's number in binary, but for the first 1, is its way: a 1 is a
        # sender's second receiver.
        cycle = wire if nodes < 3 else 2 * wire
        way = max(node.bit_length() * (wire + after)
                  + (bin(node).count("1") - 1) * wire
                  for node in range(1, nodes + 1))
    else:
        raise ValueError(f'there is no shape "{shape}"; there are '
                         + ", ".join(SHAPES))
    return steady(groups, cycle, wire + after + net.latency, net.window) + way


def table(arguments, out):
    net = Net(arguments.gbit * 1e9 / 8, arguments.latency_us / 1e6,
              arguments.overhead_us / 1e6, arguments.window)
    groups = arguments.groups
    group_bytes = arguments.gib * GIB / groups
    print(f"{arguments.gib:g} GiB in {groups} groups of "
          f"{group_bytes / 2**20:.0f} MiB; links of {arguments.gbit:g} Gbit/s, "
          f"{arguments.latency_us:g} us; {arguments.overhead_us:g} us a group; "
          f"a window of {net.window}", file=out)
    print("\n| nodes | shape | to the last node | formula | nodes a minute |",
          file=out)
    print("| --- | --- | --- | --- | --- |", file=out)
    for nodes in arguments.nodes:
        for shape in SHAPES:
            took = simulate(shape, nodes, groups, group_bytes, net)
            said = formula(shape, nodes, groups, group_bytes, net)
            print(f"| {nodes:,} | {shape} | {took:,.2f} s | {said:,.2f} s | "
                  f"{nodes / took * 60:,.1f} |", file=out)


def numbers(text):
    return [int(word) for word in text.split(",")]


def main(words, out=sys.stdout):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=numbers, default=[1, 10, 100, 1000],
                        help="that lack the model (default: 1,10,100,1000)")
    parser.add_argument("--gib", type=float, default=140,
                        help="of the model (default: 140)")
    parser.add_argument("--groups", type=int, default=80,
                        help="that it is in (default: 80)")
    parser.add_argument("--gbit", type=float, default=100,
                        help="a second, of each link (default: 100)")
    parser.add_argument("--latency-us", type=float, default=50,
                        help="one way (default: 50)")
    parser.add_argument("--overhead-us", type=float, default=2000,
                        help="a group at each node (default: 2000)")
    parser.add_argument("--window", type=int, default=4,
                        help="groups sent and not heard of (default: 4)")
    arguments = parser.parse_args(words)
    try:
        table(arguments, out)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
