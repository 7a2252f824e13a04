// The innermost loops over some dimensions go into the box, in the order of the option.

// RUN: cnncc opt %s -p 'nest-split{dim=k size=4 layer=conv0},nest-keep{loops=s,r,k layer=conv0}' | filecheck %s
// CHECK: nest.layer "mac" %x weights @w
// CHECK-NEXT: nest.for k step 4 {
// CHECK-NEXT: nest.for h {
// CHECK-NEXT: nest.for w {
// CHECK-NEXT: nest.for c {
// CHECK-NEXT: nest.stage weight in rf buffers 1
// CHECK-NEXT: nest.stage ifmap in rf buffers 1
// CHECK-NEXT: nest.for s keep {
// CHECK-NEXT: nest.for r keep {
// CHECK-NEXT: nest.for k keep {
// CHECK-NEXT: nest.mac

// For an array: as many buffers as its files have halves, if they have room.
// RUN: cnncc opt %s -p 'nest-keep{loops=s,r arch=spatial-8x8 layer=conv0}' | filecheck %s --check-prefix ARCH
// ARCH: nest.layer "mac" %x weights @w
// ARCH-NEXT: nest.for k {
// ARCH-NEXT: nest.for h {
// ARCH-NEXT: nest.for w {
// ARCH-NEXT: nest.for c {
// ARCH-NEXT: nest.stage weight in rf buffers 2
// ARCH-NEXT: nest.stage ifmap in rf buffers 2
// ARCH-NEXT: nest.for s keep {
// ARCH-NEXT: nest.for r keep {
// RUN: not cnncc opt %s -p 'nest-keep{loops=s,c,r,k arch=spatial-8x8 layer=conv0}' 2>&1 | filecheck %s --check-prefix FILES
// FILES: cnncc: nest-keep: layer 'conv0': pe.weight_words 270, limit 112: a PE is to hold more words than it has: smaller tiles in the box and inside stages in rf, or weight_words of at least 270

// A pool has no weights.
// RUN: cnncc opt %s -p 'nest-keep{loops=s,r layer=pool0}' | filecheck %s --check-prefix POOL
// POOL: nest.layer "max"
// POOL-NEXT: nest.for k {
// POOL-NEXT: nest.for h {
// POOL-NEXT: nest.for w {
// POOL-NEXT: nest.stage ifmap in rf buffers 1
// POOL-NEXT: nest.for s keep {
// POOL-NEXT: nest.for r keep {

// A PE goes over the box in time.
// RUN: not cnncc opt %s -p 'nest-unroll{dim=w axis=cols layer=conv0},nest-keep{loops=r,w layer=conv0}' 2>&1 | filecheck %s --check-prefix SPACE
// SPACE: cnncc: nest-keep: layer 'conv0': loop w runs on cols: what a PE keeps it goes over in time

// What is staged stays what it is.
// RUN: not cnncc opt %s -p 'nest-stage{operand=weight memory=glb depth=1 layer=conv0},nest-keep{loops=r,k layer=conv0}' 2>&1 | filecheck %s --check-prefix STAGE
// STAGE: cnncc: nest-keep: layer 'conv0': loop k would leave the place around stage weight in glb: nest-keep before nest-stage
// RUN: not cnncc opt %s -p 'nest-keep{loops=r,s layer=conv0},nest-keep{loops=r layer=conv0}' 2>&1 | filecheck %s --check-prefix AGAIN
// AGAIN: cnncc: nest-keep: layer 'conv0': there is a box already, inside ifmap in rf
// RUN: not cnncc opt %s -p 'nest-keep{loops=r,r layer=conv0}' 2>&1 | filecheck %s --check-prefix TWICE
// TWICE: cnncc: nest-keep: layer 'conv0': dimension r is named twice: the box takes the innermost loop over it
// RUN: not cnncc opt %s -p 'nest-keep{loops=n layer=conv0}' 2>&1 | filecheck %s --check-prefix NONE
// NONE: cnncc: nest-keep: layer 'conv0': there is no loop over n

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
