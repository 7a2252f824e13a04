// RUN: cnncc opt %s -p 'nest-to-array{arch=spatial-4x4}' | filecheck %s

// Two pools, stripes of two rows and of one, a ring of four of eight rows between them. The first runs ahead by a step.
builtin.module {
  // CHECK: array.tensor a.ring, memory glb, words 16
  // CHECK: array.layer "a..b" computes "b" {
  // The prologue: the first stripe of a alone.
  // CHECK-NEXT: array.repeat i0, count 1 {
  // CHECK-NEXT: array.view ifmap, tensor x.glb, height 8, width 4, pitch 4, plane 32, steps [y+2*i0]
  // CHECK-NEXT: array.view output, tensor a.ring, height 8, width 4, pitch 4, plane 16, ring_y 4, steps [y+2*i0]
  // CHECK-NEXT: array.unit
  // CHECK-NEXT: array.load ifmap, view ifmap, place rows 2 cols 4 set 2x4 y+row x+col, start y-1,
  // CHECK-NEXT: pattern [1 by k+1, 1 by x+1, 3 by y+1], open always, close always
  // CHECK-NEXT: array.mac max
  // CHECK-NEXT: give_ifmap always
  // CHECK-NEXT: array.commit output, place rows 2 cols 4 set 2x4 y+row x+col
  // CHECK-NEXT: }
  // The steady state: two rows of a, then the row of b that the two before make possible. It needs the last of those.
  // CHECK-NEXT: array.repeat i0, count 3 {
  // CHECK: array.load ifmap, view ifmap, place rows 2 cols 4 set 2x4 y+row x+col, start y+1,
  // CHECK: array.commit output, place rows 2 cols 4 set 2x4 y+row x+col, start y+2, tokens give 13
  // CHECK-NEXT: array.view ifmap, tensor a.ring, height 8, width 4, pitch 4, plane 16, fill -99, ring_y 4, steps [y+2*i0]
  // CHECK-NEXT: array.view output, tensor b.glb, height 4, width 4, pitch 4, plane 16, steps [y+i0]
  // CHECK: array.load ifmap, view ifmap, place rows 1 cols 4 set 1x4 x+col, pattern
  // CHECK-NEXT: tokens take 13
  // The epilogue: the last row of b, for which nothing new comes.
  // CHECK: array.repeat i0, count 1 {
  // CHECK-NEXT: array.view ifmap, tensor a.ring
  // CHECK: array.load ifmap, view ifmap, place rows 1 cols 4 set 1x4 x+col, start y+6,
  // CHECK-NOT: tokens
  // CHECK: array.sync [load, array, commit]
  func.func @main(%x: tensor<1x1x8x4xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 1.0>})
      -> (tensor<1x1x4x4xi16> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 1.0>}) {
    %2 = nest.group "a..b" : tensor<1x1x4x4xi16> {
      %0 = nest.layer "max" %x sizes <n = 1, k = 1, c = 1, h = 8, w = 4, r = 3, s = 1>
           window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 4
           : tensor<1x1x8x4xi16> -> tensor<1x1x8x4xi16> {
        nest.for h step 2 { nest.par h on rows { nest.par w on cols {
          nest.stage ifmap in rf buffers 2
          nest.for r keep { nest.mac } } } }
      }
      %1 = nest.layer "max" %0 sizes <n = 1, k = 1, c = 1, h = 4, w = 4, r = 3, s = 1>
           window <kernel = [3, 1], stride = [2, 1], pad = [0, 0, 1, 0], fill = -99> then <> label "b" delay 1
           : tensor<1x1x8x4xi16> -> tensor<1x1x4x4xi16> {
        nest.for h { nest.par w on cols {
          nest.stage ifmap in rf buffers 2
          nest.for r keep { nest.mac } } }
      }
      nest.yield %1 : tensor<1x1x4x4xi16>
    }
    func.return %2 : tensor<1x1x4x4xi16>
  }
}
