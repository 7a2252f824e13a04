// Two loops change places; all between them stay.

// RUN: cnncc opt %s -p 'nest-interchange{loops=h,c layer=conv0}' | filecheck %s
// CHECK: nest.layer "mac" %x weights @w
// CHECK-NEXT: nest.for k {
// CHECK-NEXT: nest.for c {
// CHECK-NEXT: nest.for w {
// CHECK-NEXT: nest.for h {
// CHECK-NEXT: nest.for r {
// CHECK-NEXT: nest.for s {
// CHECK-NEXT: nest.mac

// With numbers: 1 is the outermost over its dimension. Axes go with their loops.
// RUN: cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-unroll{dim=k axis=cols layer=conv0},nest-interchange{loops=h1,k layer=conv0}' | filecheck %s --check-prefix NUMBER
// NUMBER: nest.layer "mac" %x weights @w
// NUMBER-NEXT: nest.for h step 4 {
// NUMBER-NEXT: nest.par k on cols {
// NUMBER-NEXT: nest.for h {
// NUMBER-NEXT: nest.for w {

// Twice is nothing.
// RUN: cnncc opt %s -p 'nest-interchange{loops=c,h layer=conv0},nest-interchange{loops=h,c layer=conv0}' | filecheck %s --check-prefix TWICE
// TWICE: nest.layer "mac" %x weights @w
// TWICE-NEXT: nest.for k {
// TWICE-NEXT: nest.for h {
// TWICE-NEXT: nest.for w {
// TWICE-NEXT: nest.for c {
// TWICE-NEXT: nest.for r {
// TWICE-NEXT: nest.for s {

// A tile stays around what it is a tile of, whether that is the other loop or stands between.
// RUN: not cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-interchange{loops=h1,h2 layer=conv0}' 2>&1 | filecheck %s --check-prefix TILES
// TILES: cnncc: nest-interchange: layer 'conv0': tiles stay around what they are tiles of: loops h would step by [1, 4]
// RUN: not cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-interchange{loops=h1,c layer=conv0}' 2>&1 | filecheck %s --check-prefix BETWEEN
// BETWEEN: cnncc: nest-interchange: layer 'conv0': tiles stay around what they are tiles of: loops h would step by [1, 4]

// What a stage fetches stays what it is.
// RUN: not cnncc opt %s -p 'nest-stage{operand=weight memory=rf depth=2 layer=conv0},nest-interchange{loops=k,c layer=conv0}' 2>&1 | filecheck %s --check-prefix STAGE
// STAGE: cnncc: nest-interchange: layer 'conv0': stage weight in rf stands between loops k and c: what it fetches would change

// On one side of it they change places.
// RUN: cnncc opt %s -p 'nest-stage{operand=weight memory=rf depth=2 layer=conv0},nest-interchange{loops=w,s layer=conv0}' | filecheck %s --check-prefix SIDE
// SIDE: nest.layer "mac" %x weights @w
// SIDE-NEXT: nest.for k {
// SIDE-NEXT: nest.for h {
// SIDE-NEXT: nest.stage weight in rf buffers 1
// SIDE-NEXT: nest.for s keep {
// SIDE-NEXT: nest.for c keep {
// SIDE-NEXT: nest.for r keep {
// SIDE-NEXT: nest.for w keep {

// Names are checked.
// RUN: not cnncc opt %s -p 'nest-interchange{loops=h,n layer=conv0}' 2>&1 | filecheck %s --check-prefix NONE
// NONE: cnncc: nest-interchange: layer 'conv0': there is no loop over n
// RUN: not cnncc opt %s -p 'nest-interchange{loops=h2,c layer=conv0}' 2>&1 | filecheck %s --check-prefix SECOND
// SECOND: cnncc: nest-interchange: layer 'conv0': there is no loop 2 over h: it has 1 (1 is the outermost)
// RUN: not cnncc opt %s -p 'nest-interchange{loops=h,h1 layer=conv0}' 2>&1 | filecheck %s --check-prefix SAME
// SAME: cnncc: nest-interchange: layer 'conv0': loops h and h are the same loop
// RUN: not cnncc opt %s -p 'nest-interchange{loops=h,c,k layer=conv0}' 2>&1 | filecheck %s --check-prefix THREE
// THREE: cnncc: nest-interchange: loops are two, for example h,c, not h,c,k
// RUN: not cnncc opt %s -p 'nest-interchange{loops=h,c0 layer=conv0}' 2>&1 | filecheck %s --check-prefix NAME
// NAME: cnncc: 'c0' names no loop: a dimension, perhaps with a number, h or h2

func.func @main(%x: tensor<1x3x7x5xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 10, c = 3, h = 7, w = 5, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]>
       then <> label "conv0" : tensor<1x3x7x5xi16> -> tensor<1x10x7x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  // `layer=` leaves other layers as they are.
  // CHECK: nest.layer "max"
  // CHECK-NEXT: nest.for k {
  // CHECK-NEXT: nest.for h {
  // CHECK-NEXT: nest.for w {
  // CHECK-NEXT: nest.for r {
  // CHECK-NEXT: nest.for s {
  // CHECK-NEXT: nest.mac
  %1 = nest.layer "max" %0 sizes <n = 1, k = 10, c = 1, h = 3, w = 2, r = 2, s = 2> window <kernel = [2, 2], stride = [2, 2], group = 10>
       then <> label "pool0" : tensor<1x10x7x5xi32> -> tensor<1x10x3x2xi32> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return
}
