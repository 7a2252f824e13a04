// RUN: cnncc opt %s | filecheck %s

builtin.module {
  // CHECK: array.tensor <name = "x", memory = "dram", words = 192, shape = [1, 3, 8, 8], role = "input", scale = 0.5, zero = 3, at = 432>
  array.tensor <name = "x", memory = "dram", words = 192, shape = [1, 3, 8, 8], role = "input", scale = 0.5, zero = 3, at = 432>
  array.tensor <name = "w.glb", memory = "glb", words = 72>
  // CHECK: array.layer "conv1" computes "relu1" ahead attributes {mapping = "c > h||8@rows"} {
  array.layer "conv1" computes "relu1" ahead attributes {mapping = "c > h||8@rows"} {
    // CHECK-NEXT: array.view <name = "w", tensor = "w.glb", wrap = 72, steps = [{loop = "k0", axis = "lin", step = -36}]>
    array.view <name = "w", tensor = "w.glb", wrap = 72, steps = [{loop = "k0", axis = "lin", step = -36}]>
    array.view <name = "w.dram", tensor = "x">
    // CHECK: array.unit <bias = true, scale = true, zero = -2, clamp = [-40, 90], factors = "f">
    array.unit <bias = true, scale = true, zero = -2, clamp = [-40, 90], factors = "f">
    // CHECK-NEXT: array.signal <semaphore = 1, count = 2>
    array.signal <semaphore = 1, count = 2>
    // Fields at their default are left out, also when they were written.
    // CHECK-NEXT: array.repeat <loop = "k0", count = 2> {
    array.repeat <loop = "k0", count = 2> {
      // CHECK-NEXT: array.dma <direction = "in", dram = "w.dram", glb = "w", words = 18, tokens = {take = 1}>
      array.dma <direction = "in", dram = "w.dram", glb = "w", words = 18, count = 1, tokens = {take = 1, give = 0}>
      // Conditions: `never`, the default, is left out; [] reads as `always`.
      // CHECK-NEXT: array.load <kind = "weight", view = "w", place = {rows = 2, row = {axis = "y", step = 1}}, start = {y = -1}, pattern = [{n = 3, step = 1}], edge = true, open = always, close = ["k0"]>
      array.load <kind = "weight", view = "w", place = {rows = 2, row = {axis = "y", step = 1}}, start = {y = -1}, pattern = [{n = 3, step = 1}], edge = true, open = [], close = ["k0"]>
      // CHECK-NEXT: array.mac <op = "mac", place = {}, taps = 9, step_range = 2, lanes = 4, ifmap = {tap = 4, lane = 1}, clear = ["k0"]>
      array.mac <op = "mac", place = {}, taps = 9, step_range = 2, lanes = 4, ifmap = {tap = 4, lane = 1}, clear = ["k0"], send = never>
    // CHECK-NEXT: }
    }
    // CHECK-NEXT: array.commit <view = "w", place = {}, source = "glb", operand = "w">
    array.commit <view = "w", place = {}, source = "glb", operand = "w">
    // CHECK-NEXT: array.sync ["load", "array"]
    array.sync ["load", "array"]
  }
  // CHECK: array.host model <"865127f90da2046f"> <inputs = ["x"], outputs = ["y", "z"]>
  array.host model <"865127f90da2046f"> <inputs = ["x"], outputs = ["y", "z"]>
}
