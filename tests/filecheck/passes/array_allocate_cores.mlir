// Tensors of cores lie in banks with one reading and one writing engine: 1,024 words each. The load of core conv reads
// images and weights, and the DMA writes both.

// RUN: cnncc opt %s -p 'array-allocate{arch=tcpa-4x4}' | filecheck %s
// CHECK:      array.tensor x, memory dram, words 784, shape [1, 784], role input, scale 1.0, at 0
// CHECK-NEXT: array.tensor images, memory glb, words 1568, at 0
// CHECK-NEXT: array.tensor params, memory glb, words 8, at 3072
// CHECK-NEXT: array.tensor weights, memory glb, words 900, at 1568
// CHECK-NEXT: array.tensor ring, memory glb, words 20, at 4096
builtin.module {
  array.tensor x, memory dram, words 784, shape [1, 784], role input, scale 1.0
  array.tensor images, memory glb, words 1568
  array.tensor params, memory glb, words 8
  array.tensor weights, memory glb, words 900
  array.tensor ring, memory glb, words 20
  array.core dram {
    array.route semaphore 4, core 1, to 4
    array.layer "frames" computes "" {
      array.view x, tensor x
      array.view images, tensor images
      array.view weights, tensor weights
      array.view params, tensor params
      array.dma in, dram x, glb weights, words 8
      array.dma in, dram x, glb params, words 8
      array.dma in, dram x, glb images, words 784, tokens give 4
    }
  }
  array.core conv, rows 1, cols 1 {
    array.layer "conv" computes "" {
      array.view images, tensor images
      array.view weights, tensor weights
      array.view params, tensor params
      array.view ring, tensor ring
      array.unit bias
      array.load ifmap, view images, pattern [8 by lin+1], tokens take 4
      array.load weight, view weights, pattern [8 by lin+1]
      array.load ifmap, view ring, pattern [8 by lin+1]
      array.commit ring, params params
    }
  }
}
