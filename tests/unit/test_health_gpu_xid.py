"""What Xids mean, where they are in a kernel's log, and what the watcher prints of one."""

from __future__ import annotations

import pytest

from ftslurm.health import xid
from ftslurm.health.xid_catalogue import MEANINGS, bus_key, meaning, xid_in
from ftslurm.records.health import FAIL, OK, WARN


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 158, 171])
def test_what_nvidia_wants_a_reset_or_a_restart_for_fails_the_node(number: int) -> None:
    assert meaning(number).status == FAIL


@pytest.mark.parametrize("number", [32, 63, 92, 94, 121, 156, 157])
def test_what_was_repaired_or_contained_is_a_warning(number: int) -> None:
    assert meaning(number).status == WARN


@pytest.mark.parametrize("number", [11, 13, 31, 43, 45, 69, 137])
def test_what_a_program_did_is_not_the_nodes_fault(number: int) -> None:
    assert meaning(number).status == OK


def test_an_unknown_number_is_a_warning() -> None:
    assert meaning(999).status == WARN
    assert "unknown" in meaning(999).text


def test_all_texts_fit_into_a_line() -> None:
    for known in MEANINGS.values():
        assert known.text == known.text.strip().rstrip(".")
        assert len(known.text) < 90
        assert known.advice.endswith(".")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)", FAIL),
        ("RLW_REMAP Nonfatal XC1 i0 Link 00 (0x00000041)", WARN),
        ("SAW_MVB Non-fatal XC0 i0 Link 02 (0x1)", WARN),
        ("", WARN),
    ],
)
def test_the_text_has_whether_a_new_nvlink_error_is_fatal(text: str, status: str) -> None:
    assert meaning(149, text).status == status


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", FAIL),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", FAIL),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", FAIL),
        ("GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)", WARN),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", OK),
        ("", WARN),
    ],
)
def test_the_text_has_the_recovery_that_the_driver_requests(text: str, status: str) -> None:
    assert meaning(154, text).status == status


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6)",
            ("0009:01:00.0", 149, FAIL),
        ),
        (
            "NVRM: Xid (PCI:0000:1b:00): 79, pid=42, name=python, GPU has fallen off the bus.",
            ("0000:1b:00.0", 79, FAIL),
        ),
        ("NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120", ("0000:01:00.0", 31, OK)),
        ("NVRM: Xid (PCI:0000:3b:00.0): 48", ("0000:3b:00.0", 48, FAIL)),
        ("NVRM: Xid (PCI:0000:66:00): abc, pid=2280636", None),
        ("NVRM: loading NVIDIA UNIX kernel module", None),
        ("x NVRM: Xid (PCI:0000:3b:00): 79", None),
    ],
)
def test_a_record_of_the_kernels_log_is_an_xid_only_from_its_start(
    line: str, expected: tuple[str, int, str] | None
) -> None:
    found = xid_in(line)
    assert (found and (found.bus_id, found.xid, found.meaning.status)) == expected


def test_a_programs_name_makes_no_error_fatal() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 149, pid=42, name=A Fatal XC0, x, NETIR_LINK_EVT  Nonfatal XC0 i0 Link 01"
    found = xid_in(line)
    assert found is not None and found.meaning.status == WARN


def test_addresses_of_all_kinds_are_the_same() -> None:
    for known in ("0000:1b:00.0", "00000000:1B:00.0", "0000:1b:00", "1b:00.0"):
        assert bus_key(known) == "0000:1b:00.0"
    assert bus_key("rubbish") == "rubbish"


def test_an_event_is_a_line_with_its_meaning() -> None:
    assert xid.line(xid.XID, 79, 3, "0000:1b:00.0", 17) == {
        "time_ns": 17,
        "gpu": 3,
        "bus_id": "0000:1b:00.0",
        "xid": 79,
        "text": "the GPU has fallen off the bus",
        "status": FAIL,
        "advice": "Have the node drained and power-cycled.",
    }
    assert xid.line(xid.DOUBLE_BIT, 0, None, None, 17)["status"] == FAIL
