// RUN: not cnncc opt %s -p 'array-prefetch{arch=spatial-4x4}' 2>&1 | filecheck %s

// The layer before reads words of the tensor, be it by another name.
// CHECK: layer c is to be prefetched, but c.w would come into tensor whole, which layer a before uses
builtin.module attributes {cnncc.done = "nest-to-array"} {
  weights.global @c.w : tensor<4xi16> = dense<1> : tensor<4xi16>
  array.tensor c.w, memory dram, words 4, role weight
  array.tensor x, memory dram, words 4
  array.tensor whole, memory glb, words 8
  array.tensor part, memory glb, words 4, part_of whole, offset 4
  array.layer "a" computes "" {
    array.view x.dram, tensor x
    array.view x, tensor part
    array.dma in, dram x.dram, glb x, words 4
  }
  array.layer "c" computes "" prefetched {
    array.view w.dram, tensor c.w
    array.view w, tensor whole
    array.dma in, dram w.dram, glb w, words 4, tokens give 2
    array.load weight, view w, pattern [4 by lin+1], open always, close always, tokens take 2
    array.sync [load]
  }
}
