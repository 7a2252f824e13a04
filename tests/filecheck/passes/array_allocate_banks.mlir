// Too many banks.

// RUN: not cnncc opt %s -p 'array-allocate{arch=tcpa-4x4}' 2>&1 | filecheck %s
// CHECK: the tensors of the cores take 41,596 words in 43 banks of 1,024 words, the array has 32 (glb.words = 32,768, glb.banks, CORE-5); the largest are weights 40,000, images 1,568, ring 20: fewer rows
builtin.module {
  array.tensor x, memory dram, words 784, shape [1, 784], role input, scale 1.0
  array.tensor images, memory glb, words 1568
  array.tensor params, memory glb, words 8
  array.tensor weights, memory glb, words 40000
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
