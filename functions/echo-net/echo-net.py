"""Sends back over the network what it fetched from there: what a network costs, and nothing else.

    storage, input, output   the storage server's URL, and the objects that are read and written there, as bucket/key
"""
import http.client
import time
import urllib.parse


def main(args):
    for name in ("storage", "input", "output"):
        if not args.get(name):
            raise ValueError(f"the parameter {name} is needed: storage is http://HOST:PORT, input and output are BUCKET/KEY")
    begin = time.monotonic()
    server = urllib.parse.urlsplit(args["storage"])
    connection = http.client.HTTPConnection(server.hostname, server.port, timeout=60)
    content = ask(connection, "GET", args["input"])
    fetched = time.monotonic()
    address = connection.sock.getsockname()[0] if connection.sock else ""
    ask(connection, "PUT", args["output"], content)
    connection.close()
    return {
        "output": args["output"],
        "bytes": len(content),
        "address": address,
        "ms": {"download": 1000 * (fetched - begin), "upload": 1000 * (time.monotonic() - fetched)},
    }


def ask(connection, method, key, body=None):
    connection.request(method, "/" + key, body)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise OSError(f"{method} {key}: {answer.status} {content[:200].decode(errors='replace')}")
    return content
