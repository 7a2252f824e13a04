"""Runs an ONNX model with onnxruntime: quietly, on one thread, node by node as written, integers exactly."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cnncc.errors import Refusal
from cnncc.frontend.onnx_attrs import STANDARD_DOMAIN
from cnncc.frontend.unsigned_weights import with_unsigned_weights

if TYPE_CHECKING:
    from onnx import ModelProto

OLDEST_OPSET = 7  # of which onnxruntime has all operators
SILENT, WARNINGS = 4, 2  # severities of onnxruntime's logger; it starts with warnings


@contextmanager
def _no_log() -> Generator[None]:
    """Keeps onnxruntime from writing to stderr, where its warnings would mix with a command's output.

    Why: options of a session do not silence its operators, which write to the logger of all sessions.
    """
    import onnxruntime

    ort: Any = onnxruntime  # it has no type stubs
    ort.set_default_logger_severity(SILENT)
    try:
        yield
    finally:
        ort.set_default_logger_severity(WARNINGS)


class OnnxSession:
    """A model made ready once, to be run many times."""

    def __init__(self, model: ModelProto) -> None:
        """Raises Refusal for a model that onnxruntime does not load."""
        import onnxruntime

        ort: Any = onnxruntime
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1  # the order of float additions depends on the number of threads
        options.log_severity_level = SILENT
        # The IR runs as written: onnxruntime's fusions would round differently.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            exact = with_unsigned_weights(model).SerializeToString()
            with _no_log():
                self._session = ort.InferenceSession(exact, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no other base
            raise _refusal("load", error, _old_opset(model)) from error

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs in the model's order: arrays, or lists of arrays for sequences.

        Raises: Refusal, for an error in onnxruntime.
        """
        feeds = {name: np.asarray(value) if np.isscalar(value) else value for name, value in inputs.items()}
        try:
            with _no_log():
                return cast("list[Any]", self._session.run(None, feeds))
        except Exception as error:  # as above
            raise _refusal("run", error) from error


def _refusal(action: str, error: Exception, help_: str = "") -> Refusal:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return Refusal(f"onnxruntime cannot {action} the model: {lines[0][:500]}{help_}")


def _old_opset(model: ModelProto) -> str:
    """The remedy for a model of an opset that onnxruntime has only a part of."""
    opset = min((each.version for each in model.opset_import if each.domain in STANDARD_DOMAIN), default=OLDEST_OPSET)
    if opset >= OLDEST_OPSET:
        return ""
    return f": opset {opset} is old: write it anew as onnx.version_converter.convert_version(onnx.load(FILE), 17)"
