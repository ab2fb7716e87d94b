"""Servers that misbehave in an exactly known way, each on a free port of 127.0.0.1."""

import socket
import threading


class FaultyServer:
    """Calls `serve(connection)` on a thread for each connection; a context manager."""

    def __init__(self, serve):
        self.serve = serve
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.threads = []
        self.acceptor = threading.Thread(target=self.accept)

    def __enter__(self):
        self.acceptor.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)  # ends the accept
        self.acceptor.join()
        for thread in self.threads:
            thread.join()
        self.listener.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self.handle, args=(connection,))
            thread.start()
            self.threads.append(thread)

    def handle(self, connection):
        with connection:
            try:
                self.serve(connection)
            except ConnectionError:
                pass


def echoes_and_tells(begun):
    """Echoes; sets the event at the first bytes."""

    def serve(connection):
        while received := connection.recv(65536):
            begun.set()
            connection.sendall(received)

    return serve


def flips_bytes(offsets):
    """Echoes, with the bytes at these places of each connection's stream changed."""

    def serve(connection):
        position = 0
        while received := connection.recv(65536):
            answer = bytearray(received)
            for offset in offsets:
                if position <= offset < position + len(answer):
                    answer[offset - position] ^= 0x01
            connection.sendall(answer)
            position += len(answer)

    return serve


def receive_exactly(connection, size):
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            break
        received += piece
    return received


def read_to_end(connection):
    while connection.recv(65536):
        pass


def ends_after(expected_bytes, echoed_bytes):
    """Takes so many bytes, echoes so many of them, and ends the connection in order."""

    def serve(connection):
        received = receive_exactly(connection, expected_bytes)
        connection.sendall(received[:echoed_bytes])
        connection.shutdown(socket.SHUT_WR)
        read_to_end(connection)

    return serve


def adds_bytes(expected_bytes, added):
    """Takes so many bytes, and sends them back with more behind them."""

    def serve(connection):
        connection.sendall(receive_exactly(connection, expected_bytes) + added)
        read_to_end(connection)

    return serve


def resets_after(expected_bytes):
    """Takes so many bytes and resets the connection."""

    def serve(connection):
        receive_exactly(connection, expected_bytes)
        on_with_0_seconds = b"\1\0\0\0\0\0\0\0"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, on_with_0_seconds)

    return serve
