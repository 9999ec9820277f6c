"""Runs one Python action behind the OpenWhisk container protocol.

    POST /init {"value": {"code", "main", "binary", "env"}}   loads the action, once
    POST /run  {"value": {...}, "activation_id": ..., ...}    calls it; the reply is what it returned

The socket listens before anything else is imported, because that is when the host takes the runtime for ready: what JSON needs is
imported while the first request is on its way. For the same reason HTTP is read here by hand, from the C socket module. Requests are
served one at a time, whatever the number of connections; an action runs in the main thread.
"""
import sys
from posix import environ as start

import _socket

SENTINEL = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX\n"

listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(start.get(b"PORT", 8080))))
listener.listen(64)

import json  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402


class Refused(Exception):
    """A request that is answered with a status and a reason."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


class Action:
    """The function and its state: not loaded, loaded, or over (main is None again) since it wanted to end the interpreter."""

    def __init__(self):
        self.main = None
        self.loaded = False

    def init(self, request):
        if self.loaded:
            raise Refused(403, "Cannot initialize the action more than once.")
        value = request.get("value")
        if not isinstance(value, dict) or not value.get("code"):
            raise Refused(403, "Missing main/no code to execute.")
        for key, setting in (value.get("env") or {}).items():
            os.environ[key] = setting if isinstance(setting, str) else json.dumps(setting)
        try:
            self.main = load(value["code"], value.get("main") or "main", value.get("binary"))
        except Refused:
            raise
        except BaseException:
            complain()
            if os.environ.get("OW_LOG_INIT_ERROR"):
                end_logs()
            raise Refused(502, "Cannot start action. Check logs for details.") from None
        self.loaded = True
        return '{"ok": true}'

    def run(self, request):
        if self.main is None:
            raise Refused(500, "no action defined yet")
        try:
            for key, setting in request.items():
                if key != "value" and setting is not None:
                    os.environ["__OW_" + key.upper()] = str(setting)
            value = request.get("value")
            result = self.call({} if value is None else value)
            if not isinstance(result, (dict, list)):
                raise Refused(502, "The action did not return a dictionary or array.")
            return encode(result)
        finally:
            end_logs()

    def call(self, arguments):
        try:
            return self.main(arguments)
        except Exception as error:
            complain()
            return {"error": str(error)}
        except BaseException:  # sys.exit() and the like
            self.main = None
            complain()
            raise Refused(400, "command exited") from None


def load(code, main, binary):
    """Lays the action out in a directory of its own and imports it; the module is called main__, as in OpenWhisk's own runtime."""
    import tempfile
    home = tempfile.mkdtemp(prefix="action-")
    module = os.path.join(home, "main__.py")
    if binary:
        unzip(code, home)
        try:
            os.rename(os.path.join(home, "__main__.py"), module)
        except FileNotFoundError:
            raise Refused(502, "Zip file does not include __main__.py at its top level.") from None
    else:
        with open(module, "w", encoding="utf-8") as file:
            file.write(code)
    os.chdir(home)
    sys.path.insert(0, home)
    libraries = os.path.join(home, "virtualenv", "lib")
    if os.path.isdir(libraries):
        sys.path[1:1] = [os.path.join(libraries, name, "site-packages") for name in sorted(os.listdir(libraries))]
    function = getattr(__import__("main__"), main)
    if not callable(function):
        raise TypeError(main + " is not a function")
    return function


def unzip(code, home):
    import base64
    import io
    import zipfile
    try:
        archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(code, validate=True)))
    except ValueError as error:
        raise Refused(400, "cannot decode the request: " + str(error)) from None
    except zipfile.BadZipFile as error:
        raise Refused(502, "cannot unzip the action: " + str(error)) from None
    with archive:
        archive.extractall(home)


def complain():
    import traceback
    traceback.print_exc()


def end_logs():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.write(SENTINEL)
            stream.flush()
        except (OSError, ValueError):  # the action closed it
            os.write(1 if stream is sys.stdout else 2, SENTINEL.encode())


def answer(method, path, body):
    """Routes one request. Returns the status and the JSON text of the reply."""
    try:
        handler = {"/init": action.init, "/run": action.run}.get(path)
        if handler is None:
            raise Refused(404, "no such path; the runtime serves POST /init and POST /run")
        if method != "POST":
            raise Refused(405, "use POST")
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Refused(400, "Error unmarshaling request: " + str(error)) from None
        if not isinstance(request, dict):
            raise Refused(400, "Error unmarshaling request: not an object")
        return 200, handler(request)
    except Refused as refused:
        return refused.status, json.dumps({"error": str(refused)})


def encode(result):
    try:
        return json.dumps(result, ensure_ascii=False)
    except Exception as error:
        complain()
        raise Refused(502, "The action's result is not JSON: " + str(error)) from None


class Connection:
    """One HTTP/1.1 connection, kept open between requests."""

    def __init__(self, fd):
        self.socket = _socket.socket(fileno=fd)
        self.socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self.read = b""

    def serve(self):
        """Serves the request that has begun to arrive, and those sent along with it. Returns whether more may come."""
        alive = self.serve_one()
        while alive and self.read:
            alive = self.serve_one()
        return alive

    def serve_one(self):
        while b"\r\n\r\n" not in self.read:
            if not self.receive() or len(self.read) > 65536 and b"\r\n\r\n" not in self.read:
                return False
        head, _, self.read = self.read.partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        parts = line.split(" ")
        length = headers.get("content-length", "0")
        if len(parts) != 3 or not length.isdecimal() or "transfer-encoding" in headers:
            self.reply(400, '{"error": "a request needs a Content-Length"}', "close")
            return False
        body = self.take(int(length))
        if body is None:
            return False
        keep = "close" if headers.get("connection", "").lower() == "close" else "keep-alive"
        self.reply(*answer(parts[0], parts[1], body), keep)
        return keep == "keep-alive"

    def receive(self):
        chunk = self.socket.recv(1 << 16)
        self.read += chunk
        return bool(chunk)

    def take(self, length):
        body = bytearray(self.read[:length])
        self.read = self.read[length:]
        while len(body) < length:
            chunk = self.socket.recv(min(1 << 20, length - len(body)))
            if not chunk:
                return None
            body += chunk
        return body

    def reply(self, status, text, keep):
        body = text.encode("utf-8", "replace")
        head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\n" \
               f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: {keep}\r\n\r\n"
        self.socket.sendall(head.encode() + body)


def serve():
    poll, connections = select.poll(), {}
    poll.register(listener.fileno(), select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                fd, _ = listener._accept()
                connections[fd] = Connection(fd)
                poll.register(fd, select.POLLIN)
                continue
            try:
                alive = connections[fd].serve()
            except OSError:  # the client went away
                alive = False
            if not alive:
                poll.unregister(fd)
                connections.pop(fd).socket.close()


action = Action()
serve()
