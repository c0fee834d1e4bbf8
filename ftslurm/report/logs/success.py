"""Lines by which a program says that it has done its work, that it begins again, or that it works (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.pattern import pattern
from ftslurm.report.logs.lines import GAP, Line
from ftslurm.report.logs.noise import is_aftermath

_WORK = (
    r"(?:pre-?)?(?:training|finetuning|fine-tuning|optimi[sz]ation|run|job|program|experiment|fit|main|script|steps"
    r"|epochs|batches)"
)
_COMPLETED = pattern(
    r"(?i)(?:[^A-Za-z]{0,60}|.{0,80}\b(?:INFO|NOTICE|SUCCESS)\b[^A-Za-z]{0,8}(?:[\w.:-]{1,60} ?[-:|\]]+ )?)"
    r"(?:rank ?\d+(?:/\d+)?[\s:|\]]*)?(?:attempt ?\d+[\s:|\]]*)?"
    rf"(?:(?:all|the|whole) )?(?:{_WORK} )?(?:loop |is |has |was |have )?(?:been )?(?:successfully |fully )?"
    r"(?:completed?|finished|done|succeeded|all done)\b(?P<rest>.*)"
)
_ONLY_A_PART = pattern(
    r"(?i)error|fail|abort|(?:code|status)\W{1,3}[1-9]|\b(?:step|epoch|iter\w*|load\w*|warm-?up|validation|init\w*"
    r"|eval\w*|download\w*|compil\w*|preprocess\w*|tokeni\w*|build\w*|setup)\b"
)
_AGAIN = pattern(
    r"(?i)\b(?:resum(?:ing|ed)|restor(?:ing|ed)|restart(?:ing|ed)|continuing|starting) (?:\w+ ){0,3}"
    r"(?:from|at|training)\b"
    r"|\bload(?:ing|ed) (?:\w+ ){0,2}(?:checkpoint|modules?)\b|\battempt \d|\bSLURM_RESTART_COUNT\W{0,2}[1-9]"
    r"|\brestarted by\b|\brestart (?:count|number|#)"
)
# A job's row of sacct, not a step's, in columns or with bars.
_ACCOUNTED = pattern(
    r"\s*(?P<id>\d{1,12}(?:_\d{1,6})?)[ |]+(?:[^|\s]{1,80}[ |]+){0,8}"
    r"(?P<state>COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL|OUT_OF_ME\w{0,4}|PREEMPTED|REQUEUED|DEADLINE|BOOT_FAIL)\b"
    r"[^|]{0,20}[ |]+(?P<code>\d{1,3}:\d{1,3})\b"
)
_SUCCESSFULLY = pattern(
    r"(?i)\b(?:job|run|training) (?:\w+ )?(?:completed|finished|ended) successfully(?:\W*$| (?:at|in|after) )"
)
_TRAINED = pattern(r"(?i)\b(?:pre-?)?(?:training|trained|finetuning|fine-tuning|optimi[sz]ation|fit)\b")
_WORKS = pattern(r"(?i)(?<!prior )(?<!producing )\b(?:step|epoch|iter(?:ation)?|loss|it/s)\b(?!\.c)")
_STEP = pattern(r"(?i)\b(?:steps?|iter(?:ation)?s?|batch)\b\W{0,4}(\d{1,12})\b|\b(\d{1,12})/ ?\d{1,12}\b")
_ZERO = pattern(
    r"(?i)\b(?:exit(?:ed|ing)?|finished|ended|return(?:ed)?|rc|status)\b(?: with)?(?: exit)?(?: (?:code"
    r"|status))?\W{0,3}0\W*$"
)
_TESTS = pattern(r"=* ?(?P<what>\d+ (?:passed|xfailed|skipped)\b[\w ,]{0,120}) in [\d.]+s(?: \([\d:]+\))? ?=*")
_LAUNCHED = pattern(r"\[launch\.py:\d+:\w+\] Process \d+ exits successfully\.?$")  # of DeepSpeed
_FITTED = pattern(r"`?Trainer\.fit`? stopped: `max_(?:steps|epochs|time)=\S{1,40} reached")  # of Lightning
_METRICS = pattern(r"\s*train_runtime\s+=\s|\{'train_runtime': |\*{5} train metrics \*{5}")  # of transformers' Trainer
_SAVED = pattern(r"(?i)\b(?:saved|uploaded|synced|wrote|written)\b(?!.{0,80}\b(?:error|fail))")
_RESULTS = pattern(
    r"(?i)\b(?:results?|predictions?|metrics|scores?|summary)\b.{0,40}\b(?:saved|written)\b"
    r"|\b(?:saved|wrote)\b.{0,20}\b(?:results?|predictions?|metrics|scores?|summary|(?:best|final) model"
    r"|(?:best|final) checkpoint)\b"
    r"|\b(?:saved|wrote|written)\b.{0,80}(?<![a-z])(?:results?|predictions?|metrics|scores?)\.\w"
    r"|\b(?:results?|metrics|scores?)\b\W{1,3}\{"
)
LAST_CHARACTERS = 80
TAIL = 12
"""Lines at the end of a log in which a statement of success is sought."""


def says_completed(text: str) -> bool:
    """Whether a program says by this line that it has done all of its work."""
    found = _COMPLETED.fullmatch(text.strip()[:400])
    return found is not None and _ONLY_A_PART.search(found["rest"]) is None


def says_zero(text: str) -> bool:
    """Whether a batch script says by this line that it ends with exit code 0."""
    return _ZERO.search(text.strip()[-LAST_CHARACTERS:]) is not None


def accounted_as_completed(lines: Sequence[Line]) -> bool:
    """Whether what sacct printed beside a log has its only job as completed, with exit code 0."""
    rows = [found for line in lines if (found := _ACCOUNTED.match(line.text[:400])) is not None]
    good = all(found["state"] == "COMPLETED" and found["code"] == "0:0" for found in rows)
    return good and len({found["id"] for found in rows}) == 1


def has_results(text: str) -> bool:
    """Whether a program says by this line that its results are in a file."""
    return _RESULTS.search(text[:400]) is not None


def tests_passed(text: str) -> bool:
    """Whether a line is pytest's summary of tests of which none failed."""
    found = _TESTS.fullmatch(text.strip())
    return found is not None and re.search(r"\d (?:failed|errors?)\b", found["what"]) is None


def says_again(text: str) -> bool:
    """Whether a program says by this line that it begins again where an earlier attempt ended."""
    return _AGAIN.search(text[:400]) is not None


def works(text: str) -> bool:
    """Whether a line is one of training's progress."""
    # Slurm's own lines speak of its steps.
    return not text.startswith(("srun: ", "slurmstepd: ")) and _WORKS.search(text[:400]) is not None


def step_of(text: str) -> int | None:
    """Return the number of the step that a line of training's progress states; None: it states none."""
    found = _STEP.search(text[:400]) if works(text) else None
    return int(found[1] or found[2]) if found is not None else None


def has_fitted(text: str) -> bool:
    """Whether Lightning says by this line that its training has come to its end."""
    return _FITTED.search(text) is not None


def ends_well(lines: Sequence[Line], *, sole: bool) -> bool:
    """Whether a program states at its end that it has done its work; of several ranks, any.

    Args:
        lines: of its output.
        sole: whether nothing else writes to it; a batch script says "Done" also of a program that failed.
    """
    for line in reversed(lines[-TAIL:]):
        if line.text == GAP:
            return False
        if says_completed(line.text) and (sole or _TRAINED.search(line.text) or _SUCCESSFULLY.search(line.text)):
            return True
        if _LAUNCHED.search(line.text) or _FITTED.search(line.text) or _METRICS.match(line.text):
            return True
        # Of several ranks, one may be behind the others.
        if not is_aftermath(line.text) and not works(line.text) and not _SAVED.search(line.text):
            return False
    return False
