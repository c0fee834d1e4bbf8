"""A look at one or many nodes as text: worst first, outliers before what all have, one line for each check."""

from __future__ import annotations

import json

import pytest

from ftslurm.health.cluster_view import ClusterView, lines
from ftslurm.health.table import ALIKE, brief, counted, listing, render, to_document
from ftslurm.health.verdict import Finding, NodeFinding, Verdict, read_verdict, verdict_json
from ftslurm.records.health import FAIL, OK, UNKNOWN, WARN


def fine(check: str, summary: str = "all well") -> Verdict:
    return Verdict(check, OK, summary, (), 0.1, {"x": 1})


def absent(check: str, summary: str = "no NVIDIA driver here") -> Verdict:
    return Verdict(check, OK, summary, (), 0.1)


def bad(
    check: str, status: str, text: str, subject: str = "", advice: str = "Mend it.", summary: str = "bad"
) -> Verdict:
    return Verdict(check, status, summary, (Finding(status, subject, text, advice),), 0.1, {"x": 1})


ECC = bad("gpu-ecc", FAIL, "2 uncorrected errors", "GPU 3", "Reset the GPU.", "8 GPUs, 2 uncorrected errors")


def test_a_node_alone_is_reported_worst_first_with_findings_and_advice_beneath() -> None:
    found = [
        fine("nic-ports", "8 ports at 400 Gb/s"),
        bad("host-load", WARN, "load 700"),
        ECC,
        absent("amd-ras", "none"),
    ]
    text = render(ClusterView(("n17",), {"n17": found}), 0.84)
    assert text.splitlines() == [
        "ftslurm health: n17: 1 FAIL, 1 warn (4 checks, 840 ms)",
        "  FAIL     gpu-ecc    8 GPUs, 2 uncorrected errors",
        "           FAIL: GPU 3: 2 uncorrected errors",
        "           -> Reset the GPU.",
        "  warn     host-load  bad",
        "           warn: load 700",
        "           -> Mend it.",
        "  ok       nic-ports  8 ports at 400 Gb/s",
        "  -        none: amd-ras",
    ]


def test_a_finding_equal_to_the_summary_is_shown_once() -> None:
    text = render(ClusterView(("n1",), {"n1": [bad("gpu-ecc", UNKNOWN, "no rights", summary="no rights")]}), 0)
    assert text.count("no rights") == 1 and "-> Mend it." in text


def test_what_there_is_nothing_of_is_one_line_for_each_reason() -> None:
    text = render(
        ClusterView(("n1",), {"n1": [absent("gpu-ecc"), absent("gpu-count"), absent("amd-ras", "no AMD")]}), 0
    )
    assert "  -        no NVIDIA driver here: gpu-ecc, gpu-count\n  -        no AMD: amd-ras\n" in text
    assert text.startswith("ftslurm health: n1: fine (3 checks")


def many(count: int, **odd: list[Verdict]) -> ClusterView:
    nodes = tuple(f"n{i}" for i in range(1, count + 1))
    return ClusterView(nodes, {node: odd.get(node, [fine("gpu-ecc", "8 GPUs")]) for node in nodes})


def test_of_many_nodes_the_outlier_is_on_top_and_what_all_have_comes_after() -> None:
    warning = bad("host-governor", WARN, "governor powersave")
    sight = ClusterView(
        ("n1", "n2", "n3"),
        {n: [ECC if n == "n2" else fine("gpu-ecc", "8 GPUs"), warning] for n in ("n1", "n2", "n3")},
        outliers=(NodeFinding("nic-ports", ("n3",), Finding(WARN, "", "7 NICs, 8 on 2 of 3 nodes", "Look.")),),
    )
    head, *rest = render(sight, 1.25).splitlines()
    assert head == "ftslurm health: 3 nodes: FAIL on n2; warn on n1, n3 (1.25 s)"
    assert rest[0] == "  FAIL     n2: gpu-ecc: GPU 3: 2 uncorrected errors"
    assert rest[2] == "  warn     n3: nic-ports: 7 NICs, 8 on 2 of 3 nodes"
    assert rest[4] == "  warn     all 3 nodes: host-governor: governor powersave"
    assert rest[6] == "  FAIL     gpu-ecc        2 nodes: 8 GPUs; n2: 8 GPUs, 2 uncorrected errors"
    assert rest[7] == "  warn     host-governor  bad"


def test_a_thousand_nodes_that_are_fine_are_a_few_lines() -> None:
    text = render(many(1000), 2.0)
    assert text.splitlines() == [
        "ftslurm health: 1000 nodes: all fine (2 s)",
        "  ok       gpu-ecc  8 GPUs",
    ]


def test_the_same_on_many_nodes_is_reported_once_though_each_names_itself() -> None:
    sight = many(50, **{f"n{i}": [bad("names", WARN, f"own name n{i} does not resolve")] for i in range(1, 50)})
    (finding,) = sight.findings
    assert finding.finding.text == "own name NODE does not resolve" and len(finding.nodes) == 49
    single = many(3, n2=[bad("names", WARN, "own name n2 does not resolve, n21 does")])
    assert single.findings[0].finding.text == "own name n2 does not resolve, n21 does"


def test_a_name_is_not_cut_out_of_a_longer_one() -> None:
    sight = many(3, **{f"n{i}": [bad("names", WARN, f"n{i} and n{i}5 and xn{i}")] for i in (1, 2)})
    assert [one.finding.text for one in sight.findings] == ["n1 and n15 and xn1", "n2 and n25 and xn2"]


def test_of_many_different_findings_of_one_check_some_are_reported_and_the_rest_is_counted() -> None:
    sight = many(20, **{f"n{i}": [bad("disk", WARN, f"{i} % full")] for i in range(1, 21)})
    text = render(sight, 0)
    assert text.count("% full") == ALIKE
    assert f"and {20 - ALIKE} more of disk on other nodes (--json has them all)" in text


def test_a_node_without_a_result_is_a_failure_that_names_it() -> None:
    sight = ClusterView(("n1", "n2"), {"n1": [fine("gpu-ecc")]}, {"n2": "did not join in /shared within 30 s"})
    text = render(sight, 30)
    assert sight.status == FAIL
    assert text.startswith("ftslurm health: 2 nodes: FAIL on n2; 1 fine")
    assert "  FAIL     n2: meet: did not join in /shared within 30 s" in text
    assert "srun -w n2 ftslurm health" in text


def test_processes_that_hang_in_the_kernel_are_reported_with_their_pids() -> None:
    text = render(ClusterView(("n1",), {"n1": [fine("gpu-ecc")]}, stuck={"n1": (41, 42)}), 0)
    assert "n1: 2 processes of checks hang in its kernel and cannot be killed: pid 41, 42" in text


def test_a_check_whose_figures_differ_everywhere_is_one_line_with_the_worst_in_front() -> None:
    sight = many(9, **{f"n{i}": [fine("memory", f"{i} GiB free")] for i in range(1, 9)}, n9=[bad("memory", WARN, "x")])
    (line,) = lines(sight)
    assert (line.node, line.count, line.more) == ("n9", 1, 6)
    assert "  warn     memory  n9: bad; n1: 1 GiB free; n2: 2 GiB free and 6 nodes more" in render(sight, 0)


def test_nothing_in_a_table_can_act_on_a_terminal() -> None:
    text = render(ClusterView(("n1",), {"n1": [bad("own", WARN, "a\x1b]0;x\x07b\rc\nd", summary="\x1b[31mred")]}), 0)
    assert "\x1b" not in text and "\r" not in text


def test_json_has_all_facts_and_findings() -> None:
    document = json.loads(to_document(many(2, n2=[ECC]), 1.0))
    assert (document["status"], document["expected"]) == (FAIL, ["n1", "n2"])
    assert document["findings"][0]["nodes"] == ["n2"] and document["findings"][0]["subject"] == "GPU 3"
    assert document["nodes"]["n1"]["verdicts"][0]["facts"] == {"x": 1}


def test_a_verdict_comes_back_from_json_as_it_was() -> None:
    back = read_verdict(json.loads(json.dumps(verdict_json(ECC))))
    assert back == ECC and back.facts == ECC.facts


@pytest.mark.parametrize(
    "change",
    [
        {"status": "great"},
        {"findings": [{"status": "fail"}]},
        {"findings": [{"status": "x", "subject": "", "text": "", "advice": ""}]},
        {"findings": None},
        {"took_s": "soon"},
        {"took_s": None},
    ],
)
def test_what_is_no_verdict_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        read_verdict({**verdict_json(ECC), **change})


def test_one_line_has_the_worst_and_the_counts() -> None:
    found = [fine("a"), bad("b", WARN, "hot", "GPU 1"), ECC]
    assert brief(found) == "gpu-ecc: GPU 3: 2 uncorrected errors"
    assert counted(found, (FAIL, WARN)) == "1 FAIL, 1 warn"
    assert brief([fine("a")]) == "" and counted([fine("a")], (FAIL, WARN)) == ""


def test_the_list_of_checks_has_their_sets_and_subjects() -> None:
    from ftslurm.health.catalog import builtin

    text = listing(builtin())
    assert len(text.splitlines()) == len(builtin())
    assert listing([]) == ""
