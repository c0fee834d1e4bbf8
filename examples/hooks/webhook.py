#!/usr/bin/env python3
"""--on-event examples/hooks/webhook.py: a line in a chat (Slack, Mattermost, Teams) by its webhook, CHAT_WEBHOOK."""

import json
import os
import sys
import urllib.request

report = json.load(sys.stdin)
event = report["event"]
text = f"*{report['run']['id']}* {event['name']}: {event['text']}"
cause = report["cause"]
if event["name"] in ("failure", "hang") and cause is not None:
    text += f"\n> {cause['what']}"
request = urllib.request.Request(
    os.environ["CHAT_WEBHOOK"], json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
)
urllib.request.urlopen(request, timeout=20)
