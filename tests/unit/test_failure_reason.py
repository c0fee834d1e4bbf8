"""Which exception of a chain is judged, and by what two failures are compared."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from ftslurm.dataclasses import replace
from ftslurm.failures.exceptions import describe
from ftslurm.failures.reason import is_bare_exit, links, reason
from ftslurm.failures.record import from_exception
from ftslurm.failures.retryability import retryability
from ftslurm.failures.signature import LINES, of_output, signature
from ftslurm.failures.traceback_text import tracebacks
from ftslurm.records.error import ErrorRecord, ExceptionRecord, error_file


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def recorded(function: Callable[[], object]) -> ExceptionRecord:
    error = raised(function)
    return describe(error, error.__traceback__)


def record_of(function: Callable[[], object]) -> ErrorRecord:
    error = raised(function)
    return from_exception(error, error.__traceback__, ErrorRecord("exception", 5 * 10**9), None)


def work(message: str = "boom") -> None:
    raise ValueError(message)


def exits_in_handler(code: object = 1) -> None:
    try:
        work()
    except ValueError:
        sys.exit(code)  # type: ignore[arg-type]


def exits_from(cause: str = "boom") -> None:
    try:
        work(cause)
    except ValueError as error:
        raise SystemExit(1) from error


def exits_from_none() -> None:
    try:
        work()
    except ValueError:
        raise SystemExit(1) from None


def exits_twice() -> None:
    try:
        exits_in_handler()
    except SystemExit:
        sys.exit(3)


def exits_further_down() -> None:
    def program() -> None:
        sys.exit(1)

    try:
        work()
    except ValueError:
        program()


def exits_alone() -> None:
    sys.exit(1)


@pytest.mark.parametrize("function", [exits_in_handler, exits_from, exits_from_none, exits_twice])
def test_what_an_exit_hides_is_judged(function: Callable[[], object]) -> None:
    assert reason(recorded(function)).type == "ValueError"


@pytest.mark.parametrize("function", [exits_alone, exits_further_down, work])
def test_an_exception_that_hides_none_is_judged_itself(function: Callable[[], object]) -> None:
    exception = recorded(function)
    assert reason(exception) is exception


def test_a_refused_command_line_is_judged_itself() -> None:
    import argparse

    def refuse() -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float)
        parser.parse_args(["--lr", "high"])

    assert reason(recorded(refuse)).type == "SystemExit"


def test_the_record_of_a_hidden_exception_is_of_kind_exception_and_its_message_begins_with_it() -> None:
    record = record_of(exits_in_handler)
    assert record.kind == "exception"
    assert record.exit_code == error_file(record)["message"]["errorCode"] == 1
    assert record.message.startswith("ValueError: boom; then SystemExit: 1 (at test_failure_reason.py:")


@pytest.mark.parametrize(("code", "bare"), [(1, True), ("", True), ("no data", False), (-9, True)])
def test_an_exit_with_only_a_number_is_bare(code: object, bare: bool) -> None:
    assert is_bare_exit(recorded(lambda: sys.exit(code))) is bare  # type: ignore[arg-type]


def test_all_links_of_a_chain_are_given() -> None:
    def fail() -> None:
        try:
            exits_from()
        except SystemExit:
            raise KeyError("x")  # noqa: B904

    assert [link.type for link in links(recorded(fail))] == ["KeyError", "SystemExit", "ValueError"]


# The retryability of what is hidden


def hiding(error: BaseException, behind: bool = False) -> ErrorRecord:
    """The record of a program that ends itself by code 1 because of an error, or of what it raised from that one."""

    def end() -> None:
        try:
            if behind:
                try:
                    raise error
                except BaseException as first:
                    raise RuntimeError("the step failed") from first
            raise error
        except Exception:
            sys.exit(1)

    return record_of(end)


def uncaught(error: BaseException) -> ErrorRecord:
    def end() -> None:
        raise error

    return replace(record_of(end), exit_code=1)


class DistBackendError(RuntimeError):
    """Stands in for torch's."""


ERRORS = [
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    OSError(113, "No route to host"),
    OSError(5, "Input/output error"),
    OSError(2, "No such file or directory"),
    ValueError("boom"),
    ModuleNotFoundError("No module named 'flash'"),
    SyntaxError("invalid syntax"),
    DistBackendError("NCCL error"),
    RuntimeError("[../gloo/pair.cc:547] Connection closed by peer"),
    ConnectionRefusedError(111, "Connection refused"),
    RuntimeError("Caught OSError in DataLoader worker process 0.\nTraceback\nOSError: [Errno 5] Input/output error"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{type(error).__name__} {error}"[:40])
def test_a_hidden_failure_is_as_retryable_as_it_would_be_uncaught(error: BaseException) -> None:
    hidden, plain = retryability(hiding(error), 3.0), retryability(uncaught(error), 3.0)
    # Where in the code it happened is no part of this comparison.
    assert {**hidden, "signature": None} == {**plain, "signature": None}
    assert (hidden["signature"] is None) == (plain["signature"] is None)


@pytest.mark.parametrize(("number", "blame"), [(0, "node"), (1, "perhaps"), (2, "perhaps"), (3, "perhaps"), (5, None)])
def test_a_node_is_blamed_for_what_stands_deeper_in_the_chain_too(number: int, blame: str | None) -> None:
    assert retryability(hiding(ERRORS[number], behind=True), 3.0)["blame"] == blame


def test_a_rank_that_was_let_down_and_ends_itself_has_not_failed_by_itself() -> None:
    assert retryability(hiding(DistBackendError("NCCL error"), behind=True), 3.0)["at_start"] is False


# By what failures are compared


def test_hidden_exceptions_are_compared_by_type_message_and_place_but_not_by_numbers() -> None:
    one, same, other = (signature(record_of(lambda text=text: exits_from(text))) for text in ("row 7", "row 9", "lost"))
    assert one is not None
    assert one == same
    assert one != other


def test_a_bare_exit_code_is_nothing_to_compare() -> None:
    assert signature(record_of(exits_alone)) is None
    assert signature(record_of(lambda: sys.exit("no data"))) is not None


LOGGED = """\
2026-11-21 10:00:01,123 loading shard 17 from /tmp/tmpab12cd_x
Traceback (most recent call last):
  File "train.py", line 12, in <module>
    main()
RuntimeError: no lease of 0x7f3a12 for 5f3a9c1e-77aa
"""


@pytest.mark.parametrize(
    "other",
    [
        LOGGED.replace("10:00:01,123", "11:42:07,004").replace("17", "9"),
        LOGGED.replace("tmpab12cd_x", "tmpzz99__aa").replace("0x7f3a12", "0xdead").replace("5f3a9c1e", "00bb11cc"),
        LOGGED.replace("\n", "\r\n"),
        LOGGED + "\n\n",
        LOGGED.replace("RuntimeError", "\x1b[31mRuntimeError").replace("77aa", "77aa\x1b[0m"),
        LOGGED.replace("Traceback", " 3%| |\r 99%|#|\rTraceback"),
    ],
    ids=["times and numbers", "names and addresses", "line ends", "empty lines", "colours", "a progress bar"],
)
def test_output_that_differs_in_what_changes_from_run_to_run_is_the_same(other: str) -> None:
    assert of_output(LOGGED) == of_output(other) is not None


def test_output_with_another_last_line_is_another_failure() -> None:
    assert of_output(LOGGED) != of_output(LOGGED.replace("no lease", "no route"))


def test_only_the_last_lines_of_the_output_count() -> None:
    end = "".join(f"line {'abcdefghij'[i % 10]}\n" for i in range(LINES))
    assert of_output("warming up\n" + end) == of_output("resuming\n" + end)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "\n \n",
        LOGGED + "[rank3]: torch.distributed.DistBackendError: NCCL error\n",
        LOGGED + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer\n",
    ],
)
def test_output_that_is_empty_or_about_another_rank_proves_nothing(output: str) -> None:
    assert of_output(output) is None


class Archive:
    """A file whose end fails, too, as that of torch.save on a full disk."""

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *raised: object) -> None:
        raise RuntimeError("unexpected pos 832 vs 726")


def save() -> None:
    with Archive():
        raise OSError(28, "No space left on device")


def checkpoint() -> None:
    save()


def test_a_failure_that_a_cleanup_hides_has_the_places_of_its_callers() -> None:
    found = reason(recorded(checkpoint))
    assert found.message == "[Errno 28] No space left on device"
    assert [frame.function for frame in found.frames][-2:] == ["checkpoint", "save"]


def test_a_cleanup_that_a_traceback_in_a_text_names_hides_the_failure_before_it() -> None:
    text = """\
Traceback (most recent call last):
  File "/home/ann/train.py", line 31, in harm
    write(batch)
  File "/home/ann/train.py", line 12, in write
    raise ValueError("no label")
ValueError: no label

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/ann/train.py", line 33, in harm
    file.close()
  File "/home/ann/train.py", line 18, in close
    raise OSError("cannot close")
OSError: cannot close
"""
    (found,) = tracebacks(text.split("\n"))
    assert (reason(found.exception).type, reason(found.exception).message) == ("ValueError", "no label")
