// Two loops become one: what nest-split did is undone.

// RUN: cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-merge-loops{dim=h layer=conv0}' | filecheck %s
// CHECK: nest.layer "mac" %x weights @w
// CHECK-NEXT: nest.for k {
// CHECK-NEXT: nest.for h {
// CHECK-NEXT: nest.for w {
// CHECK-NEXT: nest.for c {
// CHECK-NEXT: nest.for r {
// CHECK-NEXT: nest.for s {
// CHECK-NEXT: nest.mac

// Of several, the one that is counted from outside and the next.
// RUN: cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-split{dim=h size=2 layer=conv0},nest-merge-loops{dim=h occurrence=2 layer=conv0}' | filecheck %s --check-prefix COUNTED
// COUNTED: nest.layer "mac" %x weights @w
// COUNTED-NEXT: nest.for k {
// COUNTED-NEXT: nest.for h step 4 {
// COUNTED-NEXT: nest.for h {
// COUNTED-NEXT: nest.for w {
// COUNTED-NEXT: nest.for c {

// A fold: all PEs at once again, if there are so many.
// RUN: cnncc opt %s -p 'nest-unroll{dim=k axis=cols layer=conv0},nest-split{dim=k size=8 layer=conv0},nest-merge-loops{dim=k layer=conv0}' | filecheck %s --check-prefix FOLD
// FOLD: nest.layer "mac" %x weights @w
// FOLD-NEXT: nest.par k on cols {
// FOLD-NEXT: nest.for h {
// FOLD-NEXT: nest.for w {
// RUN: not cnncc opt %s -p 'nest-unroll{dim=k axis=cols layer=conv0},nest-split{dim=k size=8 layer=conv0},nest-merge-loops{dim=k arch=spatial-8x8 layer=conv0}' 2>&1 | filecheck %s --check-prefix PES
// PES: cnncc: nest-merge-loops: layer 'conv0': cols 10, limit 8: 10 PEs do not fit 8 cols: fewer PEs: ||N, or nest-split by hand

// Nothing may stand between them,
// RUN: not cnncc opt %s -p 'nest-merge-loops{dim=h layer=conv0}' 2>&1 | filecheck %s --check-prefix LOOP
// LOOP: cnncc: nest-merge-loops: layer 'conv0': no loop over h stands directly inside this one, loop w is: nest-permute first
// RUN: not cnncc opt %s -p 'nest-merge-loops{dim=s layer=conv0}' 2>&1 | filecheck %s --check-prefix LAST
// LAST: cnncc: nest-merge-loops: layer 'conv0': no loop over s stands directly inside this one, there is none: nest-permute first
// RUN: not cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-stage{operand=weight memory=rf depth=2 layer=conv0},nest-merge-loops{dim=h layer=conv0}' 2>&1 | filecheck %s --check-prefix STAGE
// STAGE: cnncc: nest-merge-loops: layer 'conv0': stage weight in rf stands between the loops over h: what it fetches would change

// and one loop runs in one way.
// RUN: not cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-unroll{dim=h axis=rows occurrence=1 layer=conv0},nest-merge-loops{dim=h layer=conv0}' 2>&1 | filecheck %s --check-prefix WAYS
// WAYS: cnncc: nest-merge-loops: layer 'conv0': the outer loop over h runs on rows, the inner in time: no one loop does both
// RUN: not cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-unroll{dim=h axis=rows occurrence=1 layer=conv0},nest-unroll{dim=h axis=cols occurrence=2 layer=conv0},nest-merge-loops{dim=h layer=conv0}' 2>&1 | filecheck %s --check-prefix AXES
// AXES: cnncc: nest-merge-loops: layer 'conv0': the outer loop over h runs on rows, the inner on cols: no one loop does both

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
