"""The only way out of a sandbox whose task allows hosts: run in a container beside it.

It stands in a network with its sandbox alone, and in one that leads out. Inside the sandbox allowed
names mean its address. A connection to port 80 or 443 is passed on to the host that its first bytes
name (HTTP's Host, TLS's server name), encrypted ones unopened; PROXY_PORT is an HTTP proxy, for
other ports (CONNECT) and for names with a wildcard. The gate looks names up itself and connects to
public addresses only, whatever a name resolves to; `mirror=` arguments are the one exception.

Like agent_server.py it is sent into whatever Python 3 the image has, standard library only, and is
its container's PID 1, which ends with its standard input. Frames as there; requests:

    allow name...   -> from now on these and no others: open connections end
    ping            ->

Arguments: `address=` its own in the sandbox's network, `gateway=` the one where an engine may have
put its host, which must not answer; `mirror=NAME:PORT:ADDRESS`.
"""

import ipaddress
import os
import select
import socket
import struct
import sys
import threading
import time
from contextlib import suppress

PROXY_PORT = 3128
PORTS = (80, 443, PROXY_PORT)
MAX_CONNECTIONS = 128
MAX_HEAD_BYTES = 65536
HEAD_LIMIT_S = 30.0
CONNECT_LIMIT_S = 15.0
IDLE_LIMIT_S = 900.0
HALF_CLOSED_LIMIT_S = 60.0  # what the other side may still send after one has ended
CHUNK_BYTES = 65536
NEIGHBOUR_WAIT_S = 0.05  # an address on the same bridge answers in microseconds
UNRECOGNIZED_NAME = b"\x15\x03\x01\x00\x02\x02\x70"  # a TLS alert
# Everything that is not one public host's: IANA's special-purpose registries, and multicast. Of
# IPv6 only what is handed out at all, less the tunnels that have an IPv4 address in them.
PRIVATE_4 = [
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
    )
]
PUBLIC_6 = ipaddress.ip_network("2000::/3")
PRIVATE_6 = [
    ipaddress.ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]


class Refused(Exception):
    """A connection that is not passed on, with the reason."""


def is_public(text):
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # with a scope, as link-local ones have
        return False
    if address.version == 4:
        return not any(address in network for network in PRIVATE_4)
    return address in PUBLIC_6 and not any(address in network for network in PRIVATE_6)


def clean_name(text):
    """A host name in lower case; addresses, in any spelling that a resolver takes, are none."""
    name = text.lower().rstrip(".")
    labels = name.split(".")
    plain = all(
        0 < len(label) < 64 and all(c.isascii() and (c.isalnum() or c in "-_") for c in label)
        for label in labels
    )
    if not plain or len(name) > 253:
        raise Refused("no host name")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        raise Refused("an address, not a name")
    return name


def matches(name, patterns):
    """`*.suffix` is any name below the suffix, not the suffix itself."""
    return name in patterns or any(
        pattern.startswith("*.") and name.endswith(pattern[1:]) for pattern in patterns
    )


# --- what a connection asks for -----------------------------------------------------------------


def receive(client, count):
    data = client.recv(count)
    if not data:
        raise Refused("it ended before it said where to")
    return data


def server_name(client, data):
    """(name, all bytes so far) of a TLS ClientHello, which may be cut into records anyhow."""
    while True:
        hello = b""
        position = 0
        while position + 5 <= len(data):
            kind, size = data[position], int.from_bytes(data[position + 3 : position + 5], "big")
            if kind != 0x16:
                raise Refused("no TLS ClientHello")
            hello += data[position + 5 : position + 5 + size]
            position += 5 + size
        if len(hello) >= 4 and len(hello) >= 4 + int.from_bytes(hello[1:4], "big"):
            return name_in_hello(hello), data
        if len(data) > MAX_HEAD_BYTES:
            raise Refused("a ClientHello without end")
        data += receive(client, CHUNK_BYTES)


def name_in_hello(hello):
    try:
        if hello[0] != 1:
            raise Refused("no TLS ClientHello")
        position = 4 + 2 + 32
        position += 1 + hello[position]
        position += 2 + int.from_bytes(hello[position : position + 2], "big")
        position += 1 + hello[position]
        end = position + 2 + int.from_bytes(hello[position : position + 2], "big")
        position += 2
        while position + 4 <= end:
            kind, size = struct.unpack_from("!HH", hello, position)
            if kind == 0:
                name_size = struct.unpack_from("!H", hello, position + 7)[0]
                return hello[position + 9 : position + 9 + name_size].decode("ascii")
            position += 4 + size
    except (IndexError, struct.error, UnicodeDecodeError):
        raise Refused("a broken TLS ClientHello") from None
    raise Refused("TLS without a server name")


def http_head(client, data):
    """(first line's words, header lines, what came behind them)"""
    while b"\r\n\r\n" not in data:
        if len(data) > MAX_HEAD_BYTES:
            raise Refused("an HTTP head without end")
        data += receive(client, CHUNK_BYTES)
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refused("neither HTTP/1 nor TLS")
    return words, lines, rest


def header(line):
    return line.partition(":")[0].strip().lower()


def split_port(text, default):
    name, colon, port = text.rpartition(":")
    if not colon:
        return text, default
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise Refused("no port")
    return name, int(port)


def wanted(client, port):
    """(name, port, bytes for the host, bytes for the client once it is connected)"""
    data = receive(client, CHUNK_BYTES)
    if data[0] == 0x16 and port == 443:
        name, data = server_name(client, data)
        return clean_name(name), port, data, b""
    if port == 443:
        raise Refused("no TLS ClientHello")
    words, lines, rest = http_head(client, data)
    if port == PROXY_PORT:
        return through_proxy(words, lines, rest)
    hosts = [line.partition(":")[2].strip() for line in lines if header(line) == "host"]
    if len(hosts) != 1 or not words[1].startswith(("/", "*")):
        raise Refused("not one Host and a path")
    head = "\r\n".join([" ".join(words), *lines]) + "\r\n\r\n"
    return clean_name(split_port(hosts[0], port)[0]), port, head.encode("latin-1") + rest, b""


def through_proxy(words, lines, rest):
    method, target, version = words
    if method == "CONNECT":
        name, port = split_port(target, 0)
        if not port:
            raise Refused("no port")
        return clean_name(name), port, rest, b"HTTP/1.1 200 Connection established\r\n\r\n"
    scheme, _, after = target.partition("://")
    host, _, path = after.partition("/")
    if scheme.lower() != "http" or not after:
        raise Refused("only http:// URLs and CONNECT")
    name, port = split_port(host, 80)
    # One request a connection: the next may be for another host.
    gone = ("host", "connection", "keep-alive", "proxy-connection", "proxy-authorization")
    kept = [line for line in lines if header(line) not in gone]
    new = [f"{method} /{path} {version}", f"Host: {host}", *kept, "Connection: close"]
    return clean_name(name), port, ("\r\n".join(new) + "\r\n\r\n").encode("latin-1") + rest, b""


# --- passing on ---------------------------------------------------------------------------------


def relay(client, host, data):
    """Both ways until both have ended; `data` is for the host."""
    other = {client: host, host: client}
    waiting = {client: b"", host: data}  # to be sent to each
    open_sides = {client, host}
    ended = set()
    for side in other:
        side.setblocking(False)
    while True:
        readers = [side for side in open_sides if not waiting[other[side]]]
        writers = [side for side in other if waiting[side]]
        if not readers and not writers:
            return
        limit_s = IDLE_LIMIT_S if len(open_sides) == 2 else HALF_CLOSED_LIMIT_S
        readable, writable, _ = select.select(readers, writers, [], limit_s)
        if not readable and not writable:
            return
        for side in readable:
            received = side.recv(CHUNK_BYTES)
            if received:
                waiting[other[side]] = received
            else:
                open_sides.discard(side)
        for side in writable:
            waiting[side] = waiting[side][side.send(waiting[side]) :]
        for side in other:
            if side not in open_sides and not waiting[other[side]] and side not in ended:
                ended.add(side)
                other[side].shutdown(socket.SHUT_WR)


class Gate:
    def __init__(self, address, mirrors):
        self.address = address
        self.mirrors = mirrors
        self.allowed = frozenset()
        self.lock = threading.Lock()
        self.round = 0  # of the list that is in force
        self.connections = set()
        self.free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def allow(self, names):
        with self.lock:
            self.allowed = frozenset(names)
            self.round += 1
            for connection in self.connections:
                with suppress(OSError):  # it has just ended by itself
                    connection.shutdown(socket.SHUT_RDWR)

    def register(self, connection, round_):
        with self.lock:
            if round_ != self.round:
                raise Refused("the list of allowed hosts has changed")
            self.connections.add(connection)

    def forget(self, connection):
        with self.lock:
            self.connections.discard(connection)
        connection.close()

    def listen(self):
        for port in PORTS:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.address, port))
            listener.listen(128)
            start(self.accept, listener, port)
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind((self.address, 53))
        start(self.answer_names, names)

    def accept(self, listener, port):
        while True:
            try:
                client, _ = listener.accept()
            except ConnectionError:  # it was given up again
                continue
            if self.free.acquire(blocking=False):
                threading.Thread(target=self.serve, args=(client, port), daemon=True).start()
            else:
                client.close()

    def serve(self, client, port):
        round_ = self.round
        try:
            self.register(client, round_)
            client.settimeout(HEAD_LIMIT_S)
            try:
                name, host_port, data, greeting = wanted(client, port)
                host = self.connect(name, host_port)
            except Refused as refusal:
                refuse(client, port, str(refusal))
                return
            try:
                self.register(host, round_)
                client.sendall(greeting)
                relay(client, host, data)
            finally:
                self.forget(host)
        except (OSError, Refused):
            return  # either side has gone
        finally:
            self.forget(client)
            self.free.release()

    def connect(self, name, port):
        if not matches(name, self.allowed):
            raise Refused(name + " is not an allowed host")
        if (name, port) in self.mirrors:
            addresses = [self.mirrors[name, port]]
        else:
            try:
                found = socket.getaddrinfo(name.encode("ascii"), port, type=socket.SOCK_STREAM)
            except OSError as error:
                raise Refused(name + " cannot be looked up: " + str(error)) from None
            addresses = [str(entry[4][0]) for entry in found if is_public(str(entry[4][0]))]
            if not addresses:
                raise Refused(name + " has no public address")
        reason = ""
        for address in addresses:
            try:
                return socket.create_connection((address, port), timeout=CONNECT_LIMIT_S)
            except OSError as error:
                reason = str(error)
        raise Refused(name + " does not answer: " + reason)

    def answer_names(self, names):
        """DNS for the sandbox: this address for allowed names, NXDOMAIN for the rest, at once."""
        while True:
            query, sender = names.recvfrom(4096)
            answer = self.dns_answer(query)
            if answer:
                with suppress(OSError):  # as good as lost on the way
                    names.sendto(answer, sender)

    def dns_answer(self, query):
        try:
            identity, flags, questions = struct.unpack_from("!HHH", query)
            labels, position = [], 12
            while query[position]:
                size = query[position]
                labels.append(query[position + 1 : position + 1 + size].decode("ascii"))
                position += 1 + size
            kind, class_ = struct.unpack_from("!HH", query, position + 1)
            if flags & 0x8000 or questions != 1:
                return b""
        except (IndexError, struct.error, UnicodeDecodeError):
            return b""
        try:
            known = matches(clean_name(".".join(labels)), self.allowed)
        except Refused:
            known = False
        answers = 1 if known and (kind, class_) == (1, 1) else 0
        reply_flags = 0x8080 | flags & 0x0100 | (0 if known else 3)
        reply = struct.pack("!HHHHHH", identity, reply_flags, 1, answers, 0, 0)
        reply += query[12 : position + 5]
        if answers:
            reply += struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(self.address)
        return reply


def refuse(client, port, reason):
    if port == 443:
        client.sendall(UNRECOGNIZED_NAME)
        return
    body = ("refused by the sandbox's gate: " + reason + "\n").encode("latin-1", "replace")
    head = "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def start(function, *arguments):
    """A thread without which the gate is none: its failure ends the gate."""

    def run():
        try:
            function(*arguments)
        finally:
            os._exit(70)

    threading.Thread(target=run, daemon=True).start()


def answers_on_link(address):
    """Whether somebody has that address in the sandbox's network, as seen by ARP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.sendto(b"", (address, 9))
    time.sleep(NEIGHBOUR_WAIT_S)
    with open("/proc/net/arp") as table:
        entries = [line.split() for line in table]
    return any(entry[0] == address and int(entry[2], 16) & 2 for entry in entries[1:])


def send(*fields):
    frame = b"".join(struct.pack("!I", len(field)) + field for field in fields)
    data = struct.pack("!I", len(frame)) + frame
    while data:
        data = data[os.write(1, data) :]


def read(count):
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            os._exit(0)  # the harness is gone, or does not need the gate any more
        data += more
    return data


def requests():
    while True:
        frame = read(struct.unpack("!I", read(4))[0])
        fields, position = [], 0
        while position < len(frame):
            (size,) = struct.unpack_from("!I", frame, position)
            fields.append(frame[position + 4 : position + 4 + size])
            position += 4 + size
        yield fields


def main(arguments):
    own, mirrors = {}, {}
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "mirror":
            name, port, address = value.split(":", 2)
            mirrors[name.lower(), int(port)] = address
        else:
            own[key] = value
    gate, trouble = Gate(own["address"], mirrors), ""
    if answers_on_link(own["gateway"]):
        trouble = own["gateway"] + " answers: the engine has put its host into this network"
    else:
        try:
            gate.listen()
        except OSError as error:
            trouble = str(error)
    send(b"ok")
    for verb, *names in requests():
        if trouble:
            send(b"error", b"1", trouble.encode())
            continue
        if verb == b"allow":
            gate.allow(name.decode("ascii") for name in names)
        send(b"ok")


if __name__ == "__main__":
    threading.stack_size(262144)
    main(sys.argv[1:])
    os._exit(0)
