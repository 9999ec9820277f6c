"""Makes a thumbnail of 100×100 of a picture, as web sites do of what is uploaded to them. SeBS calls it thumbnailer.

    storage, input, output   the storage server's URL, and the objects that are read and written there, as bucket/key
"""
import io
import time
import urllib.request

from PIL import Image, ImageOps

SIZE = (100, 100)


def main(args):
    begin = time.monotonic()
    picture = fetch(args, "input")
    fetched = time.monotonic()
    made = thumbnail(picture)
    computed = time.monotonic()
    store(args, "output", made)
    return {
        "output": args["output"],
        "bytes": len(made),
        "ms": {
            "download": 1000 * (fetched - begin),
            "compute": 1000 * (computed - fetched),
            "upload": 1000 * (time.monotonic() - computed),
        },
    }


def thumbnail(picture):
    """The largest square in the middle of the picture, scaled to SIZE; a JPEG."""
    with Image.open(io.BytesIO(picture)) as image:
        small = ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), SIZE, Image.Resampling.LANCZOS)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=90)
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
