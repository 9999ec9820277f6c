"""Packs a document of 9.7 MB into a zip archive, as a backup or an export does. SeBS calls it compression.

    storage, input, output   the storage server's URL, and the objects that are read and written there, as bucket/key
"""
import io
import time
import urllib.request
import zipfile


def main(args):
    begin = time.monotonic()
    content = fetch(args, "input")
    fetched = time.monotonic()
    archive = pack(args["input"].rsplit("/")[-1], content)
    computed = time.monotonic()
    store(args, "output", archive)
    return {
        "output": args["output"],
        "bytes": len(archive),
        "ratio": len(content) / len(archive),
        "ms": {
            "download": 1000 * (fetched - begin),
            "compute": 1000 * (computed - fetched),
            "upload": 1000 * (time.monotonic() - computed),
        },
    }


def pack(name, content):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # ZipInfo: the same bytes at any time of day
    return out.getvalue()


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
