// Mappings of dataflows, of a text, and what is wrong.

// All layers with weights; a pool gets the compiler's own mapping.
// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-8x8 dataflow=ws}' | filecheck %s
// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-8x8 dataflow=rs layer=conv0}' | filecheck %s --check-prefix ROWS
// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-8x8 mapping="k > [h|| w||] > c > {r > s}" layer=conv0}' | filecheck %s --check-prefix TEXT

// The passes that follow bring the nest into that form.
// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-8x8 dataflow=rs},nest-tile,nest-permute,nest-unroll,nest-stage' | filecheck %s --check-prefix NEST

// RUN: not cnncc opt %s -p 'nest-assign-mapping{arch=spatial-8x8 dataflow=sr}' 2>&1 | filecheck %s --check-prefix NAME
// NAME: cnncc: nest-assign-mapping: no dataflow 'sr': there are: auto, os, ws, is, rs, nlr
// RUN: not cnncc opt %s -p 'nest-assign-mapping{arch=spatial-8x8 dataflow=ws mapping="k > c"}' 2>&1 | filecheck %s --check-prefix BOTH
// BOTH: cnncc: nest-assign-mapping: give either a dataflow or a mapping
// RUN: not cnncc opt %s -p 'nest-assign-mapping{arch=spatial-8x8 mapping="k > x"}' 2>&1 | filecheck %s --check-prefix LOOP
// LOOP: cnncc: nest-assign-mapping: {{.*}}'x'
// RUN: not cnncc opt %s -p 'nest-assign-mapping{arch=seed-8x8 dataflow=rs layer=conv0}' 2>&1 | filecheck %s --check-prefix SOUTH
// SOUTH: cnncc: nest-assign-mapping: layer 'conv0': r is reduced down the rows, but this array has no links.south: another dataflow than rs

func.func @main(%x: tensor<1x3x7x5xi16>) {
  // CHECK: nest.layer "mac" %x weights @w
  // CHECK-SAME: mapping "params@glb > k':2 > weight@glb*2 > [k''||2@rows r||3@rows h||7@cols] > weight@rf*2 > ifmap@rf*2 > {w > s > c}" label "conv0"
  // ROWS: mapping "weight@glb > params@glb > k > c':2 > [c''||2@rows r||3@rows h||7@cols] > weight@rf*2 > ifmap@rf*2 > {w > s}" label "conv0"
  // ROWS-NOT: mapping
  // TEXT: mapping "weight@glb > params@glb > k > [h||7@rows w||5@cols] > c > weight@rf*2 > ifmap@rf*2 > {s > r}" label "conv0"
  // NEST: nest.par r on rows {
  // NEST-NEXT: nest.par h on cols {
  // NEST-NEXT: nest.stage weight in rf buffers 2
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 10, c = 3, h = 7, w = 5, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]>
       then <bias = "b"> label "conv0" : tensor<1x3x7x5xi16> -> tensor<1x10x7x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  // CHECK: mapping "k':8 > {{.*}} > ifmap@rf*2 > {s > r}" label "pool0"
  %1 = nest.layer "max" %0 sizes <n = 1, k = 10, c = 1, h = 3, w = 2, r = 2, s = 2> window <kernel = [2, 2], stride = [2, 2], group = 10>
       then <> label "pool0" : tensor<1x10x7x5xi32> -> tensor<1x10x3x2xi32> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return
}
