"""samples/reproduce/cbrain_accesses.py: words by formulas, by the cost model, and counted from programs."""

from __future__ import annotations

import json
from pathlib import Path

import cbrain_accesses
import pytest
from click.testing import CliRunner
from test_explain import one_layer

from cnncc.api import CompileOptions, compile_model, program_stats
from cnncc.arch.model import load_arch
from cnncc.cbrain.convolution import Convolution
from cnncc.cbrain.schemes import Accesses, CBrain, Counting, Scheme, accesses
from cnncc.util.progress import silent
from cnncc.window import Window

ARCH = load_arch("cbrain-16-16")
LAYER = Convolution("c", (8, 8), 32, 16, Window((3, 3)))
PADDED = Convolution("c", (6, 6), 32, 16, Window((3, 3), pad=(1, 1, 1, 1)))


@pytest.mark.parametrize("scheme", [Scheme.INTER, Scheme.IMPROVED, Scheme.UNROLLED])
@pytest.mark.usefixtures("resident_ends", "short_searches")
def test_cbrain_accesses_are_counted(scheme: Scheme, tmp_path: Path) -> None:
    """The words of the cost model are those of the program, and those of the formulas, which also count padding."""
    model = one_layer(tmp_path, PADDED.inputs, PADDED.outputs, PADDED.results[0])
    name = cbrain_accesses.NAMES[scheme]
    options = CompileOptions("cbrain-16-16", dataflow=name, slack=0.0)
    stats = program_stats(compile_model(model, options, remark=silent), causes=False)
    (padded,), (plan,) = (cbrain_accesses.plans(layer, scheme, ARCH) for layer in (PADDED, LAYER))
    words = cbrain_accesses.counted(padded, ARCH)
    assert words == cbrain_accesses.of_counters(stats["layers"]["c"], ARCH)
    counting = Counting(lines=False, each_map=False)
    assert cbrain_accesses.counted(plan, ARCH) == accesses(LAYER, scheme, CBrain(16, 16), counting)
    assert words.data < accesses(PADDED, scheme, CBrain(16, 16), counting).data


def test_cbrain_accesses_of_each_map() -> None:
    """By hand: 32 maps, 16 kernels of 36 pixels; each map but the first adds to a stored sum."""
    (plan,) = cbrain_accesses.plans(LAYER, Scheme.UNROLLED, ARCH, each_map=True)
    assert cbrain_accesses.counted(plan, ARCH) == Accesses(32 * 36 * 9, 16 * 32 * 9, 16 * 36 * (2 * 32 - 1))


def test_cbrain_accesses_of_a_partitioned_layer_are_those_of_both() -> None:
    """By hand: 9 x 9 positions of 2 maps in 2 x 2 windows; 2 x 2 pieces over 3 x 3 pixels, with stored sums."""
    layer = Convolution("c", (8, 8), 2, 16, Window((3, 3), stride=(2, 2), pad=(0, 0, 0, 0)))
    cut, main = (cbrain_accesses.counted(plan, ARCH) for plan in cbrain_accesses.plans(layer, Scheme.PARTITION, ARCH))
    assert main == Accesses(9 * 4 * 8, 16 * 8 * 4, 16 * 9 * (2 * 4 - 1))
    assert cut.weights == 8 * 4 and cut.sums == 8 * 16


def test_cbrain_accesses_prints_what_is_saved() -> None:
    many, few = Accesses(10, 80, 10), Accesses(10, 5, 5)
    found = [
        cbrain_accesses.Row("A", way, few if way == "adap-2" else many, few if way == "adap-2" else many)
        for way in cbrain_accesses.WAYS
    ]
    lines = list(cbrain_accesses.as_text(found))
    assert lines[-4:] == [
        "adap-2 below adap-1: 90.13 % by the paper, in the mean of four networks",
        "  A: 80.0 % by formulas, 80.0 % counted",
        "adap-2 below intra, each map: 73.7 % by the paper, in the mean of four networks",
        "  A: 80.0 % by formulas, 80.0 % counted",
    ]


def test_cbrain_accesses_command() -> None:
    result = CliRunner().invoke(cbrain_accesses.main, ["--network", "AlexNet", "--json"])
    assert result.exit_code == 0, result.output
    words = {row["way"]: (row["formula"], row["counted"]) for row in json.loads(result.stdout)["accesses"]}
    assert list(words) == list(cbrain_accesses.WAYS)
    saved = {way: 1 - sum(words["adap-2"][1].values()) / sum(words[way][1].values()) for way in words}
    (order,) = json.loads(result.stdout)["orders"]
    assert order == {"network": "AlexNet", "by_readers": 0, "in_intra": 243_040, "cycles": 2_678_994}
    assert 0.90 < saved["adap-1"] < 0.91 and 0.64 < saved["intra, each map"] < 0.65
