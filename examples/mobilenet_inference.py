"""MobileNetV2 as an inference graph: compiled at the first call, compared with eager."""

import time

from mobilenet_v2 import MobileNetV2

import gflow as flow


class MobileNetGraph(flow.nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def build(self, images):
        return self.model(images)


flow.manual_seed(0)
model = MobileNetV2(num_classes=10).eval()
graph = MobileNetGraph(model)
images = flow.randn(16, 3, 32, 32)

start = time.perf_counter()
logits = graph(images)
print(f"first call, compilation included: {time.perf_counter() - start:.2f} s")

start = time.perf_counter()
logits = graph(images)
print(f"second call: {time.perf_counter() - start:.4f} s, output {tuple(logits.shape)}")

with flow.no_grad():
    expected = model(images)
print(f"largest output {expected.abs().max():.3f}, ", end="")
print(f"largest difference to eager: {(logits - expected).abs().max():.2e}")
assert flow.allclose(logits, expected, rtol=1e-4, atol=1e-4)
