"""Runs IR of the `nest` dialect on integers: the loops and stages of every layer (`_layer_run.py`), groups of layers
stripe by stripe (`_group_run.py`), and cores side by side (`_core_run.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from cnncc.dialects.cnn import ConcatOp, HostOp, ReshapeOp, SliceOp, value_key
from cnncc.dialects.nest import ColumnsOp, CoresOp, GroupOp, JoinOp, LayerOp
from cnncc.dialects.weights import arrays_of
from cnncc.errors import Refusal
from cnncc.eval import cnn
from cnncc.eval._core_run import CoresRun, Order, first_ready
from cnncc.eval._group_run import GroupRun, columns, joined
from cnncc.eval._lanes import Ints
from cnncc.eval._layer_run import LayerRun as LayerRun
from cnncc.main_function import main_function
from cnncc.weights import Array, WeightStore


def evaluate(
    module: ModuleOp,
    store: WeightStore,
    inputs: Sequence[Array],
    host: cnn.RunModel = cnn.run_on_host,
    order: Order = first_ready,
) -> tuple[list[Array], dict[str, Ints]]:
    """The outputs for integer `inputs` (in the order of `@main`), and every value that has a key, by that key.

    The leading dim of the inputs may be a multiple of that in their types. order: of the cores that can go on, says
    which one does; no value depends on it. Raises: Refusal as `cnncc.eval.cnn.evaluate`.
    """
    symbols = arrays_of(module, store)
    block = main_function(module).body.block
    # A network that returns its inputs: it checks them as `cnn.evaluate` does.
    checked, _ = cnn.evaluate(_module(block.args, None), store, inputs)
    values: dict[SSAValue, Any] = dict(zip(block.args, checked, strict=True))
    trace: dict[str, Ints] = {}
    for op in block.ops:
        operands = [values[value] for value in op.operands]
        match op:
            case ReturnOp():
                return cnn.returned_batches(op, operands, list(zip(block.args, checked, strict=True))), trace
            case LayerOp():
                results = [LayerRun(op, symbols, *operands).result]
                trace |= {key: results[0]} if (key := value_key(op)) else {}
            case GroupOp():
                group = GroupRun.of_values(op, symbols, values)
                results = group.results()
                trace |= group.trace()
            case CoresOp():
                cores = CoresRun(op, symbols, values, order)
                results = cores.results()
                trace |= cores.trace()
            case ColumnsOp():
                results = [columns(op, operands[0])]
            case JoinOp():
                results = [joined(op, operands)]
                trace |= {key: results[0]} if (key := value_key(op)) else {}
            case ReshapeOp() | SliceOp() | ConcatOp() | HostOp():
                results, keyed = cnn.evaluate(_module(op.operands, op), store, operands, host)
                trace |= keyed
            case _:
                raise Refusal(f"op {op.name} does not belong to the nest level")
        values.update(zip(op.results, results, strict=True))
    raise Refusal("@main does not end with func.return")


def _module(inputs: Sequence[SSAValue], op: Operation | None) -> ModuleOp:
    """A network of `op` alone, or one that returns its inputs."""
    block = Block(arg_types=[value.type for value in inputs])
    for argument, value in zip(block.args, inputs, strict=True):
        argument.name_hint = value.name_hint
    results: Sequence[SSAValue] = block.args
    if op is not None:
        alone = op.clone(dict(zip(op.operands, block.args, strict=True)))
        block.add_op(alone)
        results = alone.results
    block.add_op(ReturnOp(*results))
    types = [value.type for value in block.args], [value.type for value in results]
    return ModuleOp([FuncOp("main", types, Region(block))])
