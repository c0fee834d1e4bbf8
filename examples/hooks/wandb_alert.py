#!/usr/bin/env python3
"""--on-event examples/hooks/wandb_alert.py: an alert of Weights & Biases in the run that the script has opened.

The script opens it by wandb.init(id=os.environ["FTSLURM_RUN_ID"], resume="allow"): the same over requeues.
"""

import json
import os
import sys

import wandb

report = json.load(sys.stdin)
event = report["event"]
if event["name"] in ("failure", "hang", "requeue", "end"):
    settings = wandb.Settings(mode="shared", x_primary=False)
    run = wandb.init(project=os.environ["WANDB_PROJECT"], id=os.environ["FTSLURM_RUN_ID"], settings=settings)
    run.alert(title=f"{event['name']}: {report['run']['id']}", text=event["text"])
    run.finish()
