// RUN: not cnncc opt %s -p 'array-prefetch{arch=spatial-4x4}' 2>&1 | filecheck %s

// The layer before begins with a loop: no place in it is one that every run passes first.
// CHECK: layer b is to be prefetched, but layer a before it begins with a loop, so that no place is left

builtin.module {
  weights.global @w.b : tensor<40xi16> = dense<0> : tensor<40xi16>
  array.tensor w.b, memory dram, words 40, role weight
  array.tensor glb.a, memory glb, words 10
  array.tensor glb.b, memory glb, words 40

  array.layer "a" computes "a" {
    array.repeat k0, count 2 {
      array.sync [load]
    }
    array.view ifmap, tensor glb.a
    array.sync [load]
  }
  array.layer "b" computes "b" prefetched {
    array.view weight.dram, tensor w.b
    array.view weight, tensor glb.b
    array.dma in, dram weight.dram, glb weight, words 40, tokens give 3
    array.sync [load]
  }
}
