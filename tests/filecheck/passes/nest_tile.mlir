// Tiles by hand and as a mapping says.

// By hand: two loops where one was. The remainder of 10 by 4 needs no word of its own. Other layers stay.
// RUN: cnncc opt %s -p 'nest-tile{dim=k size=4 layer=conv0}' | filecheck %s --check-prefix HAND
// HAND: nest.layer "mac" %x weights @w
// HAND-NEXT: nest.for k step 4 {
// HAND-NEXT: nest.for k {
// HAND-NEXT: nest.for h {
// HAND-NEXT: nest.for w {
// HAND-NEXT: nest.for c {
// HAND-NEXT: nest.for r {
// HAND-NEXT: nest.for s {
// HAND-NEXT: nest.mac
// HAND: nest.layer "max"
// HAND-NEXT: nest.for k {
// HAND-NEXT: nest.for h {
// HAND-NEXT: nest.for w {

// The loop with a step below the size is split: first inside, then outside tiles that are there.
// RUN: cnncc opt %s -p 'nest-tile{dim=h size=4 layer=conv0},nest-tile{dim=h size=2 layer=conv0},nest-tile{dim=h size=6 layer=conv0}' | filecheck %s --check-prefix TWICE
// TWICE: nest.layer "mac" %x weights @w
// TWICE-NEXT: nest.for k {
// TWICE-NEXT: nest.for h step 6 {
// TWICE-NEXT: nest.for h step 4 {
// TWICE-NEXT: nest.for h step 2 {
// TWICE-NEXT: nest.for h {
// TWICE-NEXT: nest.for w {

// All layers where none is named.
// RUN: cnncc opt %s -p 'nest-tile{dim=h size=2}' | filecheck %s --check-prefix ALL
// ALL: nest.layer "mac" %x weights @w
// ALL-NEXT: nest.for k {
// ALL-NEXT: nest.for h step 2 {
// ALL-NEXT: nest.for h {
// ALL-NEXT: nest.for w {
// ALL: nest.layer "max"
// ALL-NEXT: nest.for k {
// ALL-NEXT: nest.for h step 2 {
// ALL-NEXT: nest.for h {
// ALL-NEXT: nest.for w {

// Several dimensions: the loops over tiles are around all others, in the order of the option.
// RUN: cnncc opt %s -p 'nest-tile{dim=w,h size=2,4 layer=conv0}' | filecheck %s --check-prefix TWO
// TWO: nest.layer "mac" %x weights @w
// TWO-NEXT: nest.for k {
// TWO-NEXT: nest.for w step 2 {
// TWO-NEXT: nest.for h step 4 {
// TWO-NEXT: nest.for h {
// TWO-NEXT: nest.for w {
// TWO-NEXT: nest.for c {

// RUN: not cnncc opt %s -p 'nest-tile{dim=h,h size=4,2 layer=conv0}' 2>&1 | filecheck %s --check-prefix NAMED
// NAMED: cnncc: nest-tile: layer 'conv0': dimension h is named twice: a tile of a tile is a nest-tile of its own

// RUN: not cnncc opt %s -p 'nest-stage{operand=ifmap memory=glb depth=2 layer=conv0},nest-tile{dim=h,w size=4,2 layer=conv0}' 2>&1 | filecheck %s --check-prefix BETWEEN
// BETWEEN: cnncc: nest-tile: layer 'conv0': stage ifmap in glb stands between the loops over tiles of h and w: what it fetches would change

// Stages inside the loop stay inside both.
// RUN: cnncc opt %s -p 'nest-stage{operand=ifmap memory=glb depth=2 layer=conv0},nest-tile{dim=h size=4 layer=conv0}' | filecheck %s --check-prefix STAGED
// STAGED: nest.layer "mac" %x weights @w
// STAGED-NEXT: nest.for k {
// STAGED-NEXT: nest.for h step 4 {
// STAGED-NEXT: nest.for h {
// STAGED-NEXT: nest.stage ifmap in glb buffers 1
// STAGED-NEXT: nest.for w {

// Without options: the tiles of the mapping, the largest of each dimension first; no axis, no stage yet. A layer without a mapping stays.
// RUN: cnncc opt %s -p 'nest-tile' | filecheck %s --check-prefix MAPPED
// MAPPED: nest.layer "mac" %x weights @w
// MAPPED-NEXT: nest.for k step 8 {
// MAPPED-NEXT: nest.for h step 4 {
// MAPPED-NEXT: nest.for r step 2 {
// MAPPED-NEXT: nest.for k step 4 {
// MAPPED-NEXT: nest.for k step 2 {
// MAPPED-NEXT: nest.for k {
// MAPPED-NEXT: nest.for h {
// MAPPED-NEXT: nest.for w {
// MAPPED-NEXT: nest.for c {
// MAPPED-NEXT: nest.for r {
// MAPPED-NEXT: nest.for s {
// MAPPED-NEXT: nest.mac
// MAPPED: nest.layer "max"
// MAPPED-NEXT: nest.for k {
// MAPPED-NEXT: nest.for h {
// MAPPED-NEXT: nest.for w {

// A loop that is tiled as the mapping says already is not tiled again.
// RUN: cnncc opt %s -p 'nest-tile,nest-tile' | filecheck %s --check-prefix AGAIN
// AGAIN: nest.layer "mac" %x weights @w
// AGAIN-NEXT: nest.for k step 8 {
// AGAIN-NEXT: nest.for h step 4 {
// AGAIN-NEXT: nest.for r step 2 {
// AGAIN-NEXT: nest.for k step 4 {
// AGAIN-NEXT: nest.for k step 2 {

//
// RUN: not cnncc opt %s -p 'nest-tile{dim=k size=3 layer=conv0},nest-tile' 2>&1 | filecheck %s --check-prefix OTHER
// OTHER: cnncc: nest-tile: layer 'conv0': loops k step by [3, 1], the mapping's by [8, 4, 2, 1]: loops by hand are for a dump after nest-unroll

// A tile as large as the loop is none.
// RUN: not cnncc opt %s -p 'nest-tile{dim=h size=7 layer=conv0}' 2>&1 | filecheck %s --check-prefix LARGE
// LARGE: cnncc: nest-tile: layer 'conv0': a tile of 7 does not split loop h, which steps by 1 in an extent of 7

// Nor is one between the sizes of two tiles that there are.
// RUN: not cnncc opt %s -p 'nest-tile{dim=h size=4},nest-tile{dim=h size=4 layer=conv0}' 2>&1 | filecheck %s --check-prefix SAME
// SAME: cnncc: nest-tile: layer 'pool0': a tile of 4 does not split loop h, which steps by 1 in an extent of 3

// One index is the least.
// RUN: not cnncc opt %s -p 'nest-tile{dim=h size=1 layer=conv0}' 2>&1 | filecheck %s --check-prefix ONE
// ONE: cnncc: nest-tile: layer 'conv0': no loop over h has a step below 1

// A dim of one index has no loop.
// RUN: not cnncc opt %s -p 'nest-tile{dim=n size=2 layer=conv0}' 2>&1 | filecheck %s --check-prefix NONE
// NONE: cnncc: nest-tile: layer 'conv0': there is no loop over n, there are k, h, w, c, r, s

// Tiles are made of loops in time.
// RUN: not cnncc opt %s -p 'nest-unroll{dim=h axis=rows layer=conv0},nest-tile{dim=h size=4 layer=conv0}' 2>&1 | filecheck %s --check-prefix SPACE
// SPACE: cnncc: nest-tile: layer 'conv0': loop h runs on rows: tile before nest-unroll, or fold it with nest-split

// Half of the options is a mistake.
// RUN: not cnncc opt %s -p 'nest-tile{dim=h}' 2>&1 | filecheck %s --check-prefix HALF
// HALF: cnncc: nest-tile: options dim and size go together, a size for each dim

// So is a name that no layer has.
// RUN: not cnncc opt %s -p 'nest-tile{dim=h size=2 layer=conv9}' 2>&1 | filecheck %s --check-prefix WHO
// WHO: cnncc: there is no layer 'conv9'; layers: conv0, pool0

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
