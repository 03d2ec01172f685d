"""Small configurations and inputs of transformers' own tests.

The tests of an architecture have a tester, which makes both. They are in the library's repository, not in its package:
`CHECKOUT` names a copy of the repository, of about the version that is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

#: the environment variable with the path of a checkout of https://github.com/huggingface/transformers
CHECKOUT = "TRANSFORMERS_CHECKOUT"
#: the name under which the package of its tests is loaded; there may be another package `tests`
_PACKAGE = "transformers_tests"


def tested(kind: type) -> tuple[Any, dict[str, Any]] | None:
    """The configuration and the inputs with which the library tests a class of models; None if there is no checkout,
    or its tests do not have the class."""
    root = os.environ.get(CHECKOUT)
    module = None if root is None else _module(Path(root), kind)
    for case in () if module is None else vars(module).values():
        if isinstance(case, type) and issubclass(case, unittest.TestCase):
            found = _made(case, kind)
            if found is not None:
                return found
    return None


def _module(root: Path, kind: type) -> ModuleType | None:
    """The tests of the file in which a class is."""
    *_, family, file = kind.__module__.split(".")
    path = root / "tests" / "models" / family / f"test_{file}.py"
    if not path.exists():
        return None
    if _PACKAGE not in sys.modules:
        init = root / "tests" / "__init__.py"
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, init, submodule_search_locations=[str(init.parent)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[_PACKAGE] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
    try:
        return importlib.import_module(f"{_PACKAGE}.models.{family}.test_{file}")
    except Exception:  # of another version of the library, or it needs other packages
        return None


def _made(case: type, kind: type) -> tuple[Any, dict[str, Any]] | None:
    """What the tester of a class of tests makes; None if these are no tests of the models' class."""
    test: Any = case("setUp")
    common = sys.modules.get(f"{_PACKAGE}.test_modeling_common")
    if common is not None:
        common.global_rng.seed(0)  # of the inputs; the library's tests draw others in each process
    try:
        test.setUp()
        if kind not in (getattr(test, "all_model_classes", None) or ()):
            return None
        config, inputs = test.model_tester.prepare_config_and_inputs_for_common()
        inputs = test._prepare_for_class(inputs, kind)
    except (
        Exception
    ):  # of another version of the library; a test of something else may raise any error
        return None
    return config, {name: value for name, value in inputs.items() if value is not None}
