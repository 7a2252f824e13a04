// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-4x4 schedule="%s.toml"}' | filecheck %s
// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-4x4 schedule="%s.toml"},nest-tile,nest-permute,nest-unroll,nest-stage' | filecheck %s --check-prefix NEST
// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-4x4 schedule="%s.toml" layer=conv1}' | filecheck %s --check-prefix ONE
// RUN: not cnncc opt %s -p 'nest-assign-mapping{arch=seed-4x4 schedule="%s.toml"}' 2>&1 | filecheck %s --check-prefix FILES
// RUN: not cnncc opt %s -p 'nest-assign-mapping{arch=spatial-4x4 schedule="%s"}' 2>&1 | filecheck %s --check-prefix TEXT

// What does not fit is refused, all of it: here 3 channels of 9 depthwise inputs in ping, 12 words.
// FILES: cnncc: nest-assign-mapping: layer 'depthwise': pe.ifmap_words 27, limit 12: p * tky * tkx inputs do not fit a PE: smaller p, tky or tkx, or an array with ifmap_words of at least 27
// TEXT: cnncc: {{.*}}nest_assign_mapping_given.mlir: not TOML: {{.*}}

// A layer by itself has its operands in the GLB.
// RUN: not cnncc opt %s -p 'nest-assign-mapping{arch=spatial-4x4 layer=conv1 mapping="ifmap@glb > k > h > w > c > {r > s}"}' 2>&1 | filecheck %s --check-prefix STAYS
// STAYS: cnncc: nest-assign-mapping: layer 'conv1': its ifmap lies in the GLB as a whole: leave out ifmap@glb

func.func @main(%x: tensor<1x3x7x5xi16>, %x4: tensor<1x10x7x5xi16>) {
  // Tiles in the order k, h, (w), rounds in the same; sets of 2 x 2 PEs, two of them below each other; slices of 2 input
  // channels, of which one at a time, with 2 of the kernel's 3 rows.
  // CHECK: nest.layer "mac" %x weights @w
  // CHECK-SAME: mapping "weight@glb > params@glb > k':6 > h':4 > h'':2 > w':2 > [k'':3||2@rows h'''||2@rows w''||2@cols] > c':2 > c'' > r':2 > weight@rf*2 > ifmap@rf*2 > {s > r'' > k'''}" label "conv0"
  // NEST: label "conv0"
  // NEST-NEXT: nest.stage weight in glb buffers 1
  // NEST-NEXT: nest.stage params in glb buffers 1
  // NEST-NEXT: nest.for k step 6 {
  // NEST-NEXT: nest.for h step 4 {
  // NEST-NEXT: nest.for h step 2 {
  // NEST-NEXT: nest.for w step 2 {
  // NEST-NEXT: nest.par k step 3 on rows {
  // NEST-NEXT: nest.par h on rows {
  // NEST-NEXT: nest.par w on cols {
  // NEST-NEXT: nest.for c step 2 {
  // NEST-NEXT: nest.for c {
  // NEST-NEXT: nest.for r step 2 {
  // NEST-NEXT: nest.stage weight in rf buffers 2
  // NEST-NEXT: nest.stage ifmap in rf buffers 2
  // NEST-NEXT: nest.for s keep {
  // NEST-NEXT: nest.for r keep {
  // NEST-NEXT: nest.for k keep {
  // NEST-NEXT: nest.mac
  // ONE: label "conv0"
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 10, c = 3, h = 7, w = 5, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]>
       then <bias = "b"> label "conv0" : tensor<1x3x7x5xi16> -> tensor<1x10x7x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  // A layer that the file does not name has the compiler's own mapping.
  // CHECK: mapping "weight@glb > params@glb > k':4 > h':4 > [k''||4@rows h''||4@cols] > {{.*}} label "conv1"
  // ONE: nest.layer "mac"
  // ONE-SAME: mapping "
  %1 = nest.layer "mac" %x weights @w sizes <n = 1, k = 10, c = 3, h = 7, w = 5, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]>
       then <bias = "b"> label "conv1" : tensor<1x3x7x5xi16> -> tensor<1x10x7x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  // Sets of 2 x 1 PEs beside each other, of 3 channels with an input each.
  // CHECK: mapping "weight@glb > h':4 > h'':2 > w > [h'''||2@rows k':3||4@cols] > weight@rf*2 > ifmap@rf*2 > {k'' > s > r}" label "depthwise"
  %2 = nest.layer "mac" %x4 weights @w sizes <n = 1, k = 10, c = 1, h = 5, w = 3, r = 3, s = 3> window <kernel = [3, 3], group = 10>
       then <> label "depthwise" : tensor<1x10x7x5xi16> -> tensor<1x10x5x3xi32> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return
}
