// A ring that a load reads as an ifmap and a commit as a residual.

// RUN: not cnncc opt %s -p 'array-allocate{arch=tcpa-4x4}' 2>&1 | filecheck %s
// CHECK: tensor ring is read by commit of core conv and by load of core conv: one engine of one core does, as a bank of the GLB has one port for it (CORE-5)
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
      array.commit ring, residual ring, params params
    }
  }
}
