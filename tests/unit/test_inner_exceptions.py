"""The deepest true reason: of other processes, behind cleanups, at the root of a chain, without a message."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import process as process_pool
from contextlib import contextmanager
from typing import Any

import pytest

from ftslurm.failures.causes import describe, find
from ftslurm.failures.evidence import Evidence, with_exception
from ftslurm.failures.exception_line import exception_in
from ftslurm.failures.exceptions import describe as recorded_as
from ftslurm.failures.message_line import message_line, whole_line
from ftslurm.failures.own_code import is_library, own_frame
from ftslurm.failures.proof_lines import lines
from ftslurm.failures.reason import judged, reason
from ftslurm.failures.retryability import retryability
from ftslurm.failures.traceback_text import embedded, tracebacks
from ftslurm.records.codec import to_json
from ftslurm.records.error import ErrorRecord, ExceptionRecord, Frame, error_file, error_record_in
from ftslurm.text import first_line

FRAME = (Frame("/home/ann/train.py", 7, "step"),)


def label() -> None:
    {"row": 1}["label"]


def disk() -> None:
    raise OSError(28, "No space left on device", "/ckpt/7.pt")


def caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def record(function: Callable[[], object]) -> ExceptionRecord:
    error = caught(function)
    return recorded_as(error, error.__traceback__)


def described(exception: ExceptionRecord) -> tuple[str, str, str]:
    """Return cause, description and innermost function of a failure by this exception."""
    evidence = with_exception(Evidence("exception"), reason(exception))
    cause, found = find(evidence)
    return cause.name, describe(evidence, cause, found), reason(exception).frames[-1].function


PYDANTIC = """\
2 validation errors for TrainConfig
optim.lr
  Input should be a valid number, unable to parse string as a number [type=float_parsing, input_value='1e-4x']
    For further information visit https://errors.pydantic.dev/2.9/v/float_parsing
data.path
  Field required [type=missing, input_value={'optim': {}}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.9/v/missing"""


def test_a_validation_error_names_its_fields_in_one_line() -> None:
    expected = "2 errors for TrainConfig: optim.lr: no valid number; data.path: Field required"
    assert (
        described(ExceptionRecord("ValidationError", "pydantic", PYDANTIC, frames=FRAME))[1]
        == f"ValidationError: {expected}"
    )
    many = "9 validation errors for X\n" + "\n".join(
        f"f{n}\n  field required (type=value_error.missing)" for n in range(9)
    )
    assert message_line(many).endswith("f5: field required; and 3 more")
    assert message_line("2 validation errors for X") == "2 validation errors for X"


def test_the_ends_of_lines_in_binary_data_do_not_end_a_message() -> None:
    binary = ExceptionRecord("ValueError", "builtins", "bad magic: \x00\xff\r\n\x07GIF89a at offset 4096", frames=FRAME)
    assert described(binary)[1] == "ValueError: bad magic: \x00\xff \x07GIF89a at offset 4096"
    coloured = ExceptionRecord("ValueError", "builtins", "\x1b[31mno label\x1b[0m\nin row 7\nof 9", frames=FRAME)
    assert "\n" in described(coloured)[1] or "; " in described(coloured)[1]


# Exceptions of other processes


def of_a_loader(function: Callable[[], object]) -> Callable[[], object]:
    torch_utils = pytest.importorskip("torch._utils")

    def raise_again() -> None:
        try:
            function()
        except Exception:
            wrapped = torch_utils.ExceptionWrapper(sys.exc_info(), where="in DataLoader worker process 1")
        wrapped.reraise()

    return raise_again


def of_a_pool(function: Callable[[], object]) -> Callable[[], object]:
    def raise_again() -> None:
        error = caught(function)
        kept: Any = process_pool._ExceptionWithTraceback(error, error.__traceback__)
        rebuild, arguments = kept.__reduce__()
        raise rebuild(*arguments)

    return raise_again


def of_spawn(function: Callable[[], object]) -> Callable[[], object]:
    import traceback

    spawn = pytest.importorskip("torch.multiprocessing.spawn")

    def raise_again() -> None:
        try:
            function()
        except Exception:
            text = traceback.format_exc()
        raise spawn.ProcessRaisedException(f"\n\n-- Process 2 terminated with the following error:\n{text}", 2, 99)

    return raise_again


def of_a_checkpoint(function: Callable[[], object]) -> Callable[[], object]:
    api = pytest.importorskip("torch.distributed.checkpoint.api")

    def raise_again() -> None:
        try:
            function()
        except Exception as error:
            wrapped = api._wrap_exception(error)
        raise api.CheckpointException("save", {3: wrapped})

    return raise_again


BORDERS = (of_a_loader, of_a_pool, of_spawn, of_a_checkpoint)


@pytest.mark.parametrize("border", BORDERS, ids=lambda each: each.__name__)
def test_the_exception_of_another_process_is_judged_with_its_own_place(border: Any) -> None:
    cause, text, function = described(record(border(label)))
    assert (cause, function) == ("exception", "label")
    assert text.startswith("KeyError: 'label'")
    assert described(record(border(disk)))[0] == "disk-full"


@pytest.mark.parametrize("outer", BORDERS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("inner", BORDERS, ids=lambda each: each.__name__)
def test_borders_within_borders_are_passed_too(outer: Any, inner: Any) -> None:
    if (outer, inner) == (of_a_checkpoint, of_a_pool):
        pytest.skip("torch's checkpoints pass on no cause, and so not the pool's remote traceback")
    cause, text, function = described(record(outer(inner(label))))
    assert (cause, function) == ("exception", "label")
    assert text.startswith("KeyError: 'label'")


def test_a_failure_in_a_librarys_function_of_another_process_has_the_users_place_here() -> None:
    def collate() -> None:
        torch = pytest.importorskip("torch")
        torch.utils.data.default_collate([torch.zeros(3), torch.zeros(4)])

    found = reason(record(of_a_loader(collate)))
    own = Frame(__file__, 1, "users_loop")
    library = [frame for frame in found.frames if is_library(frame.file)]
    remote = "\n".join(f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in library)
    text = f"Caught RuntimeError in worker 0.\nTraceback (most recent call last):\n{remote}\nRuntimeError: uneven"
    judged = reason(ExceptionRecord("RuntimeError", message=text, frames=(own,)))
    assert own_frame(judged.frames) is own
    assert judged.frames[-1].file == library[-1].file


def test_the_exception_that_passed_it_on_is_named() -> None:
    assert described(record(of_a_loader(label)))[1] == "KeyError: 'label' (in DataLoader worker process 1)"
    assert described(record(of_spawn(label)))[1] == "KeyError: 'label' (in process 2)"


def test_an_agent_judges_the_same_exception() -> None:
    error = ErrorRecord("exception", 5, "x", exception=record(of_spawn(disk)))
    assert retryability(error, 10.0)["blame"] == "perhaps"


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            "backend='inductor' raised:\nRuntimeError: Failed to find C compiler.\n\nSet TORCHDYNAMO_VERBOSE=1",
            "RuntimeError: Failed to find C compiler.",
        ),
        (
            "\x1b[36mray::Actor.step()\x1b[39m (pid=77, ip=10.0.0.3)\n"
            '  File "/home/ann/model.py", line 7, in forward\n    x = y[k]\nIndexError: list index out of range',
            "IndexError: list index out of range",
        ),
    ],
)
def test_an_exception_without_a_traceback_of_its_own_is_found_in_the_message(message: str, wanted: str) -> None:
    inner = embedded(message)
    assert inner is not None
    assert f"{inner.type}: {inner.message}" == wanted


@pytest.mark.parametrize(
    "message",
    [
        "boom",
        "two lines:\nof a message",
        "expected one of:\n  ValueError\n  KeyError",
        "it failed:\nsee the log: there",
    ],
)
def test_a_message_of_several_lines_is_no_other_exception(message: str) -> None:
    assert embedded(message) is None


def test_torchs_own_record_is_judged_by_its_traceback() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x/record.py", line 5, in wrapper\n    return f()\n'
        '  File "/home/ann/train.py", line 9, in main\n    load()\n'
        "OSError: [Errno 116] Stale file handle\n"
    )
    exception = judged(ErrorRecord("exception", 5, "OSError: [Errno 116] Stale file handle", text))
    assert exception is not None
    assert (exception.type, exception.frames[-1].line) == ("OSError", 9)


# Chains


def chain(length: int) -> ExceptionRecord:
    def raise_them() -> None:
        error: BaseException = KeyError("root")
        for number in range(length - 1):
            outer = ValueError(f"link {number}")
            outer.__cause__ = error
            error = outer
        raise error

    return record(raise_them)


@pytest.mark.parametrize("length", [2, 8, 9, 10, 50, 400])
def test_of_a_chain_of_any_length_the_raised_exception_and_the_root_are_named(length: int) -> None:
    exception = chain(length)
    whole = error_record_in(error_file(ErrorRecord("exception", 5, "x", exception=exception)), "it")[0]
    assert whole.exception == exception
    assert described(exception)[1] == f"ValueError: link {length - 2} (from KeyError: 'root')"
    evidence = with_exception(Evidence("exception"), exception)
    shown = "\n".join(lines(evidence, *find(evidence)))
    assert length == 2 or f"{length} exceptions in all" in shown


# Cleanups


def masks_in_finally() -> None:
    try:
        label()
    finally:
        disk()


class Cleanup:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        raise RuntimeError("cannot close")


def masks_in_exit() -> None:
    with Cleanup():
        label()


class Tracker(Cleanup):
    """Its library raises one exception while it handles another one."""

    def __exit__(self, *_: object) -> None:
        try:
            disk()
        except OSError:
            raise RuntimeError("cannot close")  # noqa: B904


def masks_in_an_exit_that_calls_a_library() -> None:
    with Tracker():
        label()


def emergency_save() -> None:
    raise NotADirectoryError("state.txt/rank1")


def masks_in_what_a_handler_calls_to_save() -> None:
    try:
        step()
    except Exception:
        emergency_save()


def step() -> None:
    label()


@contextmanager
def _cleanup() -> Iterator[None]:
    try:
        yield
    finally:
        raise RuntimeError("cannot close")


def masks_in_a_generator() -> None:
    with _cleanup():
        label()


@pytest.mark.parametrize(
    "function",
    [
        masks_in_finally,
        masks_in_exit,
        masks_in_an_exit_that_calls_a_library,
        masks_in_a_generator,
        masks_in_what_a_handler_calls_to_save,
    ],
)
def test_what_a_cleanup_masks_is_judged_and_both_are_named(function: Callable[[], object]) -> None:
    cause, text, place = described(record(function))
    assert (cause, place) == ("exception", "label")
    assert text.startswith("KeyError: 'label' (its cleanup raised ")
    assert any(each in text for each in ("cannot close", "No space left", "NotADirectoryError"))


def raises_in_handler() -> None:
    try:
        label()
    except KeyError:
        raise TypeError("unsupported label") from None


def raises_in_handler_plainly() -> None:
    try:
        label()
    except KeyError:
        raise TypeError("unsupported label")  # noqa: B904


def raises_after_the_cleanup() -> None:
    try:
        try:
            label()
        finally:
            ""
    except KeyError:
        raise TypeError("unsupported label")  # noqa: B904


def test_an_exception_that_a_handler_hides_by_from_none_is_not_named() -> None:
    assert described(record(raises_in_handler)) == ("exception", "TypeError: unsupported label", "raises_in_handler")


@pytest.mark.parametrize("function", [raises_in_handler_plainly, raises_after_the_cleanup])
def test_what_a_handler_raises_is_judged_and_what_it_handled_is_named(function: Callable[[], object]) -> None:
    text = "TypeError: unsupported label (after KeyError: 'label')"
    assert described(record(function)) == ("exception", text, function.__name__)


def trains_without_labels() -> None:
    raise RuntimeError("loss is 0")


def continues_without() -> None:
    try:
        label()
    except KeyError:
        trains_without_labels()


def test_what_fails_in_a_function_that_a_handler_calls_is_another_failure() -> None:
    assert described(record(continues_without))[1] == "RuntimeError: loss is 0"


# Messages that say nothing, or say it late


def asserts() -> None:
    shape = (8, 512)
    assert shape == (8, 513)


def test_an_exception_without_a_message_is_described_by_its_line() -> None:
    exception = record(lambda: exec(compile("raise EOFError", "<x>", "exec")))
    assert described(exception)[1].startswith("EOFError in ")
    plain = ExceptionRecord("AssertionError", "builtins", frames=record(asserts).frames)
    assert described(plain)[1] == 'AssertionError in "assert shape == (8, 513)"'


def test_a_child_process_that_failed_leaves_its_output_in_the_record() -> None:
    def run() -> None:
        raise subprocess.CalledProcessError(1, ["convert"], b"out", b"row 7\nValueError: no label\n")

    assert record(run).output == "row 7\nValueError: no label\n"


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("boom", "boom"),
        (
            "\n\nError(s) in loading state_dict for Net:\n\tMissing key(s): a",
            "Error(s) in loading state_dict for Net: Missing key(s): a",
        ),
        (
            'Error(s) in loading state_dict for DDP:\n\tMissing key(s) in state_dict: "0.weight", "0.bias". \n'
            '\tUnexpected key(s) in state_dict: "module.0.weight". ',
            'Missing key(s): "0.weight" and 1 more; Unexpected key(s): "module.0.weight"',
        ),
        (
            'Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "0.weight", "0.bias". \n'
            '\tUnexpected key(s) in state_dict: "module.0.weight", "module.0.bias". ',
            'only the checkpoint\'s keys begin with "module.", all 2',
        ),
        (
            'Error(s) in loading state_dict for DDP:\n\tMissing key(s) in state_dict: "module.0.weight". \n'
            '\tUnexpected key(s) in state_dict: "0.weight". ',
            'only the model\'s keys begin with "module."',
        ),
        (
            "Error(s) in loading state_dict for Net:\n\tsize mismatch for 1.bias: copying a param with shape"
            " torch.Size([9]) from checkpoint, the shape in current model is torch.Size([7]).",
            "size mismatch for 1.bias: [9] in the checkpoint, [7] in the model",
        ),
        (
            "Expected to have finished reduction in the prior iteration before starting a new one. This error means so."
            "\nParameter indices which did not receive grad for rank 0: 2 3 17\n In addition, you can set the variable",
            "Parameter indices which did not receive grad for rank 0: 2 3 17",
        ),
        (
            "Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names:\n"
            "/job:jax_worker/replica:0/task:1\n/job:jax_worker/replica:0/task:6\n"
            "/job:jax_worker/replica:0/task:2\n\nAdditional GRPC error information",
            "Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names: tasks 1-2, 6",
        ),
        (
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            "[torch.FloatTensor [2, 4]], which is output 0 of SigmoidBackward0, is at version 1; expected version 0 "
            "instead. Hint: the backtrace further above shows the operation that failed to compute its gradient. The "
            "variable in question was changed in there or anywhere later. Good luck!",
            "modified by an inplace operation: [torch.FloatTensor [2, 4]], which is output 0 of SigmoidBackward0.",
        ),
        (
            "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a "
            "network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a "
            "remote process exiting prematurely.\nLast error:\nsocketProgressOpt: Call to recv from 10.0.0.2<33759> "
            "failed : Connection reset by peer",
            "NCCL error: remote process exited or there was a network error (NCCL 2.21.5): socketProgressOpt: Call to "
            "recv from 10.0.0.2<33759> failed : Connection reset by peer",
        ),
        (
            "The server socket has failed to listen on any local network address. port: 29500, useIpv6: true, "
            "code: -98, name: EADDRINUSE, message: address already in use",
            "port 29500 is in use (EADDRINUSE)",
        ),
        (
            "The client socket has failed to connect to any network address of (n1, 29500). The IPv6 network addresses "
            "of (n1, 29500) cannot be retrieved (gai error: -2 - Name or service not known). The client socket has "
            "failed to connect to n1:29500 (errno: 113 - No route to host).",
            "no connection to n1:29500: No route to host",
        ),
        (
            "The client socket has timed out after 60s while trying to connect to (n1, 29500).",
            "no connection to n1:29500 within 1 min",
        ),
        (
            "Graph execution error:\n\nDetected at node 'Conv2D' defined at (most recent call last):\n"
            "    File \"train.py\", line 88, in main\n      model.fit(data)\nNode: 'Conv2D'\nOOM when allocating "
            "tensor with shape[64,512] and type float on /job:worker/replica:0/task:1/device:GPU:0 by allocator GPU_0"
            "\n\t [[{{node Conv2D}}]]\nHint: If you want to see a list of allocated tensors",
            "OOM when allocating tensor with shape[64,512] on /job:worker/task:1/device:GPU:0",
        ),
        (
            "Graph execution error:\n\nCollective ops is aborted by: Connection reset by peer\nAdditional GRPC error",
            "Collective ops is aborted by: Connection reset by peer",
        ),
        (
            "Early stopping conditioned on metric `val/loss` which is not available. Pass in or modify your "
            "`EarlyStopping` callback to use any of the following: `train_loss`",
            "Early stopping conditioned on metric `val/loss` which is not available.",
        ),
        (
            "cannot load:\n"
            + "".join(f"  unexpected tensor 'layers.{i}' of shape ({i}, 2)\n" for i in range(24, 300))
            + "  => checkpoint was written for 300 layers, this model has 24",
            "cannot load: ... => checkpoint was written for 300 layers, this model has 24",
        ),
    ],
)
def test_a_message_in_one_line_keeps_its_reason(message: str, wanted: str) -> None:
    assert message_line(message) == wanted


# Anything


def test_any_text_is_parsed_without_an_error_in_linear_time() -> None:
    pick = random.Random(3)
    parts = [
        "Traceback (most recent call last):\n", '  File "x.py", line 3, in f\n', "    x = 1\n", "ValueError: x\n",
        "KeyError\n", "\n", "[rank3]: ", "  | ", "  + Exception Group ", "Original ", "\x00\xff\ud800", "a: b\n",
        "The above exception was the direct cause of the following exception:\n", "x" * 300, "\t",
        "(2 sub-exceptions)\n",
        "During handling of the above exception, another exception occurred:\n", "raised:\n", '"""\n', "NCCL error\n",
    ]  # fmt: skip
    for _ in range(3000):
        text = "".join(pick.choices(parts, k=pick.randrange(40)))
        found = tracebacks(text.split("\n"), whole=pick.random() < 0.5)
        assert [each.first for each in found] == sorted({each.first for each in found})
        inner = embedded(text)
        assert inner is None or to_json(ErrorRecord("exception", 1, exception=reason(inner)))
        exception_in(text)

    def seconds(text: str) -> float:
        begin = time.process_time()  # of a busy machine the time of others does not count
        tracebacks(text.split("\n"))
        embedded(text)
        return time.process_time() - begin

    for unit in (
        parts[0],
        "".join(parts[:4]),
        "".join([*parts[:4], parts[12]]),
        "".join(parts[:3]),
        parts[8] + parts[0],
    ):
        assert seconds(unit * 4000) < 30 * seconds(unit * 400) + 0.5


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            'while parsing a block mapping\n  in "a.yaml", line 5, column 1\nexpected <block end>\n  line 7, column 2',
            'while parsing a block mapping; in "a.yaml", line 5, column 1; expected <block end>; line 7, column 2',
        ),
        (
            "1 validation error for Config\nlr\n  Input should be a number\n    For further information visit https://x",
            "1 error for Config: lr: Input should be a number",
        ),
        (
            "\n*** Configuration error ***\n\nbetas must have two entries\n",
            "*** Configuration error *** betas must have two entries",
        ),
        (
            "CUDA error: out of memory\nCUDA kernel errors might be reported later\nCompile with `TORCH_USE_CUDA_DSA`",
            "",
        ),
        ("Key 'lr' is not in struct\n    full_key: optim.lr\n    object_type=dict", ""),
        ("one line", ""),
        ("first\n" + "long " * 200, ""),
        ("Caught KeyError\nTraceback (most recent call last):\nKeyError: 1", ""),
    ],
)
def test_a_message_of_a_few_short_lines_is_one_line(message: str, expected: str) -> None:
    assert whole_line(message) == expected


def test_the_end_of_a_long_first_line_is_kept() -> None:
    text = first_line("values: " + "0.1, " * 5000 + "first bad index 19731\nmore")
    assert text.startswith("values: 0.1, ") and text.endswith("first bad index 19731")
    assert len(text) < 1100


def test_a_generator_whose_iterator_ended_is_shown_at_its_own_line() -> None:
    ended = ExceptionRecord("StopIteration", "", "", frames=(Frame("data.py", 9, "pack", "buffer.append(next(rows))"),))
    outer = ExceptionRecord(
        "RuntimeError", "", "generator raised StopIteration", frames=(Frame("train.py", 15, "<module>"),), cause=ended
    )
    assert [frame.place for frame in reason(outer).frames] == ["train.py:15 in <module>", "data.py:9 in pack"]


SCRIPTED = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
RuntimeError: The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
  File "/w/model.py", line 16, in <forward op>
        return fuse(h, side, 0.5)
               ~~~~ <--- HERE
  File "/w/model.py", line 6, in fuse
def fuse(a: torch.Tensor, b: torch.Tensor, gate: float) -> torch.Tensor:
    return a * gate + b
           ~~~~~~~~~~~~ <--- HERE
RuntimeError: The size of tensor a (6) must match the size of tensor b (5) at non-singleton dimension 1
"""


def test_an_error_in_torchscript_is_judged_with_its_own_message_and_place() -> None:
    def fails() -> None:
        raise RuntimeError(SCRIPTED)

    found = reason(record(fails))
    assert found.message.startswith("The size of tensor a (6) must match")
    assert found.frames[-1].place == "/w/model.py:6 in fuse"


class Module:
    """As torch's, whose ``__getattr__`` takes the place of what a property raised."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    @property
    def scaled(self) -> object:
        return self.factor


@pytest.mark.parametrize(("name", "notes"), [("scaled", ("Module has a property scaled",)), ("missing", ())])
def test_the_recorder_notes_a_property_whose_own_error_is_hidden(name: str, notes: tuple[str, ...]) -> None:
    assert record(lambda: getattr(Module(), name)).notes == notes


class Hostile:
    """A class whose attribute refuses to be looked at, as an unbound proxy does."""

    class Proxy:
        def __getattribute__(self, name: str) -> object:
            raise RuntimeError("unbound")

    current = Proxy()

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"no attribute {name!r}", name="current", obj=self)


def test_the_recorder_calls_none_of_a_classs_code() -> None:
    assert record(lambda: Hostile().missing).notes == ()


def test_an_exception_without_a_message_is_described_by_its_note() -> None:
    def verifies() -> None:
        error = RuntimeError()
        error.__notes__ = ["while loading epoch 7"]  # type: ignore[attr-defined]
        raise error

    assert described(record(verifies))[1] == "RuntimeError (while loading epoch 7)"


def test_a_wrapper_of_a_group_shows_what_the_groups_member_has_to_say() -> None:
    member = ExceptionRecord("ConnectionRefusedError", message="[Errno 111] Connect call failed")
    group = ExceptionRecord("ExceptionGroup", message="in a TaskGroup (1 sub-exception)", exceptions=(member,))
    frame = Frame("/w/train.py", 16, "features")
    wrapper = ExceptionRecord("RuntimeError", message="features of epoch 0 unavailable", frames=(frame,), cause=group)
    assert described(wrapper)[1] == (
        "RuntimeError: features of epoch 0 unavailable (from ConnectionRefusedError: [Errno 111] Connect call failed)"
    )
