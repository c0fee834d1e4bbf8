"""A failure's message as one line that keeps its reason, wherever in the message that is (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.failures.own_code import is_library
from ftslurm.failures.runtime_reason import runtime_reason
from ftslurm.failures.state_dict import state_dict_line
from ftslurm.pattern import pattern
from ftslurm.records.error import Frame
from ftslurm.text import cut_middle, ranges

LIMIT = 1000  # characters
_NCCL = pattern(r"NCCL error in: \S+?:\d+, (?P<what>[^\n]*?), NCCL version (?P<version>\S+)")
# A C++ runtime's end, srun's, and what NCCL, torch and Python print by themselves are no part of it.
_LAST_ERROR = pattern(
    r"Last error: {0,8}\n?(?P<text>(?:(?!terminate called|srun: |slurmstepd: "
    r"|(?:\[\w{1,12}\]: ?)?(?:\[[EWIF]\d{4} |Traceback \())"
    r"(?![^\n]{0,200} NCCL (?:INFO|WARN))[^\n]*\S[^\n]*\n?){1,4})"
)
_OF_QUEUE_PAIR = pattern(
    r", curr state \w+, next state \w+(?:, local GID index \d+, local GID \S{1,60}(?=,))?"
    r"| opcode=\d+ len=\d+| localGid \S{1,60} remoteGids ?\S{1,60}"
)
_VERB = pattern(
    r"Call to (?P<call>ibv_\w{1,40}) failed with (?:error )?(?P<why>[^,]{1,80}), on (?P<device>dev \S{1,40}?)"
    r"(?:, remote GID (?P<peer>\S{1,60}))?(?=$|[;\s])"
)
_SYMBOL = pattern(r"(?<=undefined symbol: )(_Z\w{16})\w{16,}")  # mangled
# Of CANN, Ascend's runtime: what the device states, or a code, the time and the reason.
_CANN = pattern(
    r"\berrorStr: (?P<why>[^\n.]{4,200})"
    r"|\bE[A-Z]\d{4}: (?:\[PID: \d+\] )?(?:\d[\d.:-]{15,30} +)?(?P<text>(?!Inner Error)[^\n]{1,400})"
)
_OF_CANN = pattern(r"\w+:\S{1,300}:\d+ (?P<what>(?:HCCL|NPU|OPS) (?:function )?error)(?:: (?P<call>\w+)\(.*)?")
_CODE_OF_CANN = pattern(r", error code is \d+\Z")
# Of HDF5, behind what was tried.
_HDF5 = pattern(r"name = '(?P<name>[^']{1,400})', errno = \d+, error message = '(?P<why>[^']{1,200})'[^)\n]{0,80}")
_BOILERPLATE = pattern(
    r"\AFailed to import \S{1,200} because of the following error \(look up to see its traceback\):\s+(?=\S)"
    r"| This is typically caused by a remote worker crashing\..{0,200}\Z"
    r"| This is an internal miniz error\.(?: This error can happen if .{0,400}\Z)?"
    r"|(?<=bytes)\. Error code 12 \(Cannot allocate memory\)"
    r"| Details are lost due to multiprocessing\. Rerunning with .{0,60} error trace\."
    r"|\Aone of the variables needed for gradient computation has been (?=modified by an inplace)"
    r"|, is at version \d+; expected version \d+ instead"
    r"| It is possible that dataloader's workers are out of shared memory\. Please try to raise .{0,40} limit\."
)
_NATIVE = pattern(
    r"\[enforce fail at [^\]\n]{1,300}\] (?:\. )?(?:[^.\n]{1,40}\. (?=\S))?|\A\[\d\d:\d\d:\d\d\] \S{1,300}:\d+: "
)
_CALLING = pattern(r"(?<=\w) when calling `[^\n]{1,2000}\Z")  # of cuBLAS: the whole call
# Of subprocess.CalledProcessError.
_CHILD = pattern(
    r"Command '?(?P<command>.*?)'? (?:returned non-zero exit status (?P<status>-?\d+)|"
    r"died with (?:<Signals\.)?(?P<signal>SIG\w+|unknown signal -?\d+).{0,10}?)\.?",
    re.DOTALL,
)
# Of DDP which parameters, of torch.load which class, behind lines of general advice.
_NAMES = pattern(
    r"Parameter indices which did not receive grad for rank \d+: [\d ]+|Parameter at index .{1,300}? twice"
    r"|GLOBAL \S{1,200} was not an allowed global"
)
# Of torch's ChildFailedError.
_LAUNCHER = pattern(r"\A(?P<type>\w*:? ?)\s*={20,}\n(?P<what>[^\n]{1,300}) FAILED\n-{20,}\n")
_ROOT = pattern(r"Root Cause [^\0]{0,400}?\brank *: (?P<rank>\d+)[^\0]{0,200}?\bexitcode *: (?P<code>-?\d+)")
# Of CUDA: what was wanted and what was free, before the advice; shorter, as a headline would lose the size.
_GPU_MEMORY = pattern(
    r"(?P<wanted>(?:CUDA|HIP) out of memory\. Tried to allocate [\d.]+ \w+)\.?(?: GPU (?P<gpu>\d+) has a total capac\w+"
    r" of (?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free"
    r"| \(GPU (?P<old>\d+); (?P<all>[\d.]+ \w+) total capac\w+;.{0,120}? (?P<left>[\d.]+ \w+) free)?"
)
_COMMAND_LIMIT, _REFUSAL_LIMIT, _FIELDS = 60, 300, 6
_VALIDATION = pattern(r"\d{1,4} validation errors? for [^\n]{1,200}$", re.MULTILINE)
_EXPECTED = pattern(r"^Input should be a (?=valid )")
# Without a field's name: of the whole model.
_FIELD = pattern(r"^(?:(\S[^\n]{0,200})\n)? {2}(\S[^\n]{0,300}?)(?: [\[(]type=[^\n]*)?$", re.MULTILINE)
_BY_VALIDATOR = pattern(r"(?:Value error|Assertion failed), ")
# Advice in parentheses at the end.
_ASIDE = pattern(
    r" +\((?i:set|see|use|try|run|pass|when checking argument|you (?:can|may|might|need to))"
    r" [^()\n]{1,200}\)\Z"
)
# Where to read more is no reason.
_SEE_ALSO = pattern(r"(?<=[.;!]) +(?:[^.]|\.(?! )){0,200}?https?://\S+(?: .{0,80})?\Z")
_HINT = pattern(r"(?<=.{40})\. (?:Hint|HINT|Note|NOTE): .*", re.DOTALL)
_SHORT, _LEAST, _END_LIMIT = 100, 40, 200
_ADVICE = pattern(
    r"(?:Please|See|Try|Set|Run|Inspect|Inspecting|Consider|Check|For (?:more|further|additional)|You (?:can|may"
    r"|might|should)"
    r"|Use|Note|Make sure|(?:Pass|Provide|Specify|Ensure|Verify|Upgrade) (?:the|an?|that|to|in|your|it|[`'\"-])|If you"
    r"|To (?:fix|avoid|debug|disable|enable|get|learn|see)|This (?:could|may|might|can"
    r"|is (?:usually|typically|often|likely))|It (?:may|might|could|is (?:likely|probably|possible))|Did you|Are you"
    r"|Perhaps|Maybe"
    r"|Hint|Not \w+ing)\b"
    r"|[A-Z]\w{2,20}ing [^.]{0,80}\b(?:can|could|may|might) help\b"
    r"|[^.]{0,80}\b(?:can|could|may|might|should) be (?:set|used|changed|passed|fixed|avoided|enabled|disabled)\b"
)
_OPENERS = (":", "(", "[", "{")
_POSITION = pattern(r"\s+(in|at|near|from) \S.{0,200}\bline \d")
_WHOLE_LIMIT, _WHOLE_LINES = 600, 10
_VALUES, LISTED = pattern(r"'[^']{0,200}'|\"[^\"]{0,200}\"|\d+"), 3
_LEFT_OUT = pattern(r"\.\.\. \d+ (?:lines|characters|bytes) left out")
_FEW, _SOURCE_INDENT = 3, 8
_DETAIL = pattern(r"\s+\w[\w ]{0,30}: \S")
_NO_TEXT = pattern(r"Trace[bB]ack \(most recent|File \"|Exception raised from|frame #\d|Last error")
_VALUE = pattern(r"\w{1,60} = [\[{(].{200}")  # of a variable
_NOTE = pattern(
    r"For further information|For debugging consider|CUDA kernel errors might|Compile with `TORCH|Search for `cuda"
    r"|Set TORCH|You can suppress|Device-side assert|\^+$"
)


# Of JAX and TensorFlow, a line for each task.
_TASKS, _TASK = pattern(r"(?:/job:\S{1,80}/task:\d{1,6}\s{0,4}){2,}"), pattern(r"task:(\d+)")


def message_line(message: str) -> str:
    """Return the line of a message that says what is wrong.

    That is its first line; with the next one where that only introduces it (``Error(s) in loading state_dict for
    Net:``). For a child process its end comes before its command; for NCCL, the last error behind the error code.
    """
    text = _without_indent(message[: 64 * 1024]).strip()
    text = _TASKS.sub(lambda found: f"tasks {ranges(map(int, _TASK.findall(found[0])))}\n", text)
    if launcher := _launcher_line(text):
        return launcher
    named = _NAMES.search(text)
    if named is not None:
        return named[0]
    memory = _GPU_MEMORY.match(text)
    if memory is not None:
        gpu, total, free = (
            memory[new] or memory[old] for new, old in (("gpu", "old"), ("total", "all"), ("free", "left"))
        )
        return memory["wanted"] + (f" ({free} of {total} free on GPU {gpu})" if gpu else "")
    if within := runtime_reason(text) or _validation_line(text):
        return within
    keys = state_dict_line(text)
    if keys:
        return keys
    child = _CHILD.fullmatch(text)
    if child is not None:
        end = f"died with {child['signal']}" if child["signal"] else f"exit status {child['status']}"
        return f"{end} of the command {cut_middle(child['command'], _COMMAND_LIMIT)}"
    text = _SYMBOL.sub(r"\1...", text)
    text = _HDF5.sub(lambda found: f"{found['name']}: {found['why']}", text)
    text = _CALLING.sub("", _NATIVE.sub("", _BOILERPLATE.sub("", text)))
    if len(text) > _SHORT and "\n" not in text:
        return _without_advice(_SEE_ALSO.sub("", text))
    first, newline, rest = text.partition("\n")
    if not newline:
        return text
    last = last_error(text)
    if last:
        found = _NCCL.search(text)
        what = found["what"].replace(" (run with NCCL_DEBUG=INFO for details)", "") if found else ""
        head = f"NCCL error: {what} (NCCL {found['version']})" if found else first.rstrip(" :")
        return f"{head}: {last}"[:LIMIT]
    by_cann = [*_CANN.finditer(rest)]
    if by_cann:
        found = next((each for each in by_cann if each["why"]), by_cann[0])
        why = found["why"] or _without_advice(found["text"])
        what = _without_place(first).rstrip(" :")
        return f"{_CODE_OF_CANN.sub('', what)}: {why.strip()}"[:LIMIT]
    first = _without_place(first)
    *items, last = [line for line in rest.split("\n") if line.strip()] or [""]
    concludes = _concludes(items, last)
    for line in rest.split("\n"):
        if concludes or not first.endswith(_OPENERS) or len(first) > LIMIT:
            break
        first = f"{first} {line.strip()}".strip()
    return _with_end(_without_advice(first), rest)


def _without_place(first: str) -> str:
    """Return the first line of a message without the place in CANN's sources, and the arguments of its call."""
    found = _OF_CANN.match(first)
    if found is None:
        return first.rstrip()
    call = f": {found['call']}" if found["call"] else ""
    return f"{found['what']}{call}{first[found.end() :].rstrip()}"


def _with_end(first: str, rest: str) -> str:
    """Return a first line with the last one, if a list is between them, or a value that fills the first one."""
    *between, last = [line for line in rest.split("\n") if line.strip()] or [""]
    listed = len(between) > 1 and all(line[:1].isspace() for line in between) and not last[:1].isspace()
    listed = listed or _concludes(between, last)
    filled = len(first) > LIMIT and bool(last)
    if (
        not (listed or filled)
        or len(last) > _END_LIMIT
        or _NOTE.match(last)
        or _ADVICE.match(last)
        or _NO_TEXT.match(last)
    ):
        return first
    return f"{first} ... {last.strip()}"


def _concludes(items: Sequence[str], last: str) -> bool:
    """Whether a line follows items of one form, and has another one."""
    forms = {_VALUES.sub("#", line) for line in items if not _LEFT_OUT.search(line)}
    return len(items) >= LISTED and len(forms) == 1 and _VALUES.sub("#", last) not in forms


def _without_indent(message: str) -> str:
    """Return a message whose first line is empty without the indentation of the source that has it."""
    if not message.startswith("\n"):
        return message
    lines = message.strip("\n").split("\n")
    depth = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
    return "\n".join(line[depth:] for line in lines).rstrip()


def _validation_line(text: str) -> str:
    """Return the fields of pydantic's message, each with what is wrong with it; empty: it is none of pydantic's.

    ``2 errors for TrainConfig: optim.lr: Input should be a valid number; data.path: Field required``
    """
    head = _VALIDATION.match(text)
    fields = _FIELD.findall(text, head.end()) if head is not None else []
    if head is None or not fields:
        return ""
    if not fields[0][0]:
        return _of_field(fields[0][1])
    shown = [f"{field}: {_of_field(why)}" for field, why in fields[:_FIELDS]]
    more = f"; and {len(fields) - _FIELDS} more" if len(fields) > _FIELDS else ""
    return f"{head[0].replace('validation ', '', 1)}: {'; '.join(shown)}{more}"[:LIMIT]


def _of_field(why: str) -> str:
    own = _BY_VALIDATOR.match(why)
    return why[own.end() :] if own is not None else _EXPECTED.sub("no ", why.partition(",")[0])


def _without_advice(text: str) -> str:
    """Return a long message of one line without the sentences of general advice at its end."""
    text = _HINT.sub(".", _ASIDE.sub("", text))
    head, border, rest = text.partition(". ")
    if border and len(rest) > _LEAST and _ADVICE.match(head.rpartition(": ")[2]):
        text = f"{head[: head.rfind(': ') + 2] if ': ' in head else ''}{rest}"
    while len(text) > _SHORT:
        before, border, last = text.rpartition(". ")
        if not border or len(before) < _LEAST or _ADVICE.match(last) is None:
            break
        _, question, rest = last.partition("? ")
        # Behind a question there may be the error itself, as for CUDA's codes.
        text = f"{before}. {rest}" if question and _ADVICE.match(rest) is None else f"{before}."
    return text


def _launcher_line(text: str) -> str:
    """Return the line for a table of torch's launcher, which begins with a rule; empty: it is none."""
    table, root = _LAUNCHER.match(text), _ROOT.search(text)
    if table is None:
        return ""
    end = "" if root is None else f": rank {root['rank']} {_ended(int(root['code']))}"
    return f"{table['type'].strip()} {table['what']}{end}".strip()


def _ended(code: int) -> str:
    return f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"


def whole_line(message: str) -> str:
    """Return a message of a few short lines as one line; empty if it has only one, or is longer.

    Parsers and validators put the subject first, and what is wrong with it below.
    """
    message = _without_indent(message)
    single = _launcher_line(message.strip()) or runtime_reason(message) or _NAMES.search(message)
    if "\n" not in message or len(message) > _WHOLE_LIMIT or single:
        return ""
    if fields := _validation_line(message.strip()):
        return fields
    lines = message.strip().split("\n")
    if any(_NO_TEXT.match(line.strip()) for line in lines):
        return ""
    known = [line for line in lines if line.strip() and not _NOTE.match(line.strip())]
    known = [line for line in known if not _VALUE.match(line)]
    if known and not known[-1][:1].isspace():
        # A list of details between the subject and what is wrong with it.
        known = [line for line in known if not _DETAIL.match(line)] if len(known) > _FEW else known
    kept = [line.strip() for line in known]
    if not 2 <= len(kept) <= _WHOLE_LINES or kept[0].endswith(_OPENERS):
        return ""
    # Lines that are all indented have details of a first line that is complete, unless the source was indented so.
    of_source = len(known) <= _FEW and all(line.startswith(" " * _SOURCE_INDENT) for line in known[1:])
    if not of_source and all(line[:2].isspace() for line in known[1:]) and not any(map(_POSITION.match, known[1:])):
        return ""
    text = _without_place(kept[0])
    for line in kept[1:]:
        text += f"{' ' if text.endswith((',', '.', '!', '*')) else '; '}{line}"
    return text


def _queue_pair(found: re.Match[str]) -> str:
    """Return what a verb of InfiniBand failed with, on which device, and towards which peer, in short."""
    peer = f", peer {found['peer']}" if found["peer"] else ""
    return f"{found['call']}: {found['why']}, {found['device']}{peer}"


def last_error(message: str) -> str:
    """Return NCCL's own last error in a message of torch's process group; empty without one."""
    found = _LAST_ERROR.search(message)
    if found is None:
        return ""
    lines = [line.strip() for line in found["text"].split("\n") if line.strip()]
    ends = next((i for i, line in enumerate(lines) if line.startswith(("Exception raised from", "frame #"))), None)
    text = _VERB.sub(_queue_pair, _OF_QUEUE_PAIR.sub("", "; ".join(lines[:ends])))
    return "" if text.startswith("Unknown NCCL Error") else text


def source_line(frames: Sequence[Frame]) -> str:
    """Return the line of code that says most about an exception without a message; empty if none is known.

    The innermost one; where that only raises the exception, the innermost line of the user's own code.
    """
    known = [frame for frame in frames if frame.source]
    if not known:
        return ""
    own = next((frame for frame in reversed(known) if not is_library(frame.file)), known[-1])
    chosen = known[-1] if (known[-1].source or "").startswith("assert") else own
    return (chosen.source or "").strip()


_CHOICES = pattern(r" \(choose from .{80,}\)$")
_NO_CHOICE = pattern(r"\bis not one of .{80,}$")  # of click
_REFUSAL = pattern(r"(?:\A|: )(?:[Ee]rror|ERROR): (\S.*)")


def refusal(stderr: str) -> str:
    """Return why a parser of command lines rejected its arguments, by the end of stderr; empty if that has no line."""
    lines = [line.strip() for line in stderr.splitlines()[-12:]]
    found = next((match for match in map(_REFUSAL.search, reversed(lines)) if match), None)
    return cut_middle(without_choices(found[1]), _REFUSAL_LIMIT) if found is not None else ""


def without_choices(refused: str) -> str:
    """Return a parser's message without a long list of allowed values, which would hide the refused one."""
    return _NO_CHOICE.sub("is not one of the allowed values", _CHOICES.sub("", refused))
