"""Make networks of real shapes with random weights, and images for them.

Weights are drawn from a seed: one command always writes the same bytes. They are scaled so that signals neither vanish
nor explode on their way to the logits.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
from networks import SAMPLES
from networks.features import features as features_of

from cnncc.errors import Refusal
from cnncc.util.files import write_atomically
from cnncc.util.npz import npz_bytes
from cnncc.util.terminal import NAME, TEXT, Column, fitted, table

WAVES = 12  # cosines of an image, for each channel
NOISE = 0.1

OUT = click.Path(path_type=Path, dir_okay=False)
SEED = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random numbers.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Make networks of real shapes with random weights, and images for them.

    \b
    python samples/models.py list
    python samples/models.py alexnet -o alexnet.onnx
    python samples/models.py resnet50 --image-size 64 -o small.onnx
    python samples/models.py vgg16 --features -o convolutions.onnx
    python samples/models.py image --for alexnet -o image.npz
    """


def _sizes(size: int, least: int) -> str:
    return f"{size}" if size == least else f"{size}, or from {least}"


@main.command("list")
def list_samples() -> None:
    """List the networks: sizes of their images, inputs, weights and MACs."""
    rows = list[list[str]]()
    for name, sample in SAMPLES.items():
        network = sample.build(sample.size)
        image, sizes = network.model.graph.input[0].name, _sizes(sample.size, sample.least)
        rows.append([name, sizes, image, f"{network.parameters:,}", f"{network.macs:,}", sample.about])
    named, what = (Column("network", NAME), Column("image size", TEXT), Column("input", NAME, drop=1)), "what it is"
    click.echo(fitted(table([*named, "weights", "MACs", Column(what, TEXT, drop=2)], rows, indent=0)))


@main.command()
@click.option("-o", "--output", type=OUT, default="image.npz", show_default=True, help="The .npz file to write.")
@click.option("--for", "network", type=click.Choice(list(SAMPLES)), help="Name and size as this network has them.")
@click.option("--name", help="Name of the network's input; default: image.")
@click.option("--size", type=click.IntRange(min=1), help="Rows; columns, too, in a square image; default: 224.")
@click.option("--channels", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many images.")
@SEED
def image(
    output: Path, network: str | None, name: str | None, size: int | None, channels: int, count: int, seed: int
) -> None:
    """Make random smooth images: some long waves for each channel, and a little noise.

    \b
    python samples/models.py image --for resnet50 -o image.npz
    python samples/models.py image --name data_0 --size 224 --count 8 --seed 1 -o images.npz
    """
    rows = cols = size or 224
    if network is not None:
        sample = SAMPLES[network]
        taken = sample.build(size or sample.size).model.graph.input[0]
        name = name or taken.name
        _, channels, rows, cols = (dim.dim_value for dim in taken.type.tensor_type.shape.dim)
    draw = np.random.default_rng(seed)
    images = np.stack([_smooth(draw, rows, cols) for _ in range(count * channels)])
    write_atomically(output, npz_bytes({name or "image": images.reshape(count, channels, rows, cols)}))
    click.echo(f"{output}: {count} of {channels}x{rows}x{cols}")


def _smooth(draw: np.random.Generator, rows: int, cols: int) -> Any:
    """One channel, f32[rows, cols], of mean square 1: cosines of at most four periods along each side."""
    y, x = np.arange(rows) / rows, np.arange(cols) / cols
    periods, phases = draw.uniform(-4, 4, (WAVES, 2)), draw.uniform(0, 2 * np.pi, WAVES)
    waves = [
        np.cos(2 * np.pi * (down * y[:, None] + along * x) + phase)
        for (down, along), phase in zip(periods, phases, strict=True)
    ]
    channel = np.sum(waves, axis=0) * np.sqrt(2 / WAVES) + NOISE * draw.standard_normal((rows, cols))
    return channel.astype(np.float32)


def _command(name: str) -> click.Command:
    """The command that writes one network."""
    sample = SAMPLES[name]

    def write(output: Path | None, image_size: int, features: bool, seed: int) -> None:
        path = output or Path(f"{name}.onnx")
        network = sample.build(image_size)
        if features:
            network = features_of(network)
        network.write(path, seed)
        click.echo(f"{path}: {network.parameters:,} weights, {network.macs:,} MACs per image")

    size = click.Option(
        ["--image-size"],
        type=click.IntRange(sample.least, sample.size if sample.least == sample.size else None),
        default=sample.size,
        show_default=True,
        help="Rows of the image, which is square, except of fsrcnn.",
    )
    out = click.Option(["-o", "--output"], type=OUT, help=f"The file to write; default: {name}.onnx.")
    only = click.Option(
        ["--features"],
        is_flag=True,
        help="Only up to the last convolution, with its batch norm, activation and residual sum: no classifier.",
    )
    command = click.Command(name, params=[out, size, only], callback=write, help=f"{sample.about}.")
    return SEED(command)


for _name in SAMPLES:
    main.add_command(_command(_name))


if __name__ == "__main__":
    try:
        main()
    except Refusal as refusal:
        sys.exit(f"models.py: {refusal}")
