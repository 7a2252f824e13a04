// One loop becomes two, directly around each other.

// RUN: cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0}' | filecheck %s
// CHECK: nest.layer "mac" %x weights @w
// CHECK-NEXT: nest.for k {
// CHECK-NEXT: nest.for h step 4 {
// CHECK-NEXT: nest.for h {
// CHECK-NEXT: nest.for w {
// CHECK-NEXT: nest.for c {
// CHECK-NEXT: nest.for r {
// CHECK-NEXT: nest.for s {
// CHECK-NEXT: nest.mac

// Of several loops the innermost, or one counted from outside.
// RUN: cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-split{dim=h size=2 layer=conv0},nest-split{dim=h size=6 occurrence=1 layer=conv0}' | filecheck %s --check-prefix COUNTED
// COUNTED: nest.layer "mac" %x weights @w
// COUNTED-NEXT: nest.for k {
// COUNTED-NEXT: nest.for h step 6 {
// COUNTED-NEXT: nest.for h step 4 {
// COUNTED-NEXT: nest.for h step 2 {
// COUNTED-NEXT: nest.for h {
// COUNTED-NEXT: nest.for w {

// In space: a fold, of ten PEs to eight.
// RUN: cnncc opt %s -p 'nest-unroll{dim=k axis=cols layer=conv0},nest-split{dim=k size=8 layer=conv0}' | filecheck %s --check-prefix FOLD
// FOLD: nest.layer "mac" %x weights @w
// FOLD-NEXT: nest.for k step 8 {
// FOLD-NEXT: nest.par k on cols {
// FOLD-NEXT: nest.for h {
// FOLD-NEXT: nest.for w {

// In the box both are in it; stages inside the loop stay inside both.
// RUN: cnncc opt %s -p 'nest-stage{operand=weight memory=rf depth=2 layer=conv0},nest-split{dim=w size=2 layer=conv0}' | filecheck %s --check-prefix KEPT
// KEPT: nest.layer "mac" %x weights @w
// KEPT-NEXT: nest.for k {
// KEPT-NEXT: nest.for h {
// KEPT-NEXT: nest.stage weight in rf buffers 1
// KEPT-NEXT: nest.for w step 2 keep {
// KEPT-NEXT: nest.for w keep {
// KEPT-NEXT: nest.for c keep {
// RUN: cnncc opt %s -p 'nest-stage{operand=weight memory=glb depth=1 layer=conv0},nest-split{dim=k size=4 layer=conv0}' | filecheck %s --check-prefix STAGED
// STAGED: nest.layer "mac" %x weights @w
// STAGED-NEXT: nest.for k step 4 {
// STAGED-NEXT: nest.for k {
// STAGED-NEXT: nest.stage weight in glb buffers 1
// STAGED-NEXT: nest.for h {

// A size splits where it is between step and extent.
// RUN: not cnncc opt %s -p 'nest-split{dim=h size=7 layer=conv0}' 2>&1 | filecheck %s --check-prefix LARGE
// LARGE: cnncc: nest-split: layer 'conv0': a tile of 7 does not split loop h, which steps by 1 in an extent of 7
// RUN: not cnncc opt %s -p 'nest-split{dim=h size=1 layer=conv0}' 2>&1 | filecheck %s --check-prefix SMALL
// SMALL: cnncc: nest-split: layer 'conv0': a tile of 1 does not split loop h, which steps by 1 in an extent of 7
// RUN: not cnncc opt %s -p 'nest-split{dim=h size=4 layer=conv0},nest-split{dim=h size=4 occurrence=1 layer=conv0}' 2>&1 | filecheck %s --check-prefix AGAIN
// AGAIN: cnncc: nest-split: layer 'conv0': a tile of 4 does not split loop h, which steps by 4 in an extent of 7
// RUN: not cnncc opt %s -p 'nest-split{dim=n size=4 layer=conv0}' 2>&1 | filecheck %s --check-prefix NONE
// NONE: cnncc: nest-split: layer 'conv0': there is no loop over n

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
