"""Says what a picture shows, by a residual network such as ResNet-50. SeBS calls it image-recognition.

    storage, input, output   the storage server's URL, and the objects that are read and written there, as bucket/key
    weights                  the object that holds the network: a safetensors file whose tensors are named as torchvision's, so that the
                             published ResNet-18 to ResNet-152 run as they are

The network is read off its weights: as many stages, blocks and channels as there are tensors for, basic blocks or bottlenecks. The default
ones are those of a small network that fastiov makes, which tells patterns apart; they are no ImageNet, and the answer says so.
"""
import io
import json
import struct
import time
import urllib.request

import numpy as np
from PIL import Image

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, which all these networks expect
TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
EPSILON = 1e-5

networks = {}  # by the URL of their weights: a warm sandbox has them still


def main(args):
    begin = time.monotonic()
    picture = fetch(args, "input")
    network = load(args)
    fetched = time.monotonic()
    scores = network.scores(pixels(picture))
    likely = network.likely(scores)
    computed = time.monotonic()
    answer = {"network": network.name, "classes": likely}
    store(args, "output", json.dumps({**answer, "scores": scores.tolist()}).encode())
    print(f"{network.name}: {likely[0]['label']}")
    return {
        "output": args["output"],
        **answer,
        "ms": {
            "download": 1000 * (fetched - begin),
            "compute": 1000 * (computed - fetched),
            "upload": 1000 * (time.monotonic() - computed),
        },
    }


def pixels(picture):
    """The middle 224×224 of the picture once its shorter side is 256, in the colours' standard scores."""
    with Image.open(io.BytesIO(picture)) as image:
        image = image.convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize([round(scale * side) for side in image.size], Image.Resampling.BILINEAR)
        left, top = [(side - 224) // 2 for side in image.size]
        values = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32) / 255
    return ((values - np.float32(MEAN)) / np.float32(DEVIATION)).transpose(2, 0, 1)


class Network:
    """A residual network. Activations are arrays of channels, rows, columns."""

    def __init__(self, tensors, said):
        self.tensors = tensors
        self.labels = json.loads(said.get("labels", "[]"))
        convolutions = [name for name, tensor in tensors.items() if tensor.ndim == 4 and "downsample" not in name]
        if not {"conv1.weight", "fc.weight", "layer1.0.conv1.weight"} <= tensors.keys():
            raise ValueError("the weights are of no residual network: conv1, layer1.0.conv1 and fc must be among the tensors")
        self.name = said.get("name", f"ResNet-{len(convolutions) + 1}")

    def scores(self, x):
        x = relu(self.norm("bn1", self.conv("conv1", x, 2, 3)))
        x = windows(np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf), 3, 2).max((3, 4))
        for stage in self.series("layer", 1, ".0.conv1.weight"):
            for block in self.series(stage + ".", 0, ".conv1.weight"):
                x = self.block(block, x, 2 if stage != "layer1" and block.endswith(".0") else 1)
        return self.tensors["fc.weight"] @ x.mean((1, 2)) + self.tensors["fc.bias"]

    def block(self, name, x, stride):
        kept = x
        if name + ".downsample.0.weight" in self.tensors:
            kept = self.norm(name + ".downsample.1", self.conv(name + ".downsample.0", x, stride, 0))
        if name + ".conv3.weight" in self.tensors:  # a bottleneck: narrow, look around, widen
            x = relu(self.norm(name + ".bn1", self.conv(name + ".conv1", x, 1, 0)))
            x = relu(self.norm(name + ".bn2", self.conv(name + ".conv2", x, stride, 1)))
            x = self.norm(name + ".bn3", self.conv(name + ".conv3", x, 1, 0))
        else:
            x = relu(self.norm(name + ".bn1", self.conv(name + ".conv1", x, stride, 1)))
            x = self.norm(name + ".bn2", self.conv(name + ".conv2", x, 1, 1))
        return relu(x + kept)

    def series(self, prefix, number, has):
        """The names prefix1, prefix2 and so on, as long as the network has them."""
        while f"{prefix}{number}{has}" in self.tensors:
            yield f"{prefix}{number}"
            number += 1

    def conv(self, name, x, stride, padding):
        weight = self.tensors[name + ".weight"]
        out, _, size, _ = weight.shape
        seen = windows(np.pad(x, ((0, 0), (padding, padding), (padding, padding))), size, stride)
        _, rows, columns, _, _ = seen.shape
        return (weight.reshape(out, -1) @ seen.transpose(0, 3, 4, 1, 2).reshape(-1, rows * columns)).reshape(out, rows, columns)

    def norm(self, name, x):
        scale = self.tensors[name + ".weight"] / np.sqrt(self.tensors[name + ".running_var"] + np.float32(EPSILON))
        shift = self.tensors[name + ".bias"] - scale * self.tensors[name + ".running_mean"]
        return x * scale[:, None, None] + shift[:, None, None]

    def likely(self, scores):
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        best = np.argsort(-shares)[:5]
        return [{"label": self.labels[n] if n < len(self.labels) else f"class {n}", "probability": float(shares[n])} for n in best]


def relu(x):
    return np.maximum(x, 0)


def windows(x, size, stride):
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))[:, ::stride, ::stride]


def load(args):
    key = url(args, "weights")
    if key not in networks:
        content = fetch(args, "weights")
        (length,) = struct.unpack_from("<Q", content)
        listed = json.loads(content[8:8 + length])
        said = listed.pop("__metadata__", {})
        tensors = {name: tensor(content, 8 + length, **entry) for name, entry in listed.items() if entry["dtype"] in TYPES}
        networks.clear()
        networks[key] = Network(tensors, said)
    return networks[key]


def tensor(content, begin, dtype, shape, data_offsets):
    count = (data_offsets[1] - data_offsets[0]) // np.dtype(TYPES[dtype]).itemsize
    values = np.frombuffer(content, TYPES[dtype], count, begin + data_offsets[0])
    return values.astype(np.float32, copy=False).reshape(shape)


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
