"""Commands that users have run at events of a run (`--on-event`)."""
