#!/bin/sh
# --on-event examples/hooks/mail.sh: a mail for what a person should know. Needs the command mail on the nodes.
case $FTSLURM_EVENT in failure | hang | end) ;; *) exit 0 ;; esac
python3 -c 'import json, sys; report = json.load(sys.stdin); print(report["summary"])
cause = report["cause"] or {}
print(cause.get("what", ""), cause.get("advice", ""), report["run"]["directory"], sep="\n")' |
  mail -s "$FTSLURM_RUN_ID: $FTSLURM_EVENT: $FTSLURM_EVENT_TEXT" "${MAIL_TO:-$USER}"
