// Core 0 brings weights, then an image in and a result out for each frame. Each other core runs its group.

// RUN: cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool" places="1x2@3,0;1x4@0,0" rows=2,1},nest-to-array' | filecheck %s
// RUN: cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool" places="1x2@3,0;1x4@0,0" lag=3},nest-to-array' | filecheck %s --check-prefix LAG

// CHECK:      array.tensor a.images.glb, memory glb, words 256
// CHECK-NEXT: array.tensor pool.results.glb, memory glb, words 128
// CHECK-NEXT: array.tensor a.channel, memory glb, words 64
// CHECK:      array.core dram {
// CHECK-NEXT:   array.route semaphore 4, core 1, to 4
// CHECK-NEXT:   array.route semaphore 8, core 2, to 8
// CHECK-NEXT:   array.route semaphore 1, core 1, to 2
// CHECK-NEXT:   array.signal semaphore 5, count 2
// CHECK-NEXT:   array.signal semaphore 7, count 1
// CHECK-NEXT:   array.layer "weights" computes "" {
// CHECK-NEXT:     array.view weight.dram, tensor w
// CHECK-NEXT:     array.view weight, tensor w.glb
// CHECK-NEXT:     array.dma in, dram weight.dram, glb weight, words 72, tokens give 1
// CHECK-NEXT:   }
// CHECK-NEXT:   array.layer "frames" computes "pool" {
// CHECK-NEXT:     array.view image.dram, tensor x, width 128, frames, steps [y+i0]
// CHECK-NEXT:     array.view image, tensor a.images.glb, wrap 256, steps [lin+128*i0]
// CHECK-NEXT:     array.view result.dram, tensor y, width 64, frames, steps [y+i0]
// CHECK-NEXT:     array.view result, tensor pool.results.glb, wrap 128, steps [lin+64*i0]
// CHECK-NEXT:     array.repeat i0, count 2, frames {
// CHECK-NEXT:       array.dma in, dram image.dram, glb image, words 128, tokens take 5 give 4
// CHECK-NEXT:       array.dma out, dram result.dram, glb result, words 64, glb_offset -64, y -1, tokens take 7 give 8
// CHECK-NEXT:     }
// CHECK-NEXT:     array.sync [dma]
// CHECK:      array.core a, rows 1, cols 2, row0 3 {
// CHECK-NEXT:   array.route semaphore 10, core 0, to 5
// CHECK-NEXT:   array.route semaphore 7, core 2, to 4
// CHECK-NEXT:   array.signal semaphore 8, count 1
// CHECK-NEXT:   array.layer "a" computes "" {
// CHECK-NEXT:     array.repeat i0, count 1, frames {
// CHECK:            array.view ifmap, tensor a.images.glb, height 8, width 8, pitch 8, plane 64, wrap 256
// CHECK:            array.view output, tensor a.channel, height 8, width 8, pitch 8, plane 16, ring_y 2
// CHECK:            tokens take 4
// CHECK:            tokens take 8
// CHECK:        array.sync [load, array, commit]
// CHECK:      array.core pool, rows 1, cols 4 {
// CHECK-NEXT:   array.route semaphore 10, core 1, to 8
// CHECK-NEXT:   array.route semaphore 7, core 0, to 7
// CHECK-NEXT:   array.signal semaphore 8, count 1
// CHECK:            tokens take 4 give 10

// Results that leave three frames behind have three buffers.
// LAG: array.tensor a.images.glb, memory glb, words 384
// LAG: array.tensor pool.results.glb, memory glb, words 192
// LAG: array.signal semaphore 5, count 3
// LAG: array.signal semaphore 7, count 3
// LAG: array.repeat i0, count 4, frames {
// LAG: glb_offset -192, y -3
// LAG: array.core pool
// LAG-NOT: array.signal

// RUN: cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool" places="1x2@3,0;1x4@0,0"},nest-to-array,array-prefetch,array-allocate,array-to-isa' | filecheck %s --check-prefix ISA
// ISA:      isa.layer <label = "weights", first = 6
// ISA:      isa.inst "core" comment "core dram"
// ISA-NEXT: isa.inst "route semaphore=4 core=1 to=4"
// ISA:      isa.inst "desc frames=1 base=72 width=128 pitch=192" comment "frames: image.dram: x"
// ISA:      isa.inst "loop frames=1 count=2" comment "i0"
// ISA:      isa.inst "sync dma=1"
// ISA-NEXT: isa.inst "halt"
// ISA-NEXT: isa.inst "core row0=3 rows=1 cols=2" comment "core a"
// ISA:      isa.inst "halt"
// ISA-NEXT: isa.inst "core rows=1 cols=4" comment "core pool"

builtin.module {
  weights.global @w : tensor<4x2x3x3xi8> = dense<1> : tensor<4x2x3x3xi8>
  func.func @main(%x: tensor<1x2x8x8xi8> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 1.0>})
      -> (tensor<1x4x4x4xi8> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 1.0>}) {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 2, h = 8, w = 8, r = 3, s = 3>
         window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <clamp = [0, 127]> label "a" : tensor<1x2x8x8xi8> -> tensor<1x4x8x8xi8> {
      nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
    }
    %1 = nest.layer "max" %0 sizes <n = 1, k = 4, c = 1, h = 4, w = 4, r = 2, s = 2>
         window <kernel = [2, 2], stride = [2, 2], group = 4, fill = -128> then <> label "pool"
         : tensor<1x4x8x8xi8> -> tensor<1x4x4x4xi8> {
      nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
    }
    func.return %1 : tensor<1x4x4x4xi8>
  }
}
