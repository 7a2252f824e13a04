// RUN: cnncc opt %s -p 'array-prefetch{arch=spatial-4x4}' --split-input-file | filecheck %s

// b is marked: the transfer of its weights moves to a, behind a's own, with views of its own. c is not: its transfer
// stays.

builtin.module {
  weights.global @w.a : tensor<10xi16> = dense<0> : tensor<10xi16>
  weights.global @w.b : tensor<40000xi16> = dense<0> : tensor<40000xi16>
  weights.global @w.c : tensor<30000xi16> = dense<0> : tensor<30000xi16>
  array.tensor <name = "w.a", memory = "dram", words = 10, role = "weight">
  array.tensor <name = "w.b", memory = "dram", words = 40000, role = "weight">
  array.tensor <name = "w.c", memory = "dram", words = 30000, role = "weight">
  array.tensor <name = "x", memory = "dram", words = 30000, role = "input">
  array.tensor <name = "glb.a", memory = "glb", words = 10>
  array.tensor <name = "glb.b", memory = "glb", words = 40000>
  array.tensor <name = "glb.c", memory = "glb", words = 30000>
  array.tensor <name = "glb.x", memory = "glb", words = 30000>

  // CHECK:      array.layer "a"
  // CHECK:      array.dma <direction = "in", dram = "weight.dram", glb = "weight", words = 10,
  // CHECK-NEXT: array.view <name = "next.weight.dram", tensor = "w.b">
  // CHECK-NEXT: array.view <name = "next.weight", tensor = "glb.b">
  // CHECK-NEXT: array.dma <direction = "in", dram = "next.weight.dram", glb = "next.weight", words = 40000, tokens = {give = 3}>
  array.layer "a" computes "a" {
    array.view <name = "weight.dram", tensor = "w.a">
    array.view <name = "weight", tensor = "glb.a">
    array.dma <direction = "in", dram = "weight.dram", glb = "weight", words = 10, tokens = {give = 2}>
    array.sync ["load"]
  }
  // The loops of b's own views mean nothing in a, so the copies above have no steps; b keeps its views for its loads.
  // CHECK:      array.layer "b" computes "b" {
  // CHECK:      array.view <name = "weight", tensor = "glb.b", steps =
  // CHECK-NOT:  array.dma
  // CHECK:      array.sync
  array.layer "b" computes "b" ahead {
    array.view <name = "weight.dram", tensor = "w.b">
    array.view <name = "weight", tensor = "glb.b", steps = [{loop = "k0", axis = "lin", step = 9}]>
    array.dma <direction = "in", dram = "weight.dram", glb = "weight", words = 40000, tokens = {give = 3}>
    array.repeat <loop = "k0", count = 2> {
      array.load <kind = "weight", view = "weight", place = {}, start = {}, pattern = []>
    }
    array.sync ["load"]
  }
  // CHECK:      array.layer "c"
  // CHECK:      array.dma <direction = "in", dram = "weight.dram", glb = "weight", words = 30000
  // CHECK-NOT:  array.dma
  // CHECK:      array.layer "d"
  array.layer "c" computes "c" {
    array.view <name = "weight.dram", tensor = "w.c">
    array.view <name = "weight", tensor = "glb.c">
    array.dma <direction = "in", dram = "weight.dram", glb = "weight", words = 30000, tokens = {give = 2}>
    array.sync ["load"]
  }
  // An input is no weight, and a transfer that takes a token is a slice in turn with its loads: both stay.
  // CHECK:      array.dma <direction = "in", dram = "x", glb = "g"
  // CHECK-NEXT: array.dma <direction = "in", dram = "w", glb = "g"
  array.layer "d" computes "d" {
    array.view <name = "x", tensor = "x">
    array.view <name = "g", tensor = "glb.x">
    array.view <name = "w", tensor = "w.a">
    array.dma <direction = "in", dram = "x", glb = "g", words = 30000>
    array.dma <direction = "in", dram = "w", glb = "g", words = 10, tokens = {take = 1}>
    array.sync ["dma"]
  }
}

// -----

// The first slice of two buffers goes behind the last block that a brings in, in the last iteration of the loop around
// it: that loop ends with a block for which nothing comes.

builtin.module {
  weights.global @w.a : tensor<40xi16> = dense<0> : tensor<40xi16>
  weights.global @w.b : tensor<30xi16> = dense<0> : tensor<30xi16>
  array.tensor <name = "w.a", memory = "dram", words = 40, role = "weight">
  array.tensor <name = "w.b", memory = "dram", words = 30, role = "weight">
  array.tensor <name = "glb.a", memory = "glb", words = 20>
  array.tensor <name = "glb.b", memory = "glb", words = 20>

  // CHECK:      array.layer "a"
  // CHECK:      array.repeat <loop = "h0", count = 2>
  // CHECK-NOT:  next
  // CHECK:      array.repeat <loop = "h0", count = 1>
  // CHECK-NEXT: array.repeat <loop = "k1", count = 3>
  // CHECK-NEXT: array.dma
  // CHECK-NEXT: }
  // CHECK-NEXT: array.view <name = "next.w.dram", tensor = "w.b">
  // CHECK-NEXT: array.view <name = "next.w", tensor = "glb.b", wrap = 20>
  // CHECK-NEXT: array.dma <{{.*}}glb = "next.w", words = 10, tokens = {take = 1, give = 3}>
  // CHECK-NEXT: array.repeat <loop = "k1", count = 1>
  // CHECK:      array.layer "b" computes "b" {
  // CHECK:      array.repeat <loop = "k0", count = 2>
  // CHECK-NEXT: array.dma <{{.*}}glb_offset = 10, tokens = {take = 1, give = 3}>
  array.layer "a" computes "a" {
    array.view <name = "w.dram", tensor = "w.a">
    array.view <name = "w", tensor = "glb.a", wrap = 20, steps = [{loop = "k1", axis = "lin", step = 10}]>
    array.dma <direction = "in", dram = "w.dram", glb = "w", words = 10, tokens = {take = 1, give = 2}>
    array.repeat <loop = "h0", count = 2> {
      array.repeat <loop = "k1", count = 3> {
        array.dma <direction = "in", dram = "w.dram", glb = "w", words = 10, tokens = {take = 1, give = 2}>
      }
      array.repeat <loop = "k1", count = 1> {
        array.dma <direction = "in", dram = "w.dram", glb = "w", words = 10, tokens = {take = 1, give = 2}>
      }
    }
    array.repeat <loop = "h0", count = 1> {
      array.repeat <loop = "k1", count = 3> {
        array.dma <direction = "in", dram = "w.dram", glb = "w", words = 10, tokens = {take = 1, give = 2}>
      }
      array.repeat <loop = "k1", count = 1> {
        array.unit <>
      }
    }
    array.sync ["load"]
  }
  array.layer "b" computes "b" ahead {
    array.view <name = "w.dram", tensor = "w.b">
    array.view <name = "w", tensor = "glb.b", wrap = 20, steps = [{loop = "k0", axis = "lin", step = 10}]>
    array.dma <direction = "in", dram = "w.dram", glb = "w", words = 10, tokens = {take = 1, give = 3}>
    array.repeat <loop = "k0", count = 2> {
      array.dma <direction = "in", dram = "w.dram", glb = "w", words = 10, glb_offset = 10, tokens = {take = 1, give = 3}>
    }
    array.sync ["load"]
  }
}
