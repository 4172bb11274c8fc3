"""Whether pvebench in this container lives, for Docker; standard library only.

Whatever its web configuration says: where it wants TLS it ends this connection, where it wants a
login it says so, and both come from a process that is alive. One that hangs does neither.
"""

import socket
import sys

ADDRESS = ("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 10620)
REFUSALS = (b"401", b"421", b"429")


def main() -> int:
    """Return the exit code: 0, it lives."""
    try:
        connection = socket.create_connection(ADDRESS, timeout=4)
    except OSError:
        return 1
    with connection:
        try:
            connection.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
            answer = connection.recv(12)
        except ConnectionResetError:
            return 0
        except OSError:
            return 1
    status = answer[9:12] if answer.startswith(b"HTTP/") else b""
    return 0 if not status or status == b"200" or status in REFUSALS else 1


if __name__ == "__main__":
    sys.exit(main())
