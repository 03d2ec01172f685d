"""Run in a process of its own: other software, before and after gflow was used.

python tests/isolation_check.py                  # what differs, and "same" if nothing does
python tests/isolation_check.py --libraries      # the same of what models of libraries compute
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import gc
import logging
import math
import os
import sys
import types
import warnings
from typing import Any

import torch
import torch.utils.checkpoint

Tensor = torch.Tensor


def state() -> dict[str, Any]:
    """All that is common to a process and that gflow could have changed."""
    found: dict[str, Any] = {}
    owners: list[Any] = [
        torch.nn.Module, torch.nn.Parameter, torch.Tensor, torch.optim.Optimizer, torch.optim.SGD,
        torch.nn.Linear, torch.nn.BatchNorm2d, torch.nn.modules.batchnorm._BatchNorm, torch.nn.Sequential,
        torch.nn.TransformerEncoder, torch.autograd.Function, torch, torch.nn.functional,
        sys.modules["torch.optim.optimizer"],
        torch.compiler, torch.nn.modules.module, torch.nn.modules.transformer, torch.nn.utils.clip_grad,
        torch.utils.checkpoint, torch.autograd, torch._functorch.utils, torch.utils._pytree, torch.overrides,
        torch._tensor, torch.random, torch.serialization, math, builtins, copy,
    ]  # fmt: skip
    for owner in owners:
        for name, value in vars(owner).items():
            if not isinstance(value, types.ModuleType) and name not in ("__builtins__", "_"):
                found[f"{owner.__name__}.{name}"] = value
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"):
        found[f"hooks {name}"] = list(getattr(torch.nn.modules.module, name))
    step: Any = sys.modules["torch.optim.optimizer"]
    found["step hooks"] = list(step._global_optimizer_pre_hooks)
    found["step post hooks"] = list(step._global_optimizer_post_hooks)
    found["filters"] = list(warnings.filters)
    found["environment"] = dict(os.environ)
    found["threads"] = torch.get_num_threads()
    found["dtype"] = torch.get_default_dtype()
    found["grad"] = torch.is_grad_enabled()
    found["onednn"] = torch._C._get_mkldnn_enabled()
    found["cudnn"] = torch._C._get_cudnn_enabled()
    found["recursion"] = sys.getrecursionlimit()
    found["gc"] = (gc.isenabled(), gc.get_threshold())
    found["profile"] = (sys.getprofile(), sys.gettrace())
    for name in ("", "torch", "torch._subclasses.fake_tensor"):
        logger = logging.getLogger(name)
        found[f"log {name}"] = (logger.level, list(logger.filters), list(logger.handlers))
    found["hook"] = (sys.excepthook, sys.displayhook)
    found["trees"] = {
        k for k in torch.utils._pytree.SUPPORTED_NODES if not k.__module__.startswith("gflow")
    }
    return found


def use_gflow() -> None:
    """Graphs that compile, train and fail, and compiled modules."""
    import gflow as flow
    from gflow import nn

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))

    class Training(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.parts = [model[3]]
            self.model[0].config.activation_checkpointing = True
            model[3].to(nn.graph.GraphModule).activation_checkpointing = True
            self.add_optimizer(torch.optim.AdamW(model.parameters()))

        def build(self, x: Tensor) -> Tensor:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    class Failing(nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                x = x + 1
            return x

    class Stepping(nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    x = torch.randn(2, 3, 8, 8)
    graph = Training()
    graph(x)
    graph(x)
    for broken in (Failing(), Stepping()):
        with contextlib.suppress(flow.GraphTraceError, KeyboardInterrupt):
            broken(x)
    compiled = flow.compile(nn.LSTM(4, 4))
    compiled(torch.randn(2, 3, 4))[0].sum().backward()
    torch.compile(torch.nn.Linear(2, 2), backend="gflow")(torch.randn(2, 2))


def use_libraries() -> dict[str, Any]:
    """Models of diffusers, transformers and torchvision, and a Lightning trainer: what they compute."""
    from benchmarks.workloads.third_party import declare_torchvision_ops

    declare_torchvision_ops()
    import diffusers
    import lightning
    import torchvision
    import transformers

    found: dict[str, Any] = {}
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8, in_channels=3, out_channels=3, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    found["diffusers"] = unet(torch.randn(1, 3, 8, 8), torch.tensor(3)).sample.detach()
    found["diffusers config"] = sorted(unet.config)
    unet.to(torch.float64).to("cpu")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8)
    language = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(0, 16, (1, 8))
    out = language(tokens, labels=tokens)
    out.loss.backward()
    found["transformers"] = out.logits.detach()
    found["transformers attributes"] = sorted(dir(language))
    found["transformers gradient"] = language.transformer.wte.weight.grad
    resnet = torchvision.models.resnet18()
    found["torchvision"] = resnet(torch.randn(2, 3, 32, 32)).detach()
    found["torchvision state"] = {k: v.clone() for k, v in resnet.state_dict().items()}

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> None:
            optimizer = self.optimizers()
            loss = self.layer(batch[0]).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.log("loss", loss)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.1)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = torch.utils.data.TensorDataset(torch.randn(16, 4))
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    lit = Lit()
    trainer.fit(lit, torch.utils.data.DataLoader(data, batch_size=4))
    found["lightning"] = lit.layer.weight.detach()
    return found


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    return bool(a == b)


def main() -> None:
    import torch._dynamo  # which torch.compile loads

    # Dynamo marks classes of modules when it runs
    torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.randn(2, 2))
    if "--libraries" in sys.argv:
        want = use_libraries()
        use_gflow()
        found = use_libraries()
        print(sorted(k for k in want if not _equal(want[k], found[k])) or "same")
        return
    before = state()
    use_gflow()
    after = state()
    # Dynamo and autocast remember things by themselves
    own = ("__warningregistry__",)
    differing = [
        name
        for name in before.keys() | after.keys()
        if not _same(before.get(name, "absent"), after.get(name, "absent"))
        and not name.endswith(own)
    ]
    print(sorted(differing) or "same")


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    plain = (int, float, str, bool, list, tuple, dict, set, torch.dtype)
    return isinstance(a, plain) and type(a) is type(b) and bool(a == b)


if __name__ == "__main__":
    main()
