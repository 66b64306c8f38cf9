"""Prints the scalars and texts of a directory as TensorBoard's plugins get them: [{name: [[step, value], ...]}, ...].

TensorBoard reads files in two ways: by its data server, where that is installed, or else in Python. Both are asked, and
have to say the same.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import grpc
import tensorboard_data_server
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.data import grpc_provider
from tensorboard.data.proto import data_provider_pb2_grpc

directory = sys.argv[1]


def scalars(provider):
    context = RequestContext()
    runs = provider.read_scalars(context, experiment_id="", plugin_name="scalars", downsample=1_000_000)
    tags = {tag: points for run in runs.values() for tag, points in run.items()}
    return {tag: [[point.step, point.value] for point in points] for tag, points in sorted(tags.items())}


def texts(provider):
    context = RequestContext()
    runs = provider.read_tensors(context, experiment_id="", plugin_name="text", downsample=1_000)
    tags = {tag: points for run in runs.values() for tag, points in run.items()}
    return {tag: [[point.step, point.numpy.item().decode()] for point in points] for tag, points in sorted(tags.items())}


def both(provider):
    return [scalars(provider), texts(provider)]


# 0: all that there are.
multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 0})
multiplexer.AddRunsFromDirectory(directory)
multiplexer.Reload()
in_python = both(data_provider.MultiplexerDataProvider(multiplexer, directory))

with tempfile.TemporaryDirectory() as folder:
    port_file = os.path.join(folder, "port")
    arguments = ["--logdir", directory, "--port", "0", "--port-file", port_file, "--samples-per-plugin", "scalars=all"]
    server = subprocess.Popen([tensorboard_data_server.server_binary(), *arguments])
    try:
        deadline = time.monotonic() + 30
        port, by_server = "", None
        # It answers before it has read everything.
        while by_server != in_python and time.monotonic() < deadline:
            time.sleep(0.05)
            if not port and os.path.exists(port_file):
                port = open(port_file).read().strip()
            if port:
                address = f"localhost:{port}"
                stub = data_provider_pb2_grpc.TensorBoardDataProviderStub(grpc.insecure_channel(address))
                by_server = both(grpc_provider.GrpcDataProvider(address, stub))
    finally:
        server.kill()
        server.wait()

if by_server != in_python:
    sys.exit(f"in Python: {in_python}\nby the data server: {by_server}")
print(json.dumps(in_python))
