// Loops in space by hand and as a mapping says.

// By hand: the innermost loop over a dim, or one counted from outside.
// RUN: cnncc opt %s -p 'nest-tile{dim=k size=4 layer=conv0},nest-unroll{dim=h axis=rows layer=conv0},nest-unroll{dim=k axis=cols occurrence=1 layer=conv0}' | filecheck %s --check-prefix HAND
// HAND: nest.layer "mac" %x weights @w
// HAND-NEXT: nest.par k step 4 on cols {
// HAND-NEXT: nest.for k {
// HAND-NEXT: nest.par h on rows {
// HAND-NEXT: nest.for w {
// HAND: nest.layer "max"
// HAND-NEXT: nest.for k {
// HAND-NEXT: nest.for h {
// HAND-NEXT: nest.for w {

//
// RUN: cnncc opt %s -p 'nest-tile{dim=k size=4 layer=conv0},nest-unroll{dim=k axis=cols layer=conv0}' | filecheck %s --check-prefix INNER
// INNER: nest.layer "mac" %x weights @w
// INNER-NEXT: nest.for k step 4 {
// INNER-NEXT: nest.par k on cols {
// INNER-NEXT: nest.for h {

// Without options: the axes of the mapping.
// RUN: cnncc opt %s -p 'nest-tile,nest-permute,nest-unroll' | filecheck %s --check-prefix MAPPED
// MAPPED: nest.layer "mac" %x weights @w
// MAPPED-NEXT: nest.for k step 8 {
// MAPPED-NEXT: nest.for h step 4 {
// MAPPED-NEXT: nest.par k step 4 on rows {
// MAPPED-NEXT: nest.par h on rows {
// MAPPED-NEXT: nest.par k step 2 on cols {
// MAPPED-NEXT: nest.par w on cols {
// MAPPED-NEXT: nest.for r step 2 {
// MAPPED-NEXT: nest.for s {
// MAPPED-NEXT: nest.for c {
// MAPPED-NEXT: nest.for r {
// MAPPED-NEXT: nest.for k {
// MAPPED-NEXT: nest.mac
// MAPPED: nest.layer "max"
// MAPPED-NEXT: nest.for k {
// MAPPED-NEXT: nest.for h {
// MAPPED-NEXT: nest.for w {

// The array has two axes, a PE lanes, whose products are added up.
// RUN: not cnncc opt %s -p 'nest-unroll{dim=h axis=diagonals layer=conv0}' 2>&1 | filecheck %s --check-prefix AXIS
// AXIS: cnncc: nest-unroll: layer 'conv0': the array has rows, cols, lanes, not 'diagonals'
// RUN: not cnncc opt %s -p 'nest-unroll{dim=h axis=lanes layer=conv0}' 2>&1 | filecheck %s --check-prefix LANES
// LANES: cnncc: nest-unroll: layer 'conv0': loops h on lanes: there is one over k, or one each over some of c, r, s (NEST-6)

// A dim of one index has no loop.
// RUN: not cnncc opt %s -p 'nest-unroll{dim=n axis=rows layer=conv0}' 2>&1 | filecheck %s --check-prefix NONE
// NONE: cnncc: nest-unroll: layer 'conv0': there is no loop over n

//
// RUN: not cnncc opt %s -p 'nest-unroll{dim=h axis=rows occurrence=2 layer=conv0}' 2>&1 | filecheck %s --check-prefix SECOND
// SECOND: cnncc: nest-unroll: layer 'conv0': there is no loop 2 over h: it has 1 (1 is the outermost)

//
// RUN: not cnncc opt %s -p 'nest-unroll{dim=h axis=rows occurrence=0 layer=conv0}' 2>&1 | filecheck %s --check-prefix ZERO
// ZERO: cnncc: nest-unroll: layer 'conv0': there is no loop 0 over h: it has 1 (1 is the outermost)

// A loop is on one axis.
// RUN: not cnncc opt %s -p 'nest-unroll{dim=h axis=rows layer=conv0},nest-unroll{dim=h axis=cols layer=conv0}' 2>&1 | filecheck %s --check-prefix TWICE
// TWICE: cnncc: nest-unroll: layer 'conv0': loop h is on rows already

// What a macro-instruction runs, it runs in time.
// RUN: not cnncc opt %s -p 'nest-stage{operand=ifmap memory=rf depth=2 layer=conv0},nest-unroll{dim=w axis=cols layer=conv0}' 2>&1 | filecheck %s --check-prefix KEPT
// KEPT: cnncc: nest-unroll: layer 'conv0': loop w is kept in the PE

// The GLB's stages are outside all loops in space.
// RUN: not cnncc opt %s -p 'nest-stage{operand=ifmap memory=glb depth=2 layer=conv0},nest-unroll{dim=h axis=rows layer=conv0}' 2>&1 | filecheck %s --check-prefix GLB
// GLB: cnncc: nest-unroll: layer 'conv0': stage ifmap in glb: stands inside a loop in space (NEST-4)

// An array has so many PEs,
// RUN: not cnncc opt %s -p 'nest-unroll{dim=k axis=rows arch=spatial-8x8 layer=conv0}' 2>&1 | filecheck %s --check-prefix PES
// PES: cnncc: nest-unroll: layer 'conv0': rows 10, limit 8: 10 PEs do not fit 8 rows: fewer PEs: ||N, or nest-split by hand

// which loops on one axis share,
// RUN: not cnncc opt %s -p 'nest-unroll{dim=h axis=cols arch=spatial-8x8 layer=conv0},nest-unroll{dim=w axis=cols arch=spatial-8x8 layer=conv0}' 2>&1 | filecheck %s --check-prefix SHARED
// SHARED: cnncc: nest-unroll: layer 'conv0': cols 35, limit 8: 7 x 5 PEs do not fit 8 cols: fewer PEs: ||N, or nest-split by hand

// RUN: cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-unroll{dim=h axis=rows arch=spatial-8x8 layer=conv0}' | filecheck %s --check-prefix FITS
// FITS: nest.for h step 4 {
// FITS-NEXT: nest.par h on rows {

// and links on which sums travel, or not.
// RUN: not cnncc opt %s -p 'nest-unroll{dim=c axis=rows arch=seed-8x8 layer=conv0}' 2>&1 | filecheck %s --check-prefix SOUTH
// SOUTH: cnncc: nest-unroll: layer 'conv0': c is reduced down the rows, but this array has no links.south: an array with links.south = true, or c in time

// RUN: not cnncc opt %s -p 'nest-unroll{dim=s axis=cols arch="%s.toml" layer=conv0}' 2>&1 | filecheck %s --check-prefix EAST
// EAST: cnncc: nest-unroll: layer 'conv0': s is reduced across columns, but sums have no link from west to east: s||@rows, or s in time

// RUN: not cnncc opt %s -p 'nest-unroll{dim=r axis=rows arch="%s.toml" layer=pool0}' 2>&1 | filecheck %s --check-prefix MAX
// MAX: cnncc: nest-unroll: layer 'pool0': r is reduced down the rows, where sums are added, but this layer takes maxima: r in time

// RUN: cnncc opt %s -p 'nest-unroll{dim=r axis=rows arch="%s.toml" layer=conv0}' | filecheck %s --check-prefix DOWN
// DOWN: nest.par r on rows {

// The mapping's axes are checked like this, too.
// RUN: not cnncc opt %s -p 'nest-tile,nest-permute,nest-unroll{arch=spatial-4x4}' 2>&1 | filecheck %s --check-prefix SMALL
// SMALL: cnncc: nest-unroll: layer 'conv0': rows 8, limit 4: 2 x 4 PEs do not fit 4 rows: {{.*}}

// The mapping's tiles must be there.
// RUN: not cnncc opt %s -p 'nest-unroll' 2>&1 | filecheck %s --check-prefix TILES
// TILES: cnncc: nest-unroll: layer 'conv0': loops k step by [1], the mapping's by [8, 4, 2, 1]: nest-tile must run first

// Options go together.
// RUN: not cnncc opt %s -p 'nest-unroll{occurrence=1}' 2>&1 | filecheck %s --check-prefix HALF
// HALF: cnncc: nest-unroll: options dim and axis go together, and occurrence needs both

func.func @main(%x: tensor<1x3x7x5xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 10, c = 3, h = 7, w = 5, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]>
       then <bias = "b">
       mapping "ifmap@glb > k':8 > weight@glb*2 > params@glb*2 > h':4 > [k'':4||@rows h''||@rows k''':2||@cols w||@cols] > r':2 > weight@rf*2 > ifmap@rf*2 > {s > c > r'' > k''''}" label "conv0" : tensor<1x3x7x5xi16> -> tensor<1x10x7x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  // A layer without a mapping; `layer=` leaves it as it is.
  %1 = nest.layer "max" %0 sizes <n = 1, k = 10, c = 1, h = 3, w = 2, r = 2, s = 2> window <kernel = [2, 2], stride = [2, 2], group = 10>
       then <> label "pool0" : tensor<1x10x7x5xi32> -> tensor<1x10x3x2xi32> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return
}
