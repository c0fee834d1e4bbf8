"""Kinds of lines that stand at the end of a program's output: pure, bounded, and linear in the length of the text.

What interpreters, libraries, launchers and shells print when a program ends is aftermath, below the reason. What a
program prints as it goes on tells that a failure above was survived. Hundreds of lines of one form hide what is above.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from ftslurm.failures.exception_line import LINE_LIMIT
from ftslurm.failures.logged_error import RANK_PREFIX
from ftslurm.pattern import pattern

LIMIT = 256 * 1024  # characters of the text's end that are read
LAST_LINES = 6
FLOOD = 64
"""Lines of one form, one after the other, that are a flood; so many of its last lines are kept."""

_DIGITS = pattern(r"\d+")
_ESCAPES = pattern(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]")
_LAUNCHER = (
    r"[EWI]?\d{4} .{0,60}torch/distributed/(elastic|run|launch)|.{0,80}exits with return code = |"
    r"\[[\d :,-]{10,30}\] \[\w+\] \[(?:launch|runner)\.py:\d+:\w+\]|pdsh@\S+: |"
    r"ERROR:composer\.cli\.launcher|Global rank \d+ \(PID \d+\) exited|Waiting up to \d+ seconds for all training|"
    r".{0,80}Killing subprocess \d+|.{0,160}Sending process \d+ closing signal|"
    r".{0,160}Terminating process \d+ via signal"
)
# Of libraries and scripts at a program's end.
_AT_END = pattern(
    r"wandb:(?: |$)|Set the environment variable HYDRA|Exception ignored in"
    r"|(?i:job|run|script) (?:finished|ended) at "
)
# Lines that follow a program's reason: of interpreter, libraries, launchers, shells and schedulers.
AFTERMATH = pattern(
    r"\s*$|\s+\S|\[[WIV]\d{0,4}[ \d:.]|[WIV]\d{4} |sys:1: |\S+:\d+: \w*Warning: |Exception ignored |"
    r"--- Logging error ---|Call stack:|Message: |Arguments: |"
    r"Set the environment variable HYDRA_FULL|full_key: |"
    r"Error in (sys\.excepthook|atexit)|Original exception was:|srun: |slurmstepd: |slurm_load|"
    r"CUDA kernel errors might|For debugging consider passing|Compile with `TORCH|Search for `cuda|"
    r"\S{1,120} \[\d+\] .{0,80}NCCL INFO|"
    r"frame #\d|Exception raised from |Current thread |Thread 0x|Extension modules: |<no Python frame>|"
    r"# (?:Accounting|Ended|Started|Finished)\b|OMP: (?:Hint|Info) |wandb: |\S{0,40} ?\d{1,3}%\||.{0,200}\bit/s\]"
    r"|.{0,200}\bs/it\]|"
    r"(Killed|Aborted|Terminated|Segmentation fault|Bus error|Trace/breakpoint trap)\b.{0,40}$|"
    r".{0,200}\(core dumped\)|\S{1,80}: line \d+: +\d+ |make(\[\d+\])?: \*\*\* |Command exited with non-zero|"
    r"\|.{0,400}\|$|={3,}$|-{3,}$|\*{3,}$|\+-+|"
    r"(Failures|Root Cause).{0,60}:$|\[\d+\]:$|\S{1,200} FAILED$|<NO_OTHER_FAILURES>|"
    rf"{_LAUNCHER}|"
    r"Please check the spelling or version|Also (try|make sure)|It is also possible your cache file|"
    r"note: run with `RUST_BACKTRACE|stack backtrace:$|"
    r"(concurrent\.futures\.process\._|multiprocessing\.pool\.)RemoteTraceback:|(\"\"\"|''')$"
)
_PROGRESS = pattern(
    rf"{_LAUNCHER}|"
    r"Extension modules: |(?:NOTE: invoking )?MPI_ABORT\b|with errorcode |You may or may not see|exactly when Open MPI|"
    r"# (?:Accounting|Ended)\b|\[\d+\]:$|(?:Failures|Root Cause).{0,60}:$|\S{1,200} FAILED$|= +(?:EXIT|PID|RANK|BAD"
    r"|CLEANING|YOU CAN|KILLED)|"
    r"(?:the job to be term|mpirun detected|a non-zero exit code|Primary job)|"
    r"\S{0,40} ?\d{1,3}%\||[={}\-*+#╰╭│]{3,}$|\[[WIV]\d{0,4}[ \d:.]|srun: |slurmstepd: "
)
STEP = pattern(r"(?i)\b(step|epoch|iter(ation)?s?)\b\W{0,3}\d|\bloss\W{0,3}\d")
# Of a line on a step by which a program says why it goes no further.
STOPS = pattern(
    r"(?i)\b(?:stop(?:s|ped|ping)?|diverg\w+|giv(?:es?|ing) up|abort\w*|exit\w*|quit\w*|nan|too|fail\w*|bye|stuck|hung"
    r"|stall\w*|no (?:further |new )?(?:steps?|progress|heartbeats?|updates?) (?:for|since|after|within|in))\b"
)
# Lines that an exception's text does not have: of a log, of training, of a program that goes on.
OF_LOG = pattern(
    r"(?i)\W{0,3}(?:[IDWE] )?(\d{4}-\d\d|\d\d:\d\d|\d{1,9}[/%]|(debug|info|warn|warning|error|critical)\b"
    r"|(skipp|retry|retri|continu|ignor|resum|recover|fall(ing)? ?back|restor|re-?start))"
)
GOES_ON = pattern(
    r"(?i)\b(retrying|(will|to) retry|entering retry loop|continuing|skipping|ignoring|falling back|resuming)\b"
    r"|(?<!exception )\bignored\b|\((?:repaired|recovered|corrected|fixed)\)"
    r"|\busing (the )?defaults?\b|\b(?:try|trying) (?:it )?again\b|\bgo(?:es|ing) on\b|\b(?:second|next|another) try\b"
    r"|\b\d+ (?:of \d+ )?\w+ (?:were |was )?(?:skipped|ignored)\b"
    # What a program does instead, after what failed: "cache not readable, rebuilding".
    r"|[,;] (?:now )?(?:re(?!ad|ce|po|nd|q|fus|ject|main|ly|sult|ferr|gard|j|al)\w{2,20}ing|using|switching|reverting"
    r"|defaulting|proceeding"
    r"|trying|downloading|creating|disabling)\b"
)
_ERRORS = ("error", "critical")
ENDS = pattern(
    r"(?i)\b(?:exit(?:ed|ing)?|terminat(?:ed|ing)|abort(?:ed|ing)?|shut(?:ting)? ?down|kill(?:ed|ing)|clean(?:ed"
    r"|ing)? ?up"
    r"|finaliz(?:ed|ing)|total \w{0,12} ?time|overall \w+ speed|child (?:process )?failed|sig(?:quit|term|kill"
    r"|abrt)|destroy(?:ed|ing)|giving up|crashed"
    r"|died)\b"
)
# Of tools, behind the reason.
_SUMMARY = pattern(
    r"Error is not recoverable: exiting now|tar: Child returned status \d"
    r"|Exiting with failure status due to previous errors"
    r"|^(?:compilation|linking) terminated\.|^make(?:\[\d+\])?: \*\*\*|^rsync error: |^ninja: build stopped"
    r"|^collect2: error: ld returned |error: creating server: .{0,60}failed to load all models"
)
# Of a wrapper, which only repeats how the program ended.
_ONLY_CODE = pattern(
    r"(?i)\b(?:ended|exited|finished|failed|returned)(?: with|,) (?:(?:exit )?(?:code|status) )?\d{1,3}\W*$"
    r"|\bline \d{1,6} failed\W*$"
)
_OF_DUMP = pattern(r"(?:Current thread|Thread) 0x\w+.{0,80}\(most recent call first\):| {2}File \"| {2}\.\.\.$")


def output_lines(text: str) -> list[str]:
    """Return the lines at the end of an output as a terminal shows them, also the overwritten ones of progress bars."""
    text = _ESCAPES.sub("", text[-LIMIT:]).replace("\x00", "")
    return [line.rstrip()[:LINE_LIMIT] for line in re.split(r"\r\n|\n|\r", text)]


def goes_on_without(line: str) -> bool:
    """Return whether a line on a failure says that its program goes on without what failed."""
    return GOES_ON.search(line[:LINE_LIMIT]) is not None


def went_on(line: str) -> bool:
    """Return whether a program says by this line that it goes on after a failure."""
    line = line[:LINE_LIMIT]
    if goes_on_without(line):
        return True
    # A line with a time or a level may be the program's last.
    found = OF_LOG.match(line)
    return found is not None and found[1].lower() not in _ERRORS and ENDS.search(line) is None


def has_only_aftermath(text: str) -> bool:
    """Return whether an output has nothing but warnings and lines that are printed when a program ends."""
    return all(AFTERMATH.match(RANK_PREFIX.sub("", line)) for line in output_lines(text))


def is_summary(line: str) -> bool:
    """Return whether a line is printed by a tool only behind the reason of its failure."""
    return _SUMMARY.search(line) is not None


def last_line(text: str) -> str:
    """Return the last line of an output that has a meaning, as far as that is certain; empty: none near the end."""
    for line in reversed(_above_dump(output_lines(text))[-LAST_LINES:]):
        bare = RANK_PREFIX.sub("", line)
        if not bare.strip() or bare[0].isspace() or _AT_END.match(bare) or _ONLY_CODE.search(bare):
            continue
        if "Warning: " not in bare and not _PROGRESS.match(bare):
            return "" if STEP.search(bare) and not STOPS.search(bare) else bare
    return ""


def without_last(text: str, line: str) -> str:
    """Return an output up to the last line that ends so."""
    return text[: text.rfind("\n", 0, max(0, text.rfind(line))) + 1]


def _above_dump(lines: list[str]) -> list[str]:
    """Return the lines without stacks of faulthandler at their end, which a program has printed of all threads."""
    end = len(lines)
    while end and (not lines[end - 1].strip() or _OF_DUMP.match(RANK_PREFIX.sub("", lines[end - 1]))):
        end -= 1
    return lines[:end]


def ends_in_flood(text: str) -> bool:
    """Return whether most of an output's end are lines of one form at its very end, so that what is above matters."""
    forms = _forms(text.rstrip().split("\n"))
    count = next((i for i, form in enumerate(reversed(forms)) if form != forms[-1]), len(forms))
    return count >= FLOOD and count * 2 > len(forms)


def without_floods(text: str) -> str:
    """Return an output with only the first and the last lines of each flood."""
    kept: list[str] = []
    whole = text.split("\n")
    for _, group in groupby(zip(_forms(whole), whole, strict=True), lambda pair: pair[0]):
        lines = [line for _, line in group]
        more = len(lines) - FLOOD
        if more > 1 and lines[0].strip():
            # Indented, so that it counts as part of what stands above.
            lines = [lines[0], f"    ... {more - 1:,} lines like this one", *lines[-FLOOD:]]
        kept += lines
    return "\n".join(kept)


def _forms(lines: Sequence[str]) -> list[str]:
    """Return the lines but for their numbers; the source below a warning has the form of that."""
    forms: list[str] = []
    for line in lines:
        below = bool(forms) and line.startswith("  ") and "Warning: " in forms[-1]
        forms.append(forms[-1] if below else _DIGITS.sub("#", line))
    return forms
