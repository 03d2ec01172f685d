"""Real images for the examples: scikit-learn's bundled digits, or CIFAR-10 from a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

CIFAR_RECORD = 1 + 3 * 32 * 32  # one label byte, then the red, green and blue planes


@dataclass
class Images:
    """Pictures as float32 [N, 3, 32, 32], normalized; labels as int64 [N]."""

    name: str
    classes: int
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def load_images(folder: Path | None, seed: int = 0) -> Images:
    return digits(seed) if folder is None else cifar10(folder)


def digits(seed: int = 0) -> Images:
    """1,797 scanned digits of 8x8 pixels, upscaled to 3x32x32; a fifth of them held out."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise SystemExit(
            "error: the digits come with scikit-learn, which is not installed\n"
            "  pip install -c constraints.txt -e '.[examples]', or give a CIFAR-10 folder by --data"
        ) from None
    data = load_digits()
    x = torch.from_numpy(data.images).float().div_(16).unsqueeze_(1)
    x = F.interpolate(x, size=(32, 32), mode="bilinear", align_corners=False)
    x = ((x - x.mean()) / x.std()).repeat(1, 3, 1, 1)
    y = torch.from_numpy(data.target).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    held_out = len(x) // 5
    test, train = order[:held_out], order[held_out:]
    return Images("digits (scikit-learn)", 10, x[train], y[train], x[test], y[test])


def cifar10(folder: Path) -> Images:
    """CIFAR-10 in its binary version: `data_batch_1.bin` to `data_batch_5.bin`, `test_batch.bin`.

    The Python version of the archive holds pickles, and unpickling a file runs the code in it;
    so only the binary version is read.
    """
    inner = folder / "cifar-10-batches-bin"
    folder = inner if inner.is_dir() else folder
    train = sorted(folder.glob("data_batch_[1-5].bin"))
    test = folder / "test_batch.bin"
    if not train or not test.is_file():
        python_version = any(folder.rglob("data_batch_1"))
        raise SystemExit(
            f"error: {folder} holds no data_batch_*.bin and test_batch.bin\n"
            + "  give the folder of the CIFAR-10 binary version (cifar-10-binary.tar.gz, unpacked)"
            + (
                ";\n  this is the Python version, whose files are pickles and are not read"
                if python_version
                else ""
            )
        )
    batches = [_cifar_file(path) for path in train]
    train_x = torch.cat([x for x, _ in batches])
    train_y = torch.cat([y for _, y in batches])
    test_x, test_y = _cifar_file(test)
    mean = train_x.mean((0, 2, 3), keepdim=True)
    std = train_x.std((0, 2, 3), keepdim=True)
    return Images(
        f"CIFAR-10 ({folder})", 10, (train_x - mean) / std, train_y, (test_x - mean) / std, test_y
    )


def _cifar_file(path: Path) -> tuple[Tensor, Tensor]:
    raw = np.fromfile(path, dtype=np.uint8)
    if raw.size == 0 or raw.size % CIFAR_RECORD:
        raise SystemExit(
            f"error: {path} has {raw.size} bytes, which is not a multiple of {CIFAR_RECORD}: "
            "it is no CIFAR-10 binary file, or it is cut off"
        )
    records = torch.from_numpy(raw.reshape(-1, CIFAR_RECORD))
    labels = records[:, 0].long()
    if int(labels.max()) > 9:
        raise SystemExit(f"error: {path} has the label {int(labels.max())}; CIFAR-10 has 0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32).float().div_(255), labels
