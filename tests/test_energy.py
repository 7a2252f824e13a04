"""Energy: each key of [energy] is that of one counter, and analysis and run agree."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from cli_cases import CALIBRATION, LENET, SAMPLES, done

from cnncc.arch.model import Arch, Energy, arch_from_table, load_arch
from cnncc.binary.container import load
from cnncc.binary.counters import program_stats
from cnncc.errors import Refusal
from cnncc.model.energy import energy

pytestmark = pytest.mark.usefixtures("short_searches")

# Which counters of docs/stats.md a key is multiplied with.
COUNTERS = {
    "mac": ("macs", "max", "add"),
    **{f"{file}_{way}": (f"rf.{file}.{way}",) for file in ("weight", "ifmap", "psum") for way in ("read", "write")},
    **{key: (f"words.{key}",) for key in ("n2n", "bus", "glb_read", "glb_write", "dram_read", "dram_write")},
    "south": ("words.psum_link",),
}
NONE = Energy(**dict.fromkeys(COUNTERS, 0.0))


def with_numbers() -> str:
    """A preset's file, every energy another number."""
    numbers = "\n".join(f"{key} = {2 ** (number - 3)}" for number, key in enumerate(COUNTERS))
    return (
        Path(__file__).parents[1] / "cnncc/arch/spatial-8x8.toml"
    ).read_text() + f"\n[energy]\nunit = 'pJ'\n{numbers}\n"


def test_energy_of_every_key_is_that_of_its_counters(tmp_path: Path) -> None:
    model = SAMPLES / "models" / "resnet20.onnx"
    done("compile", model, "--batch", 1, "--dataflow", "ws", "-o", tmp_path / "net.cnb")
    stats = program_stats(load(tmp_path / "net.cnb"))
    assert set(COUNTERS) | {"unit"} == {field.name for field in fields(Energy)}
    for key, counters in COUNTERS.items():
        counted = 0
        for path in counters:
            found = stats
            for part in path.split("."):
                found = found[part]
            counted += found
        assert energy(stats, replace(NONE, **{key: 3.0}))["total"] == 3 * counted
        assert counted or key in ("n2n",), key


def test_energy_of_run_and_reuse(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(with_numbers())
    options = ("--batch", 1, "--calibrate", CALIBRATION, "--arch", tmp_path / "mine.toml")
    done("compile", LENET, *options, "-o", tmp_path / "net.cnb")
    done("run", tmp_path / "net.cnb", "--stats", tmp_path / "stats.json")
    stats = json.loads((tmp_path / "stats.json").read_text())
    analysed = json.loads(done("reuse", LENET, *options, "--json").stdout)["layers"]
    assert len(analysed) > 4
    parts = [part for part in stats["energy"] if part not in ("total", "glb", "dram")]  # prefetches are of others
    for label, layer in analysed.items():
        assert all(layer["energy"][part] == stats["layers"][label]["energy"][part] > -1 for part in parts), label
    binary = load(tmp_path / "net.cnb")
    costs = binary.arch.energy
    words = {
        role: sum(tensor.words for tensor in binary.tensors if tensor.role == role) for role in ("input", "output")
    }
    assert min(words.values()) > 0
    copies = {"dram": words["input"] * costs.dram_read + words["output"] * costs.dram_write}
    copies["glb"] = words["input"] * costs.glb_write + words["output"] * costs.glb_read
    copies["total"] = sum(copies.values())
    for part, whole in stats["energy"].items():
        assert sum(layer["energy"][part] for layer in stats["layers"].values()) == whole
        assert sum(layer["energy"][part] for layer in analysed.values()) + copies.get(part, 0) == whole, part
    assert stats["energy"]["total"] == sum(stats["energy"].values()) - stats["energy"]["total"]


def test_energy_keys_are_numbers_that_may_have_fractions() -> None:
    def built(value: object) -> Arch:
        table = asdict(load_arch("spatial-4x4"))
        return arch_from_table(table | {"energy": {"bus": value}}, "file")

    assert built(0.25).energy == replace(Energy(), bus=0.25)
    assert repr(built(2).energy) == repr(built(2.0).energy)
    for value, message in (
        (True, "bus is a number, not true"),
        ("1", "bus is a number, not '1'"),
        (float("nan"), "bus = nan is outside 0 to 65536"),
        (float("inf"), "bus = inf is outside"),
        (-0.5, "bus = -0.5 is outside"),
    ):
        with pytest.raises(Refusal, match=message):
            built(value)
