// RUN: cnncc opt %s -p 'array-prefetch{arch=spatial-4x4}' --split-input-file | filecheck %s

// b is marked: the transfer of its weights moves to a, behind a's own, with views of its own. c is not: its transfer
// stays.

builtin.module {
  weights.global @w.a : tensor<10xi16> = dense<0> : tensor<10xi16>
  weights.global @w.b : tensor<40000xi16> = dense<0> : tensor<40000xi16>
  weights.global @w.c : tensor<30000xi16> = dense<0> : tensor<30000xi16>
  array.tensor w.a, memory dram, words 10, role weight
  array.tensor w.b, memory dram, words 40000, role weight
  array.tensor w.c, memory dram, words 30000, role weight
  array.tensor x, memory dram, words 30000, role input
  array.tensor glb.a, memory glb, words 10
  array.tensor glb.b, memory glb, words 40000
  array.tensor glb.c, memory glb, words 30000
  array.tensor glb.x, memory glb, words 30000

  // CHECK:      array.layer "a"
  // CHECK:      array.dma in, dram weight.dram, glb weight, words 10
  // CHECK-NEXT: array.view sums, tensor glb.a
  // CHECK-NEXT: array.view next.weight.dram, tensor w.b
  // CHECK-NEXT: array.view next.weight, tensor glb.b
  // CHECK-NEXT: array.dma in, dram next.weight.dram, glb next.weight, words 40000, tokens give 3
  // Both buffers are free at the start.
  array.layer "semaphores" computes "" {
    array.signal semaphore 1, count 2
  }
  array.layer "a" computes "a" {
    array.view weight.dram, tensor w.a
    array.view weight, tensor glb.a
    array.dma in, dram weight.dram, glb weight, words 10, tokens give 2
    array.view sums, tensor glb.a
    array.sync [load]
  }
  // The loops of b's own views mean nothing in a, so the copies above have no steps; b keeps its views for its loads.
  // CHECK:      array.layer "b" computes "b" {
  // CHECK:      array.view weight, tensor glb.b, steps
  // CHECK-NOT:  array.dma
  // CHECK:      array.sync
  array.layer "b" computes "b" prefetched {
    array.view weight.dram, tensor w.b
    array.view weight, tensor glb.b, steps [lin+9*k0]
    array.dma in, dram weight.dram, glb weight, words 40000, tokens give 3
    array.repeat k0, count 2 {
      array.load weight, view weight
    }
    array.sync [load]
  }
  // CHECK:      array.layer "c"
  // CHECK:      array.dma in, dram weight.dram, glb weight, words 30000
  // CHECK-NOT:  array.dma
  // CHECK:      array.layer "d"
  array.layer "c" computes "c" {
    array.view weight.dram, tensor w.c
    array.view weight, tensor glb.c
    array.dma in, dram weight.dram, glb weight, words 30000, tokens give 2
    array.sync [load]
  }
  // An input is no weight, and a transfer that takes a token is a slice in turn with its loads: both stay.
  // CHECK:      array.dma in, dram x, glb g
  // CHECK-NEXT: array.dma in, dram w, glb g
  array.layer "d" computes "d" {
    array.view x, tensor x
    array.view g, tensor glb.x
    array.view w, tensor w.a
    array.dma in, dram x, glb g, words 30000
    array.dma in, dram w, glb g, words 10, tokens take 1
    array.sync [dma]
  }
}

// -----

// The first slice of two buffers goes behind the last block that a brings in, in the last iteration of the loop around
// it: that loop ends with a block for which nothing comes.

builtin.module {
  weights.global @w.a : tensor<40xi16> = dense<0> : tensor<40xi16>
  weights.global @w.b : tensor<30xi16> = dense<0> : tensor<30xi16>
  array.tensor w.a, memory dram, words 40, role weight
  array.tensor w.b, memory dram, words 30, role weight
  array.tensor glb.a, memory glb, words 20
  array.tensor glb.b, memory glb, words 20

  // CHECK:      array.layer "a"
  // CHECK:      array.repeat h0, count 2
  // CHECK-NOT:  next
  // CHECK:      array.repeat h0, count 1
  // CHECK-NEXT: array.repeat k1, count 3
  // CHECK-NEXT: array.dma
  // CHECK-NEXT: }
  // CHECK-NEXT: array.view next.w.dram, tensor w.b
  // CHECK-NEXT: array.view next.w, tensor glb.b, wrap 20
  // CHECK-NEXT: array.dma {{.*}}glb next.w, words 10, tokens take 1 give 3
  // CHECK-NEXT: array.repeat k1, count 1
  // CHECK:      array.layer "b" computes "b" {
  // CHECK:      array.repeat k0, count 2
  // CHECK-NEXT: array.dma {{.*}}glb_offset 10, tokens take 1 give 3
  // Both buffers are free at the start.
  array.layer "semaphores" computes "" {
    array.signal semaphore 1, count 2
  }
  array.layer "a" computes "a" {
    array.view w.dram, tensor w.a
    array.view w, tensor glb.a, wrap 20, steps [lin+10*k1]
    array.dma in, dram w.dram, glb w, words 10, tokens take 1 give 2
    array.repeat h0, count 2 {
      array.repeat k1, count 3 {
        array.dma in, dram w.dram, glb w, words 10, tokens take 1 give 2
      }
      array.repeat k1, count 1 {
        array.dma in, dram w.dram, glb w, words 10, tokens take 1 give 2
      }
    }
    array.repeat h0, count 1 {
      array.repeat k1, count 3 {
        array.dma in, dram w.dram, glb w, words 10, tokens take 1 give 2
      }
      array.repeat k1, count 1 {
        array.unit
      }
    }
    array.sync [load]
  }
  array.layer "b" computes "b" prefetched {
    array.view w.dram, tensor w.b
    array.view w, tensor glb.b, wrap 20, steps [lin+10*k0]
    array.dma in, dram w.dram, glb w, words 10, tokens take 1 give 3
    array.repeat k0, count 2 {
      array.dma in, dram w.dram, glb w, words 10, glb_offset 10, tokens take 1 give 3
    }
    array.sync [load]
  }
}

// -----

// The second transfer waits for its only buffer. The third one stays behind it, as the DMA runs all in order.
builtin.module {
  weights.global @w.a : tensor<10xi16> = dense<0> : tensor<10xi16>
  weights.global @p : tensor<20xi16> = dense<0> : tensor<20xi16>
  weights.global @q : tensor<30xi16> = dense<0> : tensor<30xi16>
  weights.global @r : tensor<40xi16> = dense<0> : tensor<40xi16>
  array.tensor w.a, memory dram, words 10, role weight
  array.tensor p, memory dram, words 20, role weight
  array.tensor q, memory dram, words 30, role weight
  array.tensor r, memory dram, words 40, role weight
  array.tensor glb.a, memory glb, words 10
  array.tensor glb.p, memory glb, words 20
  array.tensor glb.q, memory glb, words 30
  array.tensor glb.r, memory glb, words 40

  // The only buffer of q is free at the start.
  array.layer "semaphores" computes "" {
    array.signal semaphore 4, count 1
  }
  // CHECK:      array.layer "a"
  // CHECK:      array.dma in, dram next.p.dram, glb next.p, words 20, tokens give 2
  // CHECK-NEXT: array.sync
  array.layer "a" computes "a" {
    array.view w.dram, tensor w.a
    array.view w, tensor glb.a
    array.dma in, dram w.dram, glb w, words 10, tokens give 3
    array.sync [load]
  }
  // CHECK:      array.layer "b" computes "b" {
  // CHECK:      array.dma in, dram q.dram, glb q, words 30, tokens take 4 give 3
  // CHECK-NEXT: array.dma in, dram r.dram, glb r, words 40, tokens give 3
  array.layer "b" computes "b" prefetched {
    array.view p.dram, tensor p
    array.view p, tensor glb.p
    array.view q.dram, tensor q
    array.view q, tensor glb.q
    array.view r.dram, tensor r
    array.view r, tensor glb.r
    array.dma in, dram p.dram, glb p, words 20, tokens give 2
    array.dma in, dram q.dram, glb q, words 30, tokens take 4 give 3
    array.dma in, dram r.dram, glb r, words 40, tokens give 3
    array.sync [load]
  }
}
