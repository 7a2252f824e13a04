// Orders by hand and as a mapping says.

// By hand: the j-th mention of a dim is its j-th loop, so tiles stay around their inside.
// RUN: cnncc opt %s -p 'nest-tile{dim=k size=4 layer=conv0},nest-permute{order="c,k,w,s,k,r,h" layer=conv0}' | filecheck %s --check-prefix HAND
// HAND: nest.layer "mac" %x weights @w
// HAND-NEXT: nest.for c {
// HAND-NEXT: nest.for k step 4 {
// HAND-NEXT: nest.for w {
// HAND-NEXT: nest.for s {
// HAND-NEXT: nest.for k {
// HAND-NEXT: nest.for r {
// HAND-NEXT: nest.for h {
// HAND-NEXT: nest.mac
// HAND: nest.layer "max"
// HAND-NEXT: nest.for k {
// HAND-NEXT: nest.for h {
// HAND-NEXT: nest.for w {

// Without options: the order of the mapping.
// RUN: cnncc opt %s -p 'nest-tile,nest-permute' | filecheck %s --check-prefix MAPPED
// MAPPED: nest.layer "mac" %x weights @w
// MAPPED-NEXT: nest.for k step 8 {
// MAPPED-NEXT: nest.for h step 4 {
// MAPPED-NEXT: nest.for k step 4 {
// MAPPED-NEXT: nest.for h {
// MAPPED-NEXT: nest.for k step 2 {
// MAPPED-NEXT: nest.for w {
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

// An order names all loops,
// RUN: not cnncc opt %s -p 'nest-permute{order="k,h,w,c,r" layer=conv0}' 2>&1 | filecheck %s --check-prefix MISSING
// MISSING: cnncc: nest-permute: layer 'conv0': order k,h,w,c,r must name each of the loops k,h,w,c,r,s once

// each as often as there is one,
// RUN: not cnncc opt %s -p 'nest-permute{order="k,k,h,w,c,r,s" layer=conv0}' 2>&1 | filecheck %s --check-prefix TWICE
// TWICE: cnncc: nest-permute: layer 'conv0': order k,k,h,w,c,r,s must name

// and nothing else.
// RUN: not cnncc opt %s -p 'nest-permute{order="k,h,w,c,r,s,x" layer=conv0}' 2>&1 | filecheck %s --check-prefix WHAT
// WHAT: cnncc: nest-permute: layer 'conv0': there is no loop over x, there are k, h, w, c, r, s

// A stage would not know where it belongs.
// RUN: not cnncc opt %s -p 'nest-stage{operand=ifmap memory=glb depth=1 layer=conv0},nest-permute{order="h,k,w,c,r,s" layer=conv0}' 2>&1 | filecheck %s --check-prefix STAGED
// STAGED: cnncc: nest-permute: layer 'conv0': loops around stages stay where they are: permute before nest-stage

// The mapping's tiles must be there.
// RUN: not cnncc opt %s -p 'nest-permute' 2>&1 | filecheck %s --check-prefix TILES
// TILES: cnncc: nest-permute: layer 'conv0': loops k step by [1], the mapping's by [8, 4, 2, 1]: nest-tile must run first

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
