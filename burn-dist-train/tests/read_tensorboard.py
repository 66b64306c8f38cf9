"""Prints the scalars of a directory as TensorBoard's scalars plugin gets them: {name: [[step, value], ...]}."""

import json
import sys

from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext

# 0: all that there are.
multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 0})
multiplexer.AddRunsFromDirectory(sys.argv[1])
multiplexer.Reload()
provider = data_provider.MultiplexerDataProvider(multiplexer, sys.argv[1])
context = RequestContext()
read = provider.read_scalars(context, experiment_id="", plugin_name="scalars", downsample=1_000_000)
(tags,) = read.values()
print(json.dumps({tag: [[point.step, point.value] for point in points] for tag, points in tags.items()}))
