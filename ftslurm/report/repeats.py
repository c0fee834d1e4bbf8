"""Repeated failures: the same one in several rounds, always on one node, always on one rank (pure).

Administrators drain nodes and users inspect a rank's data because of these hints, so they must not be chance: a node or
rank is named only if its number of failures is unlikely, and never for a failure that several nodes had at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import comb
from typing import Any

from ftslurm.failures.causes import PRIMARY
from ftslurm.report.wording import brief, clip, count, names, ranges, safe

CHANCE = 0.25
"""No hint if the failures fall on one node (or rank) by chance with more than this probability."""
SHOWN_RANKS = 24

Dict = dict[str, Any]


def repeats(rounds: Sequence[Dict]) -> list[Dict]:
    """Return the repeated failures over the rounds (of all attempts), the strongest hint first.

    Args:
        rounds: as in the report.

    Returns:
        Dictionaries: ``kind``: "node" (it fails there), "rank" (it fails wherever it runs), "place" (one rank on one
        node, either of which may be the cause), "signature" (the same failure, wherever); ``rounds``: the
        numbers; ``of``: number of rounds that could have failed so; ``attempts``: in how many; ``rank``, ``node``: if
        part of the hint, else null; ``ranks``, ``nodes``, ``signature``; ``text``.
    """
    over = [entry for entry in rounds if entry["outcome"] != "running"]
    failed = [entry for entry in over if entry["first_failure"] is not None]
    found = _by_location(over, [entry for entry in failed if _of_one_place(entry)])
    by_signature: dict[str, list[Dict]] = defaultdict(list)
    for entry in failed:
        by_signature[entry["first_failure"]["signature"]].append(entry)
    for signature, group in by_signature.items():
        if len(group) > 1:
            found.append(_same(signature, group, len(over)))
    return found


def _of_one_place(entry: Dict) -> bool:
    """Whether one rank's or node's own failure ended the round, so that its location may matter."""
    failure = entry["first_failure"]
    if failure["role"] != PRIMARY or failure["restart"] == "pointless" or failure["hang"] is not None:
        return False
    if failure["node"] is None or len(failure["nodes"] or []) > 1:
        return False
    # Others with the same failure, or at the same time: all ranks have it, or the first one is unknown.
    shared = any(group["cause"] == failure["cause"] and group["role"] == PRIMARY for group in entry["groups"])
    return not shared and not entry["same_time"]


def _by_location(over: list[Dict], failed: list[Dict]) -> list[Dict]:
    by_node: dict[str, list[Dict]] = defaultdict(list)
    by_rank: dict[int, list[Dict]] = defaultdict(list)
    for entry in failed:
        failure = entry["first_failure"]
        by_node[failure["node"]].append(entry)
        if failure["rank"] is not None:
            by_rank[failure["rank"]].append(entry)
    found = []
    for node, group in by_node.items():
        there = [entry for entry in over if node in entry["nodes"]]
        # With one node there is no alternative.
        places = min(len(entry["nodes"]) for entry in group)
        if _unlikely(len(group), len(failed), places):
            found.append(_node(node, group, len(there)))
    for rank, group in by_rank.items():
        nodes = list(dict.fromkeys(entry["first_failure"]["node"] for entry in group))
        places = min(entry["world_size"] or 1 for entry in group)
        if _unlikely(len(group), len(failed), places) and (len(nodes) > 1 or not _has_node(found, nodes[0])):
            with_rank = [entry for entry in over if (entry["world_size"] or 0) > rank]
            found.append(_rank(rank, nodes, group, len(with_rank)))
    return sorted(found, key=lambda each: -len(each["rounds"]))


def _unlikely(hits: int, failures: int, places: int) -> bool:
    """Whether `hits` of `failures` at one of `places` is hardly chance (by an upper bound of its probability)."""
    if hits < 2 or places < 2:
        return False
    return comb(failures, hits) * float(places) ** (1 - hits) <= CHANCE


def _has_node(found: list[Dict], node: str) -> bool:
    return any(each["node"] == node for each in found)


def _node(node: str, group: list[Dict], of: int) -> Dict:
    ranks = sorted({e["first_failure"]["rank"] for e in group if e["first_failure"]["rank"] is not None})
    times = f"in {len(group)} of {count(of, 'round')}{_over_attempts(group)}"
    if len(ranks) == 1 and all(entry["first_failure"]["rank"] is not None for entry in group):
        text = f"rank {ranks[0]} on {safe(node)} failed {times}: suspect the node, or what only this rank does"
        return _repeat("place", group, of, text, node=node, rank=ranks[0])
    if not ranks:
        return _repeat("node", group, of, f"{safe(node)} was lost {times}: suspect the node", node=node)
    which = f"ranks {clip(ranges(ranks), SHOWN_RANKS)} on {safe(node)}"
    return _repeat("node", group, of, f"{which} failed first {times}: suspect the node", node=node)


def _rank(rank: int, nodes: list[str], group: list[Dict], of: int) -> Dict:
    times = f"{len(group)} of {count(of, 'round')}{_over_attempts(group)}"
    if len(nodes) == 1:
        text = f"rank {rank} on {safe(nodes[0])} failed in {times}: suspect the node, or what only this rank does"
        return _repeat("place", group, of, text, node=nodes[0], rank=rank)
    where = f"on {names(nodes)}" if len(nodes) <= 3 else f"on {len(nodes)} nodes"
    text = f"rank {rank} fails wherever it runs ({where}, in {times}): suspect its data or the code"
    return _repeat("rank", group, of, text, rank=rank)


def _same(signature: str, group: list[Dict], of: int) -> Dict:
    last = group[-1]["first_failure"]
    numbers = clip(ranges(entry["round"] for entry in group), SHOWN_RANKS)
    what = clip(brief(last["what"]) or last["title"] or "", 60)
    text = f"the same failure in rounds {numbers}{_over_attempts(group)}: {what}"
    return _repeat("signature", group, of, text) | {"signature": signature}


def _over_attempts(group: list[Dict]) -> str:
    attempts = len({entry["attempt"] for entry in group})
    return f", over {attempts} attempts" if attempts > 1 else ""


def _repeat(
    kind: str, group: list[Dict], of: int, text: str, *, node: str | None = None, rank: int | None = None
) -> Dict:
    failures = [entry["first_failure"] for entry in group]
    signatures = {failure["signature"] for failure in failures}
    return {
        "kind": kind,
        "rounds": [entry["round"] for entry in group],
        "of": of,
        "attempts": len({entry["attempt"] for entry in group}),
        "rank": rank,
        "node": node,
        "ranks": ranges(f["rank"] for f in failures if f["rank"] is not None),
        "nodes": list(dict.fromkeys(f["node"] for f in failures if f["node"] is not None))[:8],
        "signature": signatures.pop() if len(signatures) == 1 else None,
        "text": text,
    }
