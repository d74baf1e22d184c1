"""The main process of every sandbox: runs commands and moves files at the host's request.

It runs inside the sandbox, as its PID 1, under whatever Python 3 the sandbox has: standard library
only, and only imports that start fast (no json, subprocess or signal: each costs milliseconds).
Being PID 1 has three uses: the kernel ignores a SIGKILL that comes from inside, orphans become its
children to be reaped, and everything inside ends with it.

Protocol on stdin and stdout: a frame is a big-endian u32 length and so many bytes, which are a list
of fields, each again a u32 length and bytes; numbers are ASCII decimals. The first field of a
request is its verb, of an answer `ok` or `error` (then errno and a message):

    exec command timeout_s max_output_bytes
                              -> exit_code|- duration_s cpu_s flags omitted_bytes head tail
    put base (path mode content)...         ->        (mode: octal, of a folder or link with that)
    untar base content                      ->
    get path max_bytes                      -> content
    kill                                    -> how many processes could not be killed
    hand_over folder...                     ->

Arguments: `workdir=/testbed`; `become=65532`, a user and group id to change to for good where it
was started as root (the workdir is given to it); and limits to watch over where no cgroup does:
`memory_mb`, `pids` (both by looking at /proc), `max_user_processes` (RLIMIT_NPROC).

Or, where it is root and stays it, `user=agent` and `later_user=root`, as `docker run --user` takes
them: whose commands and files are the requests before `hand_over`, and those after it.
"""

import _signal  # pyright: ignore[reportMissingImports]  # `signal` costs 3 ms: enums
import errno
import fcntl
import os
import resource
import select
import struct
import sys
import time

CHUNK_BYTES = 65536
WATCH_INTERVAL_S = 0.05
BACKGROUND_READ_INTERVAL_S = 0.02  # a chatty background child costs next to nothing
KILL_LIMIT_S = 10.0
NEVER = float("inf")
PR_SET_DUMPABLE = 4
S_IFMT, S_IFREG, S_IFDIR, S_IFLNK = 0o170000, 0o100000, 0o040000, 0o120000
OOM_PREFERRED = b"1000"  # the highest score: the kernel takes these processes first
OOM_FILES = ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events")
# Here, not in what is started. Python ignores the first two by itself; the last it would let end
# this process, with a status that looks like the machine's failure, not like an agent's doing.
IGNORED = (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGINT)
BASH_PATHS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")


def prctl(option, value):
    try:
        import _ctypes

        function = _ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), "prctl")
        _ctypes.call_function(function, (option, value, 0, 0, 0))
    except (ImportError, OSError):
        return  # a Python without ctypes: the agent can then only harm its own sandbox


def open_oom_counter():
    for path in OOM_FILES:
        try:
            return os.open(path, os.O_RDONLY)
        except OSError:
            continue
    return -1


def oom_kills(counter):
    """How many processes of this sandbox's cgroup the kernel has killed for memory so far."""
    if counter < 0:
        return 0
    for line in os.pread(counter, 4096, 0).splitlines():
        if line.startswith(b"oom_kill "):
            return int(line[9:])
    return 0


def children_cpu_s():
    """CPU time of everything that has ended inside: orphans, too, are PID 1's to reap."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class OomScore:
    """Where memory runs out the kernel should take the agent's processes, not PID 1: they start
    with the highest score. All of them do: one without it would be spared for a smaller one.
    A preference, no limit: it is left alone where the sandbox may not write it.
    """

    def __init__(self):
        self.file, self.own = -1, b""
        try:
            self.file = os.open("/proc/self/oom_score_adj", os.O_RDWR)
            self.own = os.pread(self.file, 16, 0).strip()
        except OSError:
            return

    def set(self, score):
        try:
            os.pwrite(self.file, score, 0)
        except OSError:
            return


class User:
    """A `name` or `id`, or either with `:group`, by the sandbox's own /etc/passwd and /etc/group,
    as container engines read them. Raises LookupError where a name is not there."""

    def __init__(self, text):
        import grp  # both are built in: no file is read for them
        import pwd

        name, _, group = text.partition(":")
        entry = None
        try:
            entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
        except KeyError:
            if not name.isdigit():
                raise LookupError("there is no user " + name + " in the image") from None
        self.uid = entry.pw_uid if entry else int(name)
        self.gid = entry.pw_gid if entry else 0
        self.groups = []
        self.home = entry.pw_dir if entry else "/"
        if group:
            try:
                self.gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
            except KeyError:
                raise LookupError("there is no group " + group + " in the image") from None
        elif entry:
            self.groups = [g.gr_gid for g in grp.getgrall() if entry.pw_name in g.gr_mem]

    def become(self):
        """For good: root's capabilities go with it, unless it is root."""
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)

    def act(self):
        """For a while: root stays the saved user id, for `be_root_again`."""
        os.setgroups(self.groups)
        os.setegid(self.gid)
        os.seteuid(self.uid)

    def safe_home(self):
        """Its home, or `/` where another user could put start-up files (a home in /tmp)."""
        path = home = os.path.realpath(self.home)
        try:
            while True:
                found = os.stat(path)
                if found.st_uid not in (0, self.uid) or found.st_mode & 0o022:
                    return "/"
                if path == "/":
                    return home
                path = os.path.dirname(path)
        except OSError:
            return "/"


def be_root_again():
    os.seteuid(0)
    os.setegid(0)
    os.setgroups([])


def drop_access_list(folder, kind):
    try:
        os.removexattr(folder, "system.posix_acl_" + kind)
    except OSError:
        return  # there is none


class Output:
    """Head and tail of a byte stream in bounded memory."""

    def __init__(self, max_bytes):
        self.head_bytes = max_bytes - max_bytes // 2
        self.tail_bytes = max_bytes // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, data):
        self.total += len(data)
        free = self.head_bytes - len(self.head)
        if free > 0:
            self.head += data[:free]
            data = data[free:]
        self.tail += data
        if len(self.tail) > self.tail_bytes + 4 * CHUNK_BYTES:
            self.trim()

    def trim(self):
        del self.tail[: len(self.tail) - min(len(self.tail), self.tail_bytes)]

    def omitted(self):
        self.trim()
        return self.total - len(self.head) - len(self.tail)


class Server:
    def __init__(self, arguments):
        settings = dict(argument.split("=", 1) for argument in arguments)
        self.workdir = settings.get("workdir", "/testbed")
        self.memory_bytes = int(settings.get("memory_mb", 0)) << 20
        self.pids = int(settings.get("pids", 0))
        self.max_user_processes = int(settings.get("max_user_processes", 0))
        self.page_bytes = os.sysconf("SC_PAGE_SIZE")
        self.oom_score = OomScore()  # now: its file is root's once this process has changed users
        if "become" in settings:
            self.drop_root(int(settings["become"]))
        self.bash = next((path for path in BASH_PATHS if os.path.exists(path)), "bash")
        self.environment = dict(os.environb)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        # The protocol's descriptors leave 0 and 1 and are not inherited by what is started.
        self.requests = os.dup(0)
        self.answers = os.dup(1)
        self.null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(self.null, standard)
        self.wake, wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        _signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        self.oom_counter = open_oom_counter()
        self.oom_seen = oom_kills(self.oom_counter)

        self.user = self.later_user = None  # whose commands and files, where not this process's own
        self.settings = settings
        self.shell = 0  # pid of the command in progress
        self.shell_status = None
        self.pipe = -1
        self.output = Output(0)
        self.background = {}  # pipes of ended commands that children still hold -> next read time
        self.next_watch = NEVER
        self.notice = b""
        self.over_memory = False

    def find_users(self):
        if "later_user" in self.settings:
            self.user = User(self.settings["user"])
            self.later_user = User(self.settings["later_user"])

    def drop_root(self, user):
        """Leave root, and with it every capability, before anything of the agent's exists."""
        os.chown(self.workdir, user, user)  # git refuses a repository that is another user's
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)

    # --- frames ---------------------------------------------------------------------------------

    def read_exactly(self, count):
        data = bytearray(count)
        view = memoryview(data)
        done = 0
        while done < count:
            got = os.readv(self.requests, [view[done:]])
            if got == 0:
                os._exit(0)  # the host has gone or wants the end: everything inside ends with PID 1
            done += got
        return view

    def read_request(self):
        (length,) = struct.unpack("!I", self.read_exactly(4))
        frame = self.read_exactly(length)
        fields = []
        position = 0
        while position < length:
            (size,) = struct.unpack_from("!I", frame, position)
            fields.append(frame[position + 4 : position + 4 + size])
            position += 4 + size
        return fields

    def answer(self, *fields):
        size = sum(4 + len(field) for field in fields)
        parts = [struct.pack("!I", size)]
        for field in fields:
            parts += (struct.pack("!I", len(field)), field)
        data = memoryview(b"".join(parts))
        while data:
            data = data[os.write(self.answers, data) :]

    # --- running --------------------------------------------------------------------------------

    def serve(self):
        try:
            self.find_users()  # now: an agent that is root may edit /etc/passwd
        except LookupError as error:
            self.answer(b"error", b"0", str(error).encode("utf-8", "surrogateescape"))
            os._exit(0)
        self.answer(b"ok")
        while True:
            if self.wait(None):
                self.handle(self.read_request())

    def handle(self, request):
        verb = bytes(request[0])
        try:
            if verb == b"exec":
                self.run(bytes(request[1]), float(request[2].tobytes()), int(bytes(request[3])))
            elif verb in (b"put", b"untar", b"get"):
                self.answer(b"ok", *self.move(verb, request))
            elif verb == b"hand_over" and self.later_user is not None:
                self.hand_over([bytes(folder) for folder in request[1:]], self.later_user)
                self.answer(b"ok")
            elif verb == b"kill":
                self.kill_everything()
                left = [n for n in os.listdir("/proc") if n.isdigit() and n != "1"]
                self.answer(b"ok", b"%d" % len(left))
            else:
                self.answer(b"error", b"%d" % errno.ENOSYS, b"unknown verb " + verb)
        except OSError as error:
            text = str(error).encode("utf-8", "surrogateescape")
            self.answer(b"error", b"%d" % (error.errno or 0), text)

    def wait(self, until):
        """Sleep until something happens; True when a request can be read."""
        now = time.monotonic()
        times = [until] if until is not None else []
        poll = select.poll()
        poll.register(self.requests, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        if self.pipe >= 0:
            poll.register(self.pipe, select.POLLIN)
        for pipe, due in self.background.items():
            if due <= now:
                poll.register(pipe, select.POLLIN)
            else:
                times.append(due)
        if self.next_watch < NEVER:
            times.append(self.next_watch)
        timeout_ms = max(0.0, min(times) - now) * 1000 + 0.5 if times else None
        ready = {descriptor for descriptor, _ in poll.poll(timeout_ms)}
        if self.wake in ready:
            os.read(self.wake, 4096)
            self.reap()
        for pipe in [pipe for pipe in self.background if pipe in ready]:
            if self.read_pipe(pipe):
                self.background[pipe] = time.monotonic() + BACKGROUND_READ_INTERVAL_S
            else:
                del self.background[pipe]
                os.close(pipe)
        if self.pipe in ready:
            data = self.read_pipe(self.pipe)
            if data:
                self.output.add(data)
            else:
                os.close(self.pipe)
                self.pipe = -1
        if time.monotonic() >= self.next_watch:
            self.watch()
        if self.requests not in ready:
            return False
        if self.shell:
            os._exit(0)  # the host never writes while a command runs: this is its end of file
        return True

    def read_pipe(self, pipe):
        try:
            return os.read(pipe, CHUNK_BYTES)
        except BlockingIOError:
            return b""

    def has_children(self):
        """Whether anything runs inside: what has lost its parent is this process's child."""
        self.reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.shell:
                self.shell_status = status

    def run(self, command, timeout_s, max_bytes):
        started = time.monotonic()
        cpu_before_s = children_cpu_s()
        deadline = started + timeout_s
        self.output = Output(max_bytes)
        self.shell_status = None
        self.notice = b""
        self.over_memory = False
        writer = -1
        try:
            self.pipe, writer = os.pipe2(os.O_CLOEXEC)
            fcntl.fcntl(self.pipe, fcntl.F_SETFL, os.O_NONBLOCK)
            self.start_shell(command, writer)
        except OSError as error:  # background children use up the process limit: the agent's doing
            text = b"cannot start the command: " + str(error).encode() + b"\n"
            for end in (self.pipe, writer):
                if end >= 0:
                    os.close(end)
            self.pipe = -1
            self.answer(b"ok", b"126", b"0", b"0", b"", b"0", text, b"")
            return
        os.close(writer)
        if self.memory_bytes or self.pids:
            self.next_watch = started + WATCH_INTERVAL_S
        timed_out = False
        while self.shell_status is None and not timed_out:
            self.wait(deadline)
            timed_out = self.shell_status is None and time.monotonic() >= deadline
        if timed_out:
            self.kill_everything()
        self.shell = 0
        self.finish_pipe()
        status = self.shell_status
        if timed_out or status is None:
            code = b"-"
        elif os.WIFSIGNALED(status):
            code = b"%d" % (128 + os.WTERMSIG(status))
        else:
            code = b"%d" % os.WEXITSTATUS(status)
        kills = oom_kills(self.oom_counter)
        flags = [b"timed_out"] if timed_out else []
        if not timed_out and status is not None and os.WIFSIGNALED(status):
            flags.append(b"killed")
        if self.over_memory or kills > self.oom_seen:
            flags.append(b"out_of_memory")
        self.oom_seen = kills
        self.output.add(self.notice)
        omitted = b"%d" % self.output.omitted()
        duration = b"%.6f" % (time.monotonic() - started)
        cpu = b"%.6f" % (children_cpu_s() - cpu_before_s)
        shown = (self.output.head, self.output.tail)
        self.output = Output(0)
        self.answer(b"ok", code, duration, cpu, b" ".join(flags), omitted, *shown)

    def finish_pipe(self):
        """Take what is already in the pipe; what background children still write is discarded."""
        left = 1 << 20  # a pipe holds no more; a child may refill it for ever
        while self.pipe >= 0 and left > 0:
            try:
                data = os.read(self.pipe, CHUNK_BYTES)
            except BlockingIOError:
                self.background[self.pipe] = 0.0
                self.pipe = -1
                return
            if not data:
                os.close(self.pipe)
                self.pipe = -1
                return
            left -= len(data)
            self.output.add(data)
        if self.pipe >= 0:
            self.background[self.pipe] = 0.0
            self.pipe = -1

    def start_shell(self, command, writer):
        limits = self.memory_bytes or self.max_user_processes
        if limits or self.user is not None or self.has_children():
            self.shell = os.fork()
            if self.shell == 0:
                self.become_shell(command, writer)
            return
        # Without limits or a user that must be the child's alone, and without anybody else inside:
        # whoever stops a spawned child before bash is there stops this process with it. No memory
        # is copied for it, which is half the cost of a fork.
        os.chdir(self.workdir)
        # Inherited: were it set once bash is there, bash could have children without it by then.
        self.oom_score.set(OOM_PREFERRED)
        try:
            self.shell = os.posix_spawn(
                self.bash,
                [b"bash", b"-c", command],
                self.environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, self.null, 0)]
                + [(os.POSIX_SPAWN_DUP2, writer, standard) for standard in (1, 2)],
                setsid=True,
                setsigdef=IGNORED,
            )
        finally:
            self.oom_score.set(self.oom_score.own)

    def become_shell(self, command, writer):
        """In the child: never returns."""
        try:
            os.setsid()
            os.dup2(self.null, 0)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            _signal.set_wakeup_fd(-1)
            for number in IGNORED:
                _signal.signal(number, _signal.SIG_DFL)
            if self.memory_bytes:
                resource.setrlimit(resource.RLIMIT_DATA, (self.memory_bytes, self.memory_bytes))
            if self.max_user_processes:
                limit = self.max_user_processes
                resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
            os.close(self.requests)
            os.close(self.answers)
            prctl(PR_SET_DUMPABLE, 1)  # /proc/self is root's otherwise
            OomScore().set(OOM_PREFERRED)
            if self.user is not None:
                self.user.become()
            os.chdir(self.workdir)
            os.execve(self.bash, ["bash", "-c", command], os.environ)
        except OSError as error:
            os.write(2, b"cannot run the command: " + str(error).encode() + b"\n")
        finally:
            os._exit(126)

    # --- limits ---------------------------------------------------------------------------------

    def kill_everything(self):
        """SIGKILL until nobody is left. One kill(-1) reaches every process at once: a fork in
        progress sees the signal and fails, so a fork bomb cannot outrun it."""
        give_up = time.monotonic() + KILL_LIMIT_S
        while time.monotonic() < give_up:
            try:
                os.kill(-1, _signal.SIGKILL)
            except ProcessLookupError:
                return
            self.reap()
            time.sleep(0.0005)
            self.reap()

    def watch(self):
        """Where no cgroup limits the sandbox: count processes and private memory in /proc."""
        count = 0
        memory_bytes = 0  # at first with pages that forked processes share counted for each
        for name in os.listdir("/proc"):
            if not name.isdigit() or name == "1":
                continue
            try:
                with open("/proc/" + name + "/statm", "rb") as statm:
                    fields = statm.read().split()
            except OSError:
                continue
            count += 1
            memory_bytes += (int(fields[1]) - int(fields[2])) * self.page_bytes
        if self.memory_bytes < memory_bytes:
            memory_bytes = self.shared_out_memory_bytes()
        if self.memory_bytes and memory_bytes > self.memory_bytes:
            self.over_memory = True
            self.notice += b"\n[killed: out of memory]\n"
            self.kill_everything()
        elif self.pids and count > self.pids:
            self.notice += b"\n[killed: more than %d processes]\n" % self.pids
            self.kill_everything()
        self.next_watch = time.monotonic() + WATCH_INTERVAL_S if count else NEVER

    def shared_out_memory_bytes(self):
        """Private memory with shared pages divided among their owners; slower to find out."""
        total = 0
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                try:
                    with open("/proc/" + name + "/smaps_rollup", "rb") as rollup:
                        lines = rollup.read().splitlines()
                except OSError:
                    continue
                total += sum(int(line.split()[1]) for line in lines if line[:9] == b"Pss_Anon:")
        return total * 1024

    # --- files ----------------------------------------------------------------------------------

    def move(self, verb, request):
        """Files in or out, as the user whose commands these are: a link leads where he may go."""
        path = os.path.join(self.workdir.encode(), bytes(request[1]))
        if self.user is not None:
            self.user.act()
        try:
            if verb == b"get":
                return [self.get(path, int(bytes(request[2])))]
            if verb == b"untar":
                self.untar(path, request[2])
            else:
                for index in range(2, len(request), 3):
                    name, mode, content = request[index : index + 3]
                    self.put(os.path.join(path, bytes(name)), int(bytes(mode), 8), content)
            return []
        finally:
            if self.user is not None:
                be_root_again()

    def hand_over(self, folders, user):
        """To the later user for good, and `folders` to it alone."""
        for path in folders:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                for kind in ("access", "default"):  # its owner may have let others in
                    drop_access_list(folder, kind)
                os.fchown(folder, user.uid, user.gid)
                os.fchmod(folder, 0o700)
            finally:
                os.close(folder)
        self.user = user
        os.environ["HOME"] = user.safe_home()

    def put(self, path, mode, content):
        if mode & S_IFMT == S_IFDIR:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode & 0o7777)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.lexists(path):
            os.unlink(path)  # never write through a link or into a pipe somebody left here
        if mode & S_IFMT == S_IFLNK:
            os.symlink(bytes(content), path)
            return
        mode &= 0o7777
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            while content:
                content = content[os.write(target, content) :]
            os.fchmod(target, mode)
        finally:
            os.close(target)

    def untar(self, base, content):
        os.makedirs(base, exist_ok=True)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        errors = os.memfd_create("errors")  # not a pipe: nobody reads while the archive is written
        child = os.fork()
        if child == 0:
            try:
                os.dup2(reader, 0)
                os.dup2(errors, 2)
                if self.user is not None:
                    be_root_again()
                    self.user.become()
                os.execvpe("tar", ["tar", "-x", "--no-same-owner", "-C", base], os.environ)
            finally:
                os._exit(127)
        os.close(reader)
        try:
            while content:
                content = content[os.write(writer, content) :]
        except BrokenPipeError:
            pass  # tar says why on its standard error
        os.close(writer)
        status = os.waitpid(child, 0)[1]
        message = os.pread(errors, 4096, 0)
        os.close(errors)
        if status != 0:
            code = errno.ENOSPC if b"No space left" in message else errno.EIO
            raise OSError(code, "tar: " + message.decode("utf-8", "replace").strip())

    def get(self, path, max_bytes):
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO must not block
        try:
            found = os.fstat(source)
            if found.st_mode & S_IFMT != S_IFREG:
                raise OSError(errno.EINVAL, "not a regular file: " + os.fsdecode(path))
            if found.st_size > max_bytes:
                limit = f"larger than {max_bytes} bytes: "
                raise OSError(errno.EFBIG, limit + os.fsdecode(path))
            content = bytearray()
            while len(content) <= max_bytes:
                data = os.read(source, 1 << 20)
                if not data:
                    break
                content += data
            return content[:max_bytes]
        finally:
            os.close(source)


if __name__ == "__main__":
    server = Server(sys.argv[1:])
    # Same-user processes can then neither trace this one nor open its pipes through /proc.
    prctl(PR_SET_DUMPABLE, 0)
    try:
        server.serve()
    except MemoryError:  # only the agent's limits on this process can cause it
        os._exit(137)
