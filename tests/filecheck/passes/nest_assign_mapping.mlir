// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-4x4}' | filecheck %s
// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-4x4},nest-tile,nest-permute,nest-unroll,nest-stage' | filecheck %s --check-prefix NEST
// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-4x4 layer=pool0}' | filecheck %s --check-prefix ONE
// RUN: not cnncc opt %s -p 'nest-assign-mapping{arch=spatial-5x5}' 2>&1 | filecheck %s --check-prefix ARCH
// RUN: not cnncc opt %s -p 'nest-assign-mapping' 2>&1 | filecheck %s --check-prefix NOARCH
// RUN: not cnncc opt %s -p 'nest-tile{dim=k size=3 layer=conv0},nest-assign-mapping{arch=spatial-4x4},nest-tile' 2>&1 | filecheck %s --check-prefix TILED

// ARCH: cnncc: no array 'spatial-5x5'
// NOARCH: cnncc: -p: {{.*}}arch
// A mapping starts from the nest of cnn-to-nest.
// TILED: cnncc: nest-tile: layer 'conv0': loops k step by

func.func @main(%x: tensor<1x3x7x5xi16>, %x3: tensor<1x4x7x5xi16>, %x4: tensor<1x10x7x5xi16>) {
  // Stride 1 and pads all around. Sums stay in their PE: the loops over c, r and s are inside those over outputs.
  // CHECK: nest.layer "mac" %x weights @w
  // 4 channels on rows, 4 rows of pixels on columns. A PE does a whole row of 5 pixels at a time, for one input channel.
  // Nothing comes before the first layer: its weights come in slices, while it computes.
  // CHECK-SAME: mapping "params@glb > h':4 > k':4 > [k''||4@rows h''||4@cols] > c > weight@glb*2 > weight@rf*2 > ifmap@rf*2 > {w > s > r}" label "conv0"
  // NEST: then <bias = "b"> label "conv0"
  // NEST-NEXT: nest.stage params in glb buffers 1
  // NEST-NEXT: nest.for h step 4 {
  // NEST-NEXT: nest.for k step 4 {
  // NEST-NEXT: nest.par k on rows {
  // NEST-NEXT: nest.par h on cols {
  // NEST-NEXT: nest.for c {
  // NEST-NEXT: nest.stage weight in glb buffers 2
  // NEST-NEXT: nest.stage weight in rf buffers 2
  // NEST-NEXT: nest.stage ifmap in rf buffers 2
  // NEST-NEXT: nest.for w keep {
  // NEST-NEXT: nest.for s keep {
  // NEST-NEXT: nest.for r keep {
  // NEST-NEXT: nest.mac
  // ONE: then <bias = "b"> label "conv0"
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 10, c = 3, h = 7, w = 5, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]>
       then <bias = "b"> label "conv0" : tensor<1x3x7x5xi16> -> tensor<1x10x7x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  // A pool has no weights, here no parameters either.
  // CHECK: nest.layer "max"
  // CHECK-SAME: mapping "k':2 > [h||3@rows k''||2@cols w||2@cols] > ifmap@rf*2 > {s > r}" label "pool0"
  // ONE: nest.layer "max"
  // ONE-SAME: mapping "
  %1 = nest.layer "max" %0 sizes <n = 1, k = 10, c = 1, h = 3, w = 2, r = 2, s = 2> window <kernel = [2, 2], stride = [2, 2], group = 10>
       then <> label "pool0" : tensor<1x10x7x5xi32> -> tensor<1x10x3x2xi32> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  // Elementwise layers pass the array by: no mapping.
  // CHECK: nest.layer "copy" {{.*}} then <factors = "f"> label "add0"
  %2 = nest.layer "copy" %1 residual %1 : tensor<1x10x3x2xi32> sizes <n = 1, k = 10, c = 1, h = 3, w = 2, r = 1, s = 1>
       window <kernel = [1, 1], group = 10> then <factors = "f"> label "add0" : tensor<1x10x3x2xi32> -> tensor<1x10x3x2xi32> {
    nest.for k { nest.for h { nest.for w { nest.mac } } }
  }
  // Groups of several channels: a loop over them, inside it one group of 3 as a layer of its own.
  // The two channels of its sums are on rows, and are added on the way down.
  // CHECK: nest.layer "mac" {{.*}} mapping "weight@glb > k':3 > h':2 > [h''||2@rows k''||3@cols c||2@rows] > weight@rf*2 > ifmap@rf*2 > {w > s > r}" label "conv1" prefetched
  // NEST: label "conv1"
  %3 = nest.layer "mac" %x3 weights @w sizes <n = 1, k = 6, c = 2, h = 5, w = 3, r = 3, s = 3> window <kernel = [3, 3], group = 2>
       then <> label "conv1" : tensor<1x4x7x5xi16> -> tensor<1x6x5x3xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  // Groups of one channel each: side by side as in pools, with weights.
  // CHECK: nest.layer "mac" {{.*}} mapping "weight@glb > h':2 > [k':5||2@cols h''||2@cols r||3@rows] > weight@rf*2 > ifmap@rf*2 > {w > k'' > s}" label "depthwise"
  // NEST: label "depthwise"
  %4 = nest.layer "mac" %x4 weights @w sizes <n = 1, k = 10, c = 1, h = 5, w = 3, r = 3, s = 3> window <kernel = [3, 3], group = 10>
       then <> label "depthwise" : tensor<1x10x7x5xi16> -> tensor<1x10x5x3xi32> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return
}
