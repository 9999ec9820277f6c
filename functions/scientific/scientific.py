"""Searches a graph of 100,000 nodes breadth-first, as every question of "how far" does. SeBS calls it graph-bfs.

    storage, input, output   the storage server's URL, and the objects that are read and written there, as bucket/key
    source                   the node to begin with (default: 0)

The graph is a sequence of little-endian 32-bit numbers: nodes n, edges m, then n + 1 offsets and m targets; the neighbours of node v are
targets[offsets[v]:offsets[v + 1]]. What is stored are n such numbers, each node's distance from the source, 4294967295 where none leads.
"""
import array
import sys
import time
import urllib.request

FAR = 0xFFFFFFFF


def main(args):
    begin = time.monotonic()
    content = fetch(args, "input")
    fetched = time.monotonic()
    distances, levels = search(*graph(content), int(args.get("source", 0)))
    computed = time.monotonic()
    store(args, "output", numbers(distances).tobytes())
    return {
        "output": args["output"],
        "nodes": len(distances),
        "levels": levels,
        "ms": {
            "download": 1000 * (fetched - begin),
            "compute": 1000 * (computed - fetched),
            "upload": 1000 * (time.monotonic() - computed),
        },
    }


def graph(content):
    words = numbers(array.array("I", content))
    nodes, edges = words[0], words[1]
    if len(words) != 2 + nodes + 1 + edges:
        raise ValueError(f"the graph says {nodes} nodes and {edges} edges, and has {len(words)} numbers")
    return words[2:3 + nodes].tolist(), words[3 + nodes:].tolist()


def search(offsets, targets, source):
    """The distance of each node, and how many there are at each distance."""
    distances = array.array("I", [FAR]) * (len(offsets) - 1)
    distances[source] = 0
    front, levels = [source], []
    while front:
        levels.append(len(front))
        found = []
        for node in front:
            for neighbour in targets[offsets[node]:offsets[node + 1]]:
                if distances[neighbour] == FAR:
                    distances[neighbour] = len(levels)
                    found.append(neighbour)
        front = found
    return distances, levels


def numbers(words):
    if sys.byteorder == "big":
        words.byteswap()
    return words


def fetch(args, name):
    """The object that the parameter name names."""
    return ask(urllib.request.Request(url(args, name)))


def store(args, name, content):
    ask(urllib.request.Request(url(args, name), content, method="PUT"))


def url(args, name):
    if not (args.get("storage") and args.get(name)):
        raise ValueError(f"the parameters storage and {name} are needed, as http://HOST:PORT and BUCKET/KEY")
    return args["storage"] + "/" + args[name]


def ask(request):
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()
    except OSError as error:
        raise OSError(f"{request.get_method()} {request.full_url}: {error}") from None
