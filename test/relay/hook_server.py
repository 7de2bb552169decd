#!/usr/bin/python3
"""A receiver of webhooks: hook_server.py PORT LOG SECRET [CERTIFICATE KEY]

What it does is in the body that comes: {"do": WHAT, "times": N}, the first N
times that this id comes (default: always), then 200.

    ok        200             created   201             empty   204
    NNN       this status     later     429, Retry-After: 2
    away      503, Retry-After: 2
    slow      200 after 6 seconds
    half      closes the connection in the middle of the status line
    reset     resets it before any answer
    redirect  302 to /elsewhere

Each request becomes a line of JSON in LOG: time, path, headers, body, and whether
its signature (Standard Webhooks) is right.
"""

import base64
import hashlib
import hmac
import http.server
import json
import socket
import ssl
import struct
import sys
import threading
import time

PORT, LOG, SECRET = int(sys.argv[1]), sys.argv[2], sys.argv[3]
lock = threading.Lock()
seen = {}


def signature_is_right(headers, body):
    if not SECRET:
        return None
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    signed = f"{headers.get('webhook-id')}.{headers.get('webhook-timestamp')}.".encode() + body
    right = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(right, s) for s in (headers.get("webhook-signature") or "").split())


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, text=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status != 204:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if status != 204:
            self.wfile.write(text)

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def do_GET(self):
        self.take()

    def do_POST(self):
        self.take()

    def take(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        event = self.headers.get("webhook-id") or self.headers.get("Idempotency-Key")
        try:
            wish = json.loads(body)
        except ValueError:
            wish = {}
        if not isinstance(wish, dict):
            wish = {}
        with lock:
            seen[event] = seen.get(event, 0) + 1
            what = str(wish.get("do", "ok"))
            if seen[event] > wish.get("times", 1 << 30):
                what = "ok"
            with open(LOG, "a") as log:
                log.write(json.dumps({
                    "time": time.time(), "method": self.command, "path": self.path, "do": what, "event": event,
                    "headers": {k.lower(): v for k, v in self.headers.items()},
                    "base64": base64.b64encode(body).decode(),
                    "signed": signature_is_right(self.headers, body),
                    "port": self.client_address[1],
                }) + "\n")
        if what == "slow":
            # sleep: it is what the client asks for
            time.sleep(6)
            what = "ok"
        if what == "later":
            self.answer(429, b"slower", Retry_After="2")
        elif what == "away":
            self.answer(503, b"back soon", Retry_After="2")
        elif what == "redirect":
            self.answer(302, b"", Location=f"http://127.0.0.1:{PORT}/elsewhere")
        elif what == "half":
            self.wfile.write(b"HTTP/1.")
            self.wfile.flush()
            self.close_connection = True
        elif what == "reset":
            self.reset()
        elif what == "created":
            self.answer(201, b"{}")
        elif what == "empty":
            self.answer(204)
        elif what.isdigit():
            self.answer(int(what), b"because " + what.encode() + b"\nand more")
        else:
            self.answer(200, b"thanks")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass


def main():
    server = Server(("127.0.0.1", PORT), Handler)
    if len(sys.argv) > 4:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[4], sys.argv[5])
        # the handshake is the thread's matter, not the listener's
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
