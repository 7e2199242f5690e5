#!/usr/bin/python3
"""One TCP stream from rank 1 to rank 0, under mpirun: the rate of a link without any other work.

  mpirun -np 2 --host A,B tcp_stream.py A PORT SECONDS

Rank 0, on A, measures after a warm-up, in which TCP finds the link's rate, and prints one line of JSON.
"""
import json
import os
import socket
import sys
import time

BUFFER = 4 << 20
WARM_UP, PATIENCE = 0.5, 20  # seconds; the second is for the other rank to start


def receive(port, seconds):
    with socket.create_server(("", port)) as server:
        server.settimeout(PATIENCE)
        connection, _ = server.accept()
    buffer = bytearray(BUFFER)
    begun, total, warm_since = time.monotonic(), 0, None
    while warm_since is None or time.monotonic() < warm_since + seconds:
        total += connection.recv_into(buffer)
        if warm_since is None and time.monotonic() > begun + WARM_UP:
            warm_since, total = time.monotonic(), 0
    print(json.dumps({"bytes_per_second": total / (time.monotonic() - warm_since)}))


def send(host, port):
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=PATIENCE)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    buffer = bytes(BUFFER)
    try:
        while True:
            connection.sendall(buffer)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the receiver has finished


host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    receive(port, seconds)
else:
    send(host, port)
