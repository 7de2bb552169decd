#!/usr/bin/python3
"""A stretch of network that can break: proxy.py PORT TARGET

Listens on 127.0.0.1:PORT and hands on to TARGET, host:port or the path of a
unix socket.  Commands, a line each, are read from stdin and answered by a line:

    stall   nothing passes any more in either direction, and nothing is
            closed: packets are lost, as with a cable that is pulled.  New
            connections are taken and hear nothing
    delay   the same, but what comes is taken and passes later, even if its
            sender is gone by then
    go      as before; what was held back passes
    cut     all connections are reset, and new ones at once
    count   how many connections there are
"""

import selectors
import socket
import struct
import sys

CHUNK = 65536


class Half:
    """One direction of a connection."""

    def __init__(self, source, sink):
        self.source = source
        self.sink = sink
        self.held = b""
        self.ended = False


class Proxy:
    def __init__(self, port, target):
        self.target = target
        self.state = "go"
        self.selector = selectors.DefaultSelector()
        self.pairs = {}  # socket: its other end
        self.halves = {}  # socket: the half that reads from it
        self.waiting = []  # taken while stalled
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(64)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(sys.stdin, selectors.EVENT_READ)

    def reset(self, sock):
        """Closes it so that the other side hears of it at once."""
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        sock.close()

    def drop(self, sock):
        """Ends a connection, both sides of it."""
        for end in (sock, self.pairs.pop(sock, None)):
            if end is None:
                continue
            self.pairs.pop(end, None)
            self.halves.pop(end, None)
            try:
                self.selector.unregister(end)
            except (KeyError, ValueError):
                pass
            self.reset(end)

    def connect(self, client):
        try:
            if self.target.startswith("/"):
                server = socket.socket(socket.AF_UNIX)
                server.connect(self.target)
            else:
                host, port = self.target.rsplit(":", 1)
                server = socket.create_connection((host, int(port)), 5)
        except OSError:
            self.reset(client)
            return
        for end, other in ((client, server), (server, client)):
            end.setblocking(False)
            self.pairs[end] = other
            self.halves[end] = Half(end, other)
        self.watch()

    def accept(self):
        client, _ = self.listener.accept()
        if self.state == "cut":
            self.reset(client)
        elif self.state in ("stall", "delay"):
            self.waiting.append(client)
        else:
            self.connect(client)

    def watch(self):
        """Registers what there is to wait for."""
        for sock, half in self.halves.items():
            events = 0
            if self.state == "delay" and not half.ended:
                events |= selectors.EVENT_READ
            if self.state == "go":
                if not half.held and not half.ended:
                    events |= selectors.EVENT_READ
                if self.halves[self.pairs[sock]].held:
                    events |= selectors.EVENT_WRITE
            try:
                key = self.selector.get_key(sock)
            except KeyError:
                key = None
            if key is None and events:
                self.selector.register(sock, events)
            elif key is not None and not events:
                self.selector.unregister(sock)
            elif key is not None and key.events != events:
                self.selector.modify(sock, events)

    def flush(self, half):
        if half.held:
            try:
                half.held = half.held[half.sink.send(half.held):]
            except BlockingIOError:
                return
            except ConnectionError:
                # the other direction may still have something that is to arrive
                if not self.halves[half.sink].held:
                    raise
                half.held = b""
                half.ended = True
        if half.ended and not half.held:
            try:
                half.sink.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            if self.halves[half.sink].ended and not self.halves[half.sink].held:
                self.drop(half.source)

    def let_pass(self, half):
        try:
            self.flush(half)
        except OSError:
            self.drop(half.source)

    def move(self, sock, mask):
        if sock not in self.halves:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                self.flush(self.halves[self.pairs[sock]])
            if mask & selectors.EVENT_READ and sock in self.halves:
                half = self.halves[sock]
                try:
                    data = sock.recv(CHUNK)
                except ConnectionError:
                    if self.state != "delay" and not half.held:
                        raise
                    data = b""
                half.held += data
                half.ended = not data
                if self.state == "go":
                    self.flush(half)
        except BlockingIOError:
            pass
        except OSError:
            self.drop(sock)

    def command(self):
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        verb = line.strip()
        if verb == "count":
            print(len(self.halves) // 2)
            return
        if verb not in ("stall", "delay", "go", "cut"):
            print("what?")
            return
        self.state = verb
        if verb == "cut":
            for sock in list(self.halves):
                self.drop(sock)
            for client in self.waiting:
                self.reset(client)
            self.waiting = []
        elif verb == "go":
            for sock, half in list(self.halves.items()):
                if sock in self.halves:
                    self.let_pass(half)
            for client in self.waiting:
                self.connect(client)
            self.waiting = []
        self.watch()
        print(verb)

    def run(self):
        print("ready", flush=True)
        while True:
            for key, mask in self.selector.select():
                if key.fileobj is self.listener:
                    self.accept()
                elif key.fileobj is sys.stdin:
                    self.command()
                    sys.stdout.flush()
                elif self.state in ("go", "delay"):
                    self.move(key.fileobj, mask)
            self.watch()


if __name__ == "__main__":
    Proxy(int(sys.argv[1]), sys.argv[2]).run()
