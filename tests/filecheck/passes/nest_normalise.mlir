// Equal nests print equally: what runs once goes, loops in time that are one become one, rows come before columns,
// stages are in order.

// RUN: cnncc opt %s -p 'nest-normalise{layer=conv0}' | filecheck %s
// CHECK: nest.layer "mac" %x weights @w
// CHECK-NEXT: nest.for k step 4 {
// CHECK-NEXT: nest.stage weight in glb buffers 1
// CHECK-NEXT: nest.stage ifmap in glb buffers 1
// CHECK-NEXT: nest.for k {
// CHECK-NEXT: nest.par h on rows {
// CHECK-NEXT: nest.par w on cols {
// CHECK-NEXT: nest.for r {
// CHECK-NEXT: nest.for c {
// CHECK-NEXT: nest.for s {
// CHECK-NEXT: nest.mac

// Again changes nothing. Other layers are normal already.
// RUN: cnncc opt %s -p 'nest-normalise,nest-normalise{layer=conv0}' | filecheck %s --check-prefix AGAIN
// AGAIN: nest.layer "mac" %x weights @w
// AGAIN-NEXT: nest.for k step 4 {
// AGAIN-NEXT: nest.stage weight in glb buffers 1
// AGAIN-NEXT: nest.stage ifmap in glb buffers 1
// AGAIN-NEXT: nest.for k {
// AGAIN-NEXT: nest.par h on rows {
// AGAIN-NEXT: nest.par w on cols {
// AGAIN-NEXT: nest.for r {
// AGAIN-NEXT: nest.for c {
// AGAIN-NEXT: nest.for s {
// AGAIN-NEXT: nest.mac

// Loops over one dimension keep their order on any axes: which PE has which index depends on it.
// RUN: cnncc opt %s -p 'nest-split{dim=k size=2 layer=conv0},nest-unroll{dim=k axis=cols occurrence=3 layer=conv0},nest-unroll{dim=k axis=rows layer=conv0},nest-normalise' | filecheck %s --check-prefix ORDER
// ORDER: nest.layer "mac" %x weights @w
// ORDER-NEXT: nest.for k step 4 {
// ORDER-NEXT: nest.stage weight in glb buffers 1
// ORDER-NEXT: nest.stage ifmap in glb buffers 1
// ORDER-NEXT: nest.par k step 2 on cols {
// ORDER-NEXT: nest.par k on rows {
// ORDER-NEXT: nest.par h on rows {
// ORDER-NEXT: nest.par w on cols {
// ORDER-NEXT: nest.for r {

func.func @main(%x: tensor<1x3x7x5xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 10, c = 3, h = 7, w = 5, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]>
       then <> label "conv0" : tensor<1x3x7x5xi16> -> tensor<1x10x7x5xi32> {
    nest.for n { nest.for k step 8 { nest.for k step 4 { nest.stage ifmap in glb buffers 1
    nest.stage weight in glb buffers 1
    nest.for k { nest.par w on cols { nest.par h on rows { nest.for r step 2 { nest.for r { nest.for c { nest.for s { nest.mac } } } } } } } } } }
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
