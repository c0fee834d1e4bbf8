"""Asks a service for data; argv[1] says what it answers."""

import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

from ranks import train


class Busy(BaseHTTPRequestHandler):
    """A service with too many clients."""

    def do_GET(self) -> None:
        self.send_error(429)


def harm() -> None:
    host = "no-such-host.invalid"
    if sys.argv[1] == "busy":
        server = HTTPServer(("127.0.0.1", 0), Busy)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{host}/data")  # here


train(harm)
