"""A headless Chromium, spoken to by the DevTools protocol over a pair of pipes: no port, no driver, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
TIMEOUT_S = 60.0


def find() -> str | None:
    """Return a Chromium's path: one on PATH, $FTSLURM_CHROMIUM, or playwright's."""
    named = os.environ.get("FTSLURM_CHROMIUM")
    if named:
        return named
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is not None:
        return found
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    installs = [p for p in cache.glob("chromium*/chrome-linux*/*") if p.name in ("chrome", "headless_shell")]
    return str(sorted(installs)[-1]) if installs else None


class Browser:
    """One browser with one page; ``messages`` collects what it printed to the console, ``asked`` what it fetched."""

    def __init__(self, program: str, home: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        arguments = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-extensions",
            "--disable-component-update", "--disable-sync", f"--user-data-dir={home}", "--remote-debugging-pipe",
            "about:blank",
        ]  # fmt: skip

        def wire() -> None:
            # Chromium reads from 3 and writes to 4; first out of the way, because ours may have these numbers.
            high_in, high_out = os.dup2(theirs_in, 103), os.dup2(theirs_out, 104)
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=wire,
            close_fds=False,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        self.messages: list[str] = []
        self.asked: list[str] = []
        self._loaded = False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a file and wait until it is there."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=features)
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        self._loaded = False
        self._call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + TIMEOUT_S
        while not self._loaded:
            self._receive(deadline)

    def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript gives in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}
        taken = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        """End the browser and all its processes."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser sent nothing for {TIMEOUT_S} s")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise EOFError("the browser has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, event: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.consoleAPICalled":
            self.messages.append(f"console.{event['type']}: {event['args']}")
        elif method == "Runtime.exceptionThrown":
            self.messages.append(f"exception: {event['exceptionDetails']}")
        elif method == "Log.entryAdded":
            self.messages.append(f"{event['entry']['source']}: {event['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.asked.append(event["request"]["url"])
