"""Lines that libraries, interpreters and launchers print at a program's end, or that mean nothing for it (pure)."""

from __future__ import annotations

from ftslurm.pattern import pattern

_AFTERMATH = pattern(
    r"\s*$|\s+\S|[-=*_~]{3,}|\[[WEFI](?! ?\d{4}-\d\d)\d{0,4}[ \d:.]|[WEF]\d{4} |I\d{4} .{0,60}torch/"
    r"|\S+:\d+: \w*Warning: "
    r"|Exception ignored "
    r"|terminate called|Aborted|Segmentation fault|Error in sys\.excepthook|Error in atexit|srun: |slurmstepd|sbatch: "
    r"|wandb: "
    r"|CUDA kernel errors might|For debugging consider passing|Compile with `TORCH|Search for `cuda|what\(\): "
    r"|Set TORCH_LOGS=|You can suppress this exception|Traceback \(most recent|E[A-Z]\d{4}: "
    r"|Exception raised from|frame #\d|\d+ +0x[\da-f]+ |Exception in thread|Fatal Python error|Extension modules:"
    r"|Thread 0x|Current thread"
    r"|\[?\S{0,30} ?\S{0,30}\]? ?\[(INFO|ERROR|WARNING)\] \[launch\.py:|Sending process \d+ closing"
    r"|[\w./-]{1,300}: line \d+: +\d+ "
    r"|/.{0,200}multiprocessing/resource_tracker\.py|.*destroy_process_group\(\)|During handling of the above"
    r"|The above exception was the direct|Root Cause|Failures?:|Other Failures:|\[\d+\]:$|<NO_OTHER_FAILURES>"
    r"|mpirun (?:detected|noticed) that|the job to be terminated\.|Primary job +terminated"
    r"|a non-zero exit code\. Per user"
    r"|make: \*\*\*|\S+ FAILED$|.{0,100}NCCL INFO|.{0,100}NCCL WARN|-- Process \d+ terminated|Original Traceback"
    r"|.{0,60}\b(?:exit(?:ed|ing|s)?(?: with)?|finished with|returned)\b(?:.{0,20}\b(?:code|status)\b|:? \d{1,3}$)"
    r"|(?i:job|script|run|training)? ?(?i:ended|finished|failed|end|done|completed) at "
    r"|(?i:batch|job|script)(?i: job)? (?i:ended|finished|done|completed)\b.{0,40}$"
    r"|\w+ \w+ +\d+ \d+:\d+:\d+ .{0,12}\d{4}$"
    r"|Set the environment variable HYDRA_FULL_ERROR|Error executing job with overrides|real\t|user\t|sys\t|\+ "
    r"|(?:Array )?Job ID: |Cluster: |User/Group: |State: |Nodes: |Cores(?: per node)?: |CPU (?:Utilized|Efficiency): "
    r"|Job Wall-clock time: |Memory (?:Utilized|Efficiency): |.{0,80}\bleaked semaphore|Killed$|Terminated$"
    r"|(?:\S{10} [\d:,]{8,12}\s+)?(?:INFO|WARNING|ERROR) tune\w*\.py:\d+ -- "
    r"|To (?:continue this|start a new) run\b|Training errored after \d|Error file: |Trial \S+ errored|\(raylet"
    r"|(?:Number of )?[Ee]rrored trials"
    r"|(?:DEBUG|INFO|WARNING|ERROR):torch\.distributed\.(?:elastic|launch|run)\b"
    r"|.{0,60}\btorch\.distributed\.(?:elastic|launcher|run)\b|E0000 |INFO: +(?:Cleaning|Terminating|gocryptfs)"
    r"|\[rank: \d+\] Child process with PID|(?:submitit WARNING \(.{1,40}\) - |WARNING:submitit:)Bypassing signal"
)

_BY_SLURM = pattern(r"(?:srun|slurmstepd|sbatch|slurmd|salloc|slurm_script)\b")


def is_by_slurm(text: str) -> bool:
    """Whether one of Slurm's programs, or its script of a job, printed a line, by its name before it."""
    return _BY_SLURM.match(text) is not None


def is_aftermath(text: str) -> bool:
    """Whether such a line may follow the traceback of an exception that nothing caught."""
    return _AFTERMATH.match(text) is not None
