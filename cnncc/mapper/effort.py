"""How long a search goes on (BOUND-6). No IR."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf


@dataclass(frozen=True)
class Effort:
    """The limits of a search. Results depend on them, so they are a part of a search's key.

    *Together*: the fields that say so were measured with each other. They give up 0.02 to 0.2 % of a network's cycles
    (most for VGG-16 on 16 x 16 PEs with 2 MiB), and searches take a third of the time.
    """

    points: int = 3000
    """Points that are looked at. With 1,000 the layers of LeNet are no longer proven."""

    stripe_points: int = 1000
    """The same for a stripe of a layer in a group. With 3,000 MobileNet takes as many cycles on 16 x 16 PEs, and its
    search for groups 1.5 times as long.
    """

    tight_points: int = 1000
    """The same in a tight budget, after a search in the budget itself that found a mapping (SPACE-13). With 3,000 no
    layer of YOLOv8n for 64 pixels takes fewer cycles on 16 x 16 PEs, and its searches take 1.1 times as long.
    """

    draft_points: int = 250
    """The same until the group is one of the best. With 500, and 16 for `draft_runs`, ResNet-50 takes as many cycles on
    `cbrain-16-16`, and its search for groups 1.3 times as long; with 100 and 4 MobileNet has 2 % more energy.
    """

    draft_runs: int = 8
    """The same as `runs` then. Measured with `draft_points`."""

    tiles: int = 2000
    """Tiles whose transfers are bounded. With 1,000 a layer whose weights hardly fit takes twice the cycles."""

    runs: int = 64
    """Candidates that are run on the model. With 48 small layers take more cycles; with 100 searches 5 % more time."""

    streamed_points: int = 40
    """The same as `points` where an operand is streamed: points that may be better. Together."""

    streamed_tiles: int = 700
    """The same as `tiles` where an operand is streamed. Together."""

    patience: int = 24
    """A search that is not exact ends after so many candidates none of which was better. With 16 a layer of AlexNet
    takes 0.9 % more cycles, and 46 % more DRAM words where these are minimised; with 32 ResNet-50 takes as many cycles.
    """

    few_runs: int = 4
    """Runs after which such a search ends if little can be won. Together, as 6."""

    little: int = 200
    """Little is one of so many cycles. With 100 some searches stop a fraction of a thousandth above a proof."""

    points_a_run: int = 2
    """Points that such a search looks at from one run to the next. With 1 ResNet-50 takes 0.05 % more cycles, with 4 as
    many.
    """

    twins: int = 4
    """Candidates like others that are run, last. Run in turn they were half of all runs, and won nothing."""

    one_point: int = 6
    """Runs of a point since one of them was the best, before others are run. Without a limit a layer took 217,186
    cycles for 205,023; with six in all a depthwise layer takes 3,622 for 3,530.
    """

    alike: int = 3
    """So many runs of a kind (`Point.kind`) say how near to their bounds others of it may be. Without it MobileNet
    takes as many cycles on 8 x 8 PEs, in 15 % more runs.
    """

    first: bool = False
    """Whether a search ends with the first mapping that has room. It has one exactly where others have one."""

    less: int = 4
    """So many times fewer in a quick search. With 1 searches for slices took 40 % of the time of light-resnet50."""

    limits: tuple[float, ...] = (1.02, 1.1, 1.5, 4.0)
    """How far the first, second, … look goes: times the ideal, or the least that is seen. Without the first MobileNet
    takes 0.01 % more cycles. Without the second or the third networks take as many, and as much time.
    """

    gap: float = 1.1
    """Times `least`: where a search ends above it, a tight budget is searched, too (SPACE-13). With streamed operands
    the better of both is searched again with `more` of three limits. With 1.05 and 1.2 networks take as many cycles.
    """

    form_gap: float = 1.002
    """Times `least`: where a search of a layer with `form_lanes` ends above it, each form is searched by itself
    (BOUND-8). Macro-instructions are short there, and many wait for loads, which bounds do not see. Without it
    8 of 45 layers of GoogLeNet take up to 2.3 % more cycles on `cbrain-16-16` than C-Brain's schemes.
    """

    form_lanes: int = 4
    """Products of a step, from which on this is done. With 2 the searches for `tcpa-4x4` take 1.5 times as long."""

    few_cycles: int = 128
    """Above `least`: then it is not searched again. Without it a network of one layer, of 216 cycles, takes 6 s."""

    more: int = 8
    """Times `streamed_points`, `streamed_tiles` and `patience`, for what is below the best. Without it ten of 256 small
    layers take 0.2 to 29 % more cycles, with 4 six of them 0.3 to 11 %. Above the best, too, it takes a sixth more
    time, and one layer takes 0.7 % fewer cycles.
    """

    first_layer: int = 4
    """Times `streamed_points`, `streamed_tiles` and `patience` of the one search for a network's first layer, as its
    weights come. With 2 layers of random sizes take up to 4 % more cycles, with 8 as many, in twice the time.
    """

    local_gap: float = 1.05
    """Times `least`: a mapping above it is improved by a local search (LOCAL-1). Nearer to it none of 128 small layers
    gains more than 0.6 %.
    """

    local_starts: int = 60
    """Mappings from which local searches go on where much less may do (`gap`): of the search that found the best, then
    of the layer's others. With those of the first alone two of 128 small layers take 2 and 8 % more cycles; with 12,
    and 300 for `local_runs`, nine take 0.3 to 2.3 % more; with one 14 take 2 to 20 % more.
    """

    local_alike: int = 2
    """Of these so many of a kind (`Point.kind`). Without a limit one of 128 small layers takes 2.9 % more cycles; with
    one another takes 1.7 % more.
    """

    local_runs: int = 600
    """Runs after which no local search goes on from another mapping. With 1,000 five of 128 small layers take 0.7 to
    3.8 % fewer cycles, and searches for all of them a quarter more time.
    """

    images: int = 16
    """Mappings beside the best whose loop over images is put further in (LOCAL-5). Of 13 small layers of three images
    three take 0.4 to 4.2 % more cycles with none, and all as many with 60.
    """

    front_tiles: int = 200
    """Tiles of a front with the least energy of array and DRAM, for each limit of cycles; with 0 there are no fronts.
    With 100 ResNet-50 on 16 x 16 PEs has 3 % more DRAM words. Of equal ones the fastest are half of them, the smallest
    the others: with the fastest alone AlexNet has 1 % more words there where these are minimised, with the smallest
    alone ResNet-50 has 4 % more.
    """

    front_equal: int = 4
    """Of these so many with blocks of equal sizes and equal array energy, the fastest. All are equal where words are
    minimised; without a limit AlexNet on 16 x 16 PEs has 1 % more DRAM words then, and searches take a tenth longer.
    """

    front_plans: int = 4
    """The cheapest plans of a tile that are looked at, and up to twice as many others with fewer cycles. With 2
    ResNet-50 has 0.01 % more energy where it is minimised, with 8 as much.
    """

    front_in_vain: int = 8
    """After so many runs in turn, none of which was cheaper and fast enough, a front goes on with fewer cycles. With 4
    ResNet-50 has 0.07 % more energy where it is minimised, with 16 as much.
    """

    front_alike: int = 3
    """After so many runs of a kind, others of it are run if they may be as near to their bounds. Half of all runs in
    vain are saved, for 0.01 % more energy of ResNet-50. With 2 a small layer takes 361 cycles for 323 at equal energy.
    """

    front_gap: float = 1.1
    """Times the least cost: a front for cycles that ends above it goes on in a tight budget (SPACE-13). With 1.25
    ResNet-50 has 0.3 % more energy, AlexNet 0.5 and NiN 2.2; with 1.0 they have as much.
    """

    front_slack: float = 1.25
    """Times the ideal cycles: points whose macro-instructions take more are not looked at for a front. Unless cycles
    are the objective, there is a second look, with as many times those of the fastest mapping (FRONT-1): without it
    AlexNet has 0.7 % more energy where it is minimised, and small layers up to 15 %; alone it gives LeNet 3 % more in a
    GLB of 4,096 words. With 1.5 for it ResNet-50 has 0.1 % less.
    """

    front_far: float = 1.05
    """Times the ideal cycles: a layer whose fastest mapping takes more has the second look. If all have it, searches of
    ResNet-50 by energy take 1.15 times as long, and networks have 0.1 % less to 0.1 % more energy.
    """

    def of_stripe(self) -> Effort:
        """That of a search for a stripe's mapping."""
        return replace(self, points=min(self.points, self.stripe_points))

    def of_tight(self) -> Effort:
        """That of a search in a tight budget, after one in the budget itself that found a mapping."""
        return replace(self, points=min(self.points, self.tight_points))

    def of_draft(self) -> Effort:
        """That of a search for a stripe's mapping until its group is one of the best."""
        return replace(self, points=min(self.points, self.draft_points), runs=min(self.runs, self.draft_runs))

    def of_first_layer(self) -> Effort:
        """That of a search for a network's first layer, as its weights come. It is not done again (`gap`)."""
        return replace(self.longer(self.first_layer), points=min(self.points, self.stripe_points), gap=inf)

    def longer(self, times: int = 0) -> Effort:
        """That of a longer search, which is never quick. times: of `streamed_points`, …; 0: `more`."""
        points, tiles, patience = self.streamed_points, self.streamed_tiles, self.patience
        n = times or self.more
        return replace(self, streamed_points=n * points, streamed_tiles=n * tiles, patience=n * patience, less=1)


USUAL = Effort()
