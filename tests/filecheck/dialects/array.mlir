// RUN: cnncc opt %s | filecheck %s

builtin.module {
  // CHECK: array.tensor x, memory dram, words 192, shape [1, 3, 8, 8], role input, scale 0.5, zero 3, at 432
  array.tensor x, memory dram, words 192, shape [1, 3, 8, 8], role input, scale 0.5, zero 3, at 432
  array.tensor w.glb, memory glb, words 72
  array.tensor y, memory host, words 10
  array.tensor z, memory host, words 10
  // CHECK: array.layer "conv1" computes "relu1" prefetched attributes {mapping = "c > h||8@rows"} {
  array.layer "conv1" computes "relu1" prefetched attributes {mapping = "c > h||8@rows"} {
    // CHECK-NEXT: array.view w, tensor w.glb, wrap 72, steps [lin-36*k0]
    array.view w, tensor w.glb, wrap 72, steps [lin-36*k0]
    array.view w.dram, tensor x
    array.view "/x", tensor x
    // CHECK: array.unit bias, scale, zero -2, clamp [-40, 90], factors f
    array.unit bias, scale, zero -2, clamp [-40, 90], factors f
    // CHECK: array.unit factors f, multiply
    array.unit factors f, multiply
    // CHECK: array.unit clamp [-8, 1016], table t, shift 2
    array.unit clamp [-8, 1016], table t, shift 2
    // CHECK-NEXT: array.signal semaphore 1, count 2
    array.signal semaphore 1, count 2
    // Fields at their default are left out, also when they were written.
    // CHECK-NEXT: array.repeat k0, count 2 {
    array.repeat k0, count 2 {
      // CHECK-NEXT: array.dma in, dram w.dram, glb w, words 18, tokens take 1
      array.dma in, dram w.dram, glb w, words 18, count 1, tokens take 1
      // Conditions: `never`, the default, is left out; [] reads as `always`. A long op takes several lines.
      // CHECK-NEXT: array.load weight, view w, place rows 2 cols 1 y+row, start y-1, pattern [3 by lin+1], edge, open always,
      // CHECK-NEXT: {{^}}          close [k0]
      array.load weight, view w, place rows 2 cols 1 y+row, start y-1, pattern [3 by lin+1], edge, open [], close [k0]
      // Steps by one and none, loops and names that are no identifiers, indices that move back.
      // CHECK-NEXT: array.load ifmap, view "/x", place row0 1 col0 2 rows 8 cols 8 set 4x2 y-row k+2*row_set, start lin+1 k-2 y+3 x-4,
      // CHECK-NEXT: {{^}}          pattern [2, 1 by x+1, 3 by y-2, 4 by k+0]
      array.load ifmap, view "/x", place cols 8 rows 8 row0 1 col0 2 set 4x2 y-row k+2*row_set, start x-4 lin+1 y+3 k-2,
          pattern [2, 1 by x+1, 3 by y-2, 4 by k+0]
      // CHECK-NEXT: array.commit w, residual w, params w, psum 3-pixel+4*tap, fresh always, tokens take 1 when [k0] give 2 when [k0]
      array.commit w, residual w, params w, psum -pixel+4*tap+3, fresh always, tokens give 2 when ["k0"] take 1 when [k0]
      // CHECK-NEXT: array.mac mac, taps 9, step_range 2, lanes 4, ifmap 4*tap+lane, clear [k0]
      array.mac mac, taps 9, step_range 2, lanes 4, ifmap 4*tap+lane, clear [k0], send never
      // Each lane with a psum of its own.
      // CHECK-NEXT: array.mac max, taps 4, lanes 2, ifmap tap+4*lane, psum 2*channel+lane
      array.mac max, taps 4, lanes 2, ifmap tap+4*lane, psum 2*channel+lane
    // CHECK-NEXT: }
    }
    // CHECK-NEXT: array.commit w, source glb, operand w, residual w, params w
    array.commit w, source glb, operand w, residual w, params w
    // CHECK-NEXT: array.sync [load, array]
    array.sync [load, array]
  }
  // CHECK: array.host inputs [x], outputs [y, z] model <"865127f90da2046f">
  array.host inputs [x], outputs [y, z] model <"865127f90da2046f">
}
